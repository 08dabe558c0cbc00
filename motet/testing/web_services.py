"""``mt.fake_http()``: a service on the web inside of a simulated world.

A tool that calls ``httpx`` (or ``httpx2``), and the built-in ``http_fetch``, get their answers from
a function of the test. The network between them has the faults that a program plans: no connection,
an answer that is late, lost or cut off after the work was done, a request that arrives twice, and a
busy service.

    bank = mt.fake_http("https://bank.example")

    @bank.post("/payments")
    def pay(request: mt.HttpRequest) -> object:
        return {"paid": request.json()["euros"]}

    with mt.simulated_host(http=[bank]) as host:
        ...
        assert bank.count("POST /payments") <= 1

Invariants: a service stands outside of the host: a crash undoes none of its work, and a host that
is being dismantled reaches no service. Only requests that may be repeated (``GET``, ``HEAD``,
``PUT``, ``DELETE``, ``OPTIONS``, or with an ``Idempotency-Key``) arrive twice: nothing between a
client and a service repeats others.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from ipaddress import ip_address
from math import inf
from types import SimpleNamespace
from typing import Any, TypeAlias, cast
from urllib.parse import SplitResult, parse_qsl, urlsplit

import attrs
import msgspec
import trio

from motet.actors.telemetry.http import Body, HttpFailed, Response, exchange
from motet.actors.tools.builtin import http_client
from motet.runtime.testing.guards import NotSimulated
from motet.runtime.testing.lines import blamed
from motet.testing.history import Ledger
from motet.testing.stories.acts import PLANNED, Mishap

__all__ = ["FakeHttp", "FakeWeb", "HttpAnswer", "HttpRequest", "fake_http"]

LATENCY = 0.05
"""Virtual seconds of a request without a fault."""

REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CLIENTS = ("httpx", "httpx2")
RESOLVING = ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr")
"""Functions of ``socket`` that ask a name server."""


class HttpRequest(msgspec.Struct, frozen=True):
    """A request as its service gets it. Names of headers are lower case.

    ``number`` counts the requests of all services, from 1; ``again``: the network has repeated it.
    """

    method: str
    url: str
    headers: dict[str, str] = {}
    body: bytes = b""
    number: int = 0
    again: bool = False

    @property
    def path(self) -> str:
        return urlsplit(self.url).path or "/"

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.url).query))

    @property
    def key(self) -> str:
        """The ``Idempotency-Key``; empty without one."""
        return self.headers.get("idempotency-key", "")

    def json(self) -> Any:
        """The body as JSON data. Raises ``msgspec.DecodeError``."""
        return msgspec.json.decode(self.body)

    def __str__(self) -> str:
        text = self.body.decode(errors="replace")
        return f"{self.method} {self.path}" + (f" {text}" if text else "")


class HttpAnswer(msgspec.Struct, frozen=True):
    """An answer with a status and headers of its own; ``body``: JSON data, a text or bytes."""

    status: int = 200
    body: object = b""
    headers: dict[str, str] = {}


Handler: TypeAlias = Callable[[HttpRequest], object]
"""Returns JSON data, a text, bytes, or an :class:`HttpAnswer`."""


class _Failed(Exception):
    """A fault of the network; ``kind`` is the name of httpx' error."""

    def __init__(self, kind: str) -> None:
        super().__init__(PLANNED)
        self.kind = kind


@attrs.define(eq=False)
class FakeHttp:
    """One service.

    Attributes:
        address: the begin of its addresses, such as ``https://bank.example``.
        requests: all that have arrived, those too whose answers were lost.
        ledger: the effect of each request that is not safe and was answered with a status below
            400, as ``POST /payments {"euros":5}``, in the name of its idempotency key or number.
        state: for the handlers; emptied with the rest when a simulated host opens.
    """

    address: str
    requests: list[HttpRequest] = attrs.field(factory=list[HttpRequest])
    ledger: Ledger = attrs.field(factory=Ledger)
    state: dict[str, Any] = attrs.field(factory=dict[str, Any])
    latency: float = LATENCY
    _routes: dict[tuple[str, str], Handler] = attrs.field(factory=dict[tuple[str, str], Handler])

    def route(self, method: str, path: str) -> Callable[[Handler], Handler]:
        """Handle ``path``, or all below it if it ends with ``*``; ``method`` ``*`` is any."""

        def register(handler: Handler) -> Handler:
            self._routes[method.upper(), path] = handler
            return handler

        return register

    def get(self, path: str) -> Callable[[Handler], Handler]:
        return self.route("GET", path)

    def post(self, path: str) -> Callable[[Handler], Handler]:
        return self.route("POST", path)

    def put(self, path: str) -> Callable[[Handler], Handler]:
        return self.route("PUT", path)

    def delete(self, path: str) -> Callable[[Handler], Handler]:
        return self.route("DELETE", path)

    @property
    def effects(self) -> Sequence[str]:
        """The effects in the ledger, in order."""
        return [effect.what for effect in self.ledger.effects]

    def count(self, what: str) -> int:
        """The number of effects that begin with ``what``: ``POST /payments``."""
        return sum(effect.startswith(what) for effect in self.effects)

    def reset(self) -> None:
        """Forget all requests, effects and the state."""
        self.requests.clear()
        self.ledger.effects.clear()
        self.state.clear()

    def serves(self, url: str) -> bool:
        """True for an address of this service."""
        return url == self.address or url.startswith(self.address.rstrip("/") + "/")

    def handle(self, request: HttpRequest) -> HttpAnswer:
        """The answer to a request; its effect goes into the ledger."""
        self.requests.append(request)
        handler = self._handler(request)
        if handler is None:
            return HttpAnswer(404, {"error": f"{self.address} has no {request.path}"})
        given = handler(request)
        answer = given if isinstance(given, HttpAnswer) else HttpAnswer(200, given)
        if request.method not in SAFE and answer.status < 400:
            self.ledger.did(request.key or f"request {request.number}", str(request))
        return answer

    def _handler(self, request: HttpRequest) -> Handler | None:
        base = urlsplit(self.address).path.rstrip("/")
        path = request.path.removeprefix(base) or "/"
        for (method, known), handler in self._routes.items():
            fits = path.startswith(known[:-1]) if known.endswith("*") else path == known
            if fits and method in ("*", request.method):
                return handler
        return None


def fake_http(
    address: str, handler: Handler | None = None, *, latency: float = LATENCY
) -> FakeHttp:
    """A service for ``simulated_host(http=[...])``.

    Args:
        address: the begin of its addresses; another service may be below it.
        handler: answers all requests that no route answers.
        latency: virtual seconds of a request without a fault.

    Raises ``ValueError`` for an address that is none.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{address!r} is no address: write https://bank.example")
    service = FakeHttp(address.rstrip("/"), latency=latency)
    if handler is not None:
        service.route("*", "/*")(handler)
    return service


@attrs.define(eq=False)
class FakeWeb:
    """The network of one simulated world.

    Attributes:
        services: those that can be reached.
        plan: the faults, by the number of the request.
        struck: gets the name of each fault that has struck.
        silent: true while a crashed host is dismantled.
        now: virtual seconds.
        refuse: fails the test that uses a real address; None: it may.
    """

    services: Sequence[FakeHttp] = ()
    plan: Mapping[int, Mishap] = attrs.field(factory=dict[int, Mishap])
    struck: Callable[[str], None] = attrs.field(default=lambda _: None)
    silent: Callable[[], bool] = attrs.field(default=lambda: False)
    now: Callable[[], float] = attrs.field(default=lambda: 0.0)
    refuse: Callable[[Exception], None] | None = None
    count: int = 0

    def at(self, url: str) -> FakeHttp | None:
        """The service at an address, the most exact one."""
        found = [service for service in self.services if service.serves(url)]
        return max(found, key=lambda service: len(service.address), default=None)

    async def send(self, service: FakeHttp, request: HttpRequest, patience: float) -> HttpAnswer:
        """Send a request and wait for its answer, ``patience`` seconds at most.

        Raises :class:`_Failed`. Cancellation loses the answer, never the work of the service.
        """
        await trio.sleep(service.latency)
        delays: list[float] = []
        answer = self.arrived(service, request, delays)
        for delay in delays:
            await trio.sleep(min(delay, patience))
            if delay >= patience:
                raise _Failed("ReadTimeout")
        assert answer is not None
        return answer

    def arrived(
        self, service: FakeHttp, request: HttpRequest, delays: list[float]
    ) -> HttpAnswer | None:
        """The answer of the service; ``delays`` gets the seconds for which it is on its way.

        None: it is lost. Raises :class:`_Failed`.
        """
        if self.silent():
            raise _Failed("ConnectError")
        self.count += 1
        request = msgspec.structs.replace(request, number=self.count)
        fault = self.plan.get(self.count) or Mishap(self.count, of="http")
        if fault.wire or fault.late:
            self.struck(f"http {fault.wire or 'late'}")
        if fault.wire == "refused":
            raise _Failed("ConnectError")
        if fault.wire == "busy":
            return HttpAnswer(503, {"error": PLANNED}, {"retry-after": "1"})
        answer = service.handle(request)
        if fault.wire == "twice" and (request.method in REPEATABLE or request.key):
            answer = service.handle(msgspec.structs.replace(request, again=True))
        if fault.wire == "reset":
            raise _Failed("ReadError")
        if fault.wire == "lost":
            delays.append(inf)
            return None
        if fault.late:
            delays.append(fault.late)
        return answer

    # ------------------------------------------------------------------ clients

    @contextmanager
    def installed(self) -> Generator[None]:
        """Answer the requests of httpx and of ``http_fetch`` in the block, and resolve no name."""
        with ExitStack() as stack:
            if self.refuse is not None:
                for name in RESOLVING:
                    stack.enter_context(_replaced(socket, name, self._resolving(name)))
            if self.services:
                stack.enter_context(_replaced(http_client, "exchange", self._exchange))
                for name in CLIENTS:
                    if find_spec(name) is not None:
                        self._install(import_module(name), stack)
            yield

    def _resolving(self, name: str) -> Callable[..., object]:
        """A function of ``socket`` that would ask a name server, for code inside of the world."""
        before: Callable[..., object] = getattr(socket, name)
        thread = threading.get_ident()

        def resolve(host: object, *args: object, **kwargs: object) -> object:
            inside = threading.get_ident() == thread and trio.lowlevel.in_trio_run()
            if not inside or _is_local(host):
                return before(host, *args, **kwargs)
            line = blamed(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            error = NotSimulated("socket", f"socket.{name}({host!r})", line)
            assert self.refuse is not None
            self.refuse(error)
            raise error

        return resolve

    def _install(self, httpx: Any, stack: ExitStack) -> None:
        waiting, blocking = httpx.AsyncHTTPTransport, httpx.HTTPTransport
        asked, called = waiting.handle_async_request, blocking.handle_request

        async def handle_async(transport: Any, request: Any) -> Any:
            service = self.at(str(request.url))
            if service is None:
                self._refuse(request)
                return await asked(transport, request)
            sent = _request(request, await request.aread())
            with _as_httpx(httpx, request):
                return _response(httpx, await self.send(service, sent, _patience(request)))

        def handle(transport: Any, request: Any) -> Any:
            service = self.at(str(request.url))
            if service is None:
                self._refuse(request)
                return called(transport, request)
            sent, delays = _request(request, request.read()), list[float]()
            with _as_httpx(httpx, request):
                # A thread cannot wait in virtual time: an answer in time comes at once.
                answer = self.arrived(service, sent, delays)
                if answer is None or sum(delays) >= _patience(request):
                    raise _Failed("ReadTimeout")
                return _response(httpx, answer)

        inside: Any = import_module(f"{httpx.__name__}._client")
        if hasattr(inside, "time"):  # it measures how long an answer took
            clock = SimpleNamespace(perf_counter=self.now)
            stack.enter_context(_replaced(inside, "time", clock))
        stack.enter_context(_replaced(waiting, "handle_async_request", handle_async))
        stack.enter_context(_replaced(blocking, "handle_request", handle))

    def _refuse(self, request: Any) -> None:
        """Refuse an address that no service has, unless the test allows real sockets."""
        if self.refuse is not None:
            line = blamed(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            what = f"{request.url}, which no service of fake_http has,"
            error = NotSimulated("socket", what, line)
            self.refuse(error)
            raise error

    async def _exchange(
        self,
        target: SplitResult,
        method: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        read: Callable[[Response], Body | None],
        **how: Any,
    ) -> Response:
        """In place of :func:`motet.actors.telemetry.http.exchange`."""
        service = self.at(target.geturl())
        if service is None:
            return await exchange(target, method, headers, body, read=read, **how)
        lower = {name.lower(): value for name, value in headers.items()}
        request = HttpRequest(method, target.geturl(), lower, body)
        try:
            answer = await self.send(service, request, inf)
        except _Failed as failed:
            raise HttpFailed(f"{target.hostname}: {failed}") from failed
        data, kind = _encoded(answer.body)
        response = Response(
            target.geturl(), answer.status, {"content-type": kind, **answer.headers}
        )
        collected = read(response)
        if collected is None:
            return response
        collected.add(data if method != "HEAD" else b"")
        return msgspec.structs.replace(response, body=collected.data, cut=collected.cut)


def _is_local(host: object) -> bool:
    """True for an address in numbers, and for this machine: nobody is asked for them."""
    name = host.decode(errors="replace") if isinstance(host, bytes) else host
    if name in (None, "", "localhost"):
        return True
    try:
        ip_address(str(name).partition("%")[0])
    except ValueError:
        return False
    return True


@contextmanager
def _replaced(holder: object, name: str, value: object) -> Generator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextmanager
def _as_httpx(httpx: Any, request: Any) -> Generator[None]:
    """Raise a fault of the network as the client's own error."""
    try:
        yield
    except _Failed as failed:
        error: Exception = getattr(httpx, failed.kind)(str(failed), request=request)
        raise error from None


def _request(request: Any, body: bytes) -> HttpRequest:
    headers = {str(name).lower(): str(value) for name, value in request.headers.items()}
    return HttpRequest(str(request.method), str(request.url), headers, body)


def _response(httpx: Any, answer: HttpAnswer) -> Any:
    data, kind = _encoded(answer.body)
    return httpx.Response(
        answer.status, headers={"content-type": kind, **answer.headers}, content=data
    )


def _patience(request: Any) -> float:
    """The seconds for which a client waits for an answer."""
    limits = cast("dict[str, float | None]", request.extensions.get("timeout", {}))
    read = limits.get("read")
    return inf if read is None else read


def _encoded(body: object) -> tuple[bytes, str]:
    match body:
        case bytes():
            return body, "application/octet-stream"
        case str():
            return body.encode(), "text/plain; charset=utf-8"
        case _:
            return msgspec.json.encode(body), "application/json"


def reset(services: Iterable[FakeHttp]) -> None:
    """Forget what services did in another world."""
    for service in services:
        service.reset()
