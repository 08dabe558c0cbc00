"""Floods against a server, each from a process of its own, and how a client fares meanwhile.

A flood has the addresses and the rights that attackers have: no token, a wrong one, or a user's
own. The client connects anew again and again, as the one that a flood would keep out, and pings.

    python -m tests.fuzz.floods              # all floods, and what a client had of each
    python -m tests.fuzz.floods pings idle   # some of them
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from random import Random
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Final

import attrs
import trio

import motet
from motet.protocols.chat import UserMessage
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.events import TextDelta
from motet.protocols.models import Finished, ModelEvent, ModelRequest, TextPart
from tests.fuzz.cases import frame, handshake, request

CALM: Final = "mtt_" + "c" * 32
MALLORY: Final = "mtt_" + "d" * 32
WRONG: Final = "mtt_" + "0" * 32
STREAMS: Final = 16
"""Answers of one user that never end."""
STALL: Final = "stall"

ADMISSION: Final = 1.0
"""Seconds within which a client is admitted, in 99 % of tries."""
PING: Final = 0.05
"""Seconds of a request, at the 99th percentile."""
FIRST: Final = 1.0
"""Seconds to the first word of an answer, at most."""

Flood = Callable[[int], Awaitable[None]]


@attrs.frozen
class Fared:
    """What a client had of a server, in seconds."""

    admissions: tuple[float, ...]
    pings: tuple[float, ...]
    answers: tuple[float, ...]

    @property
    def figures(self) -> tuple[float, float, float]:
        """The 99th percentiles of admissions and pings, and the longest wait for a first word."""
        return _p99(self.admissions), _p99(self.pings), max(self.answers)

    def problems(self, name: str) -> list[str]:
        admission, ping, first = self.figures
        found = [
            ("admitted after", admission, ADMISSION),
            ("answered after", ping, PING),
            ("the first word after", first, FIRST),
        ]
        return [
            f"{name}: {what} {took:.3f} s, at most {most:g}"
            for what, took, most in found
            if took > most
        ]


def _p99(values: tuple[float, ...]) -> float:
    return quantiles(values, n=100)[98] if len(values) > 1 else math.inf


# ---------------------------------------------------------------------- the floods


async def idle(port: int) -> None:
    """More connections than there are places, which say nothing and are opened anew when closed."""

    async def one() -> None:
        while True:
            with suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    while await stream.receive_some():
                        pass
            await trio.sleep(0.05)

    await _many(264, one)


async def wrong_tokens(port: int) -> None:
    """Clients with a token that nobody has, one after the other, at the address of all."""

    async def one() -> None:
        while True:
            with suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await _open(stream, WRONG)
                    await stream.receive_some()
            await trio.sleep(0)

    await _many(8, one)


async def pings(port: int) -> None:
    """Pings, as fast as they are taken."""
    await _many(4, lambda: _pour(port, frame(b"p", 9) * 2_000))


async def fragments(port: int) -> None:
    """Messages in fragments of a byte."""
    message = frame(b"x", 1, first=0) + frame(b"x", 0, first=0) * 2_000 + frame(b"x", 0)
    await _many(4, lambda: _pour(port, message))


async def requests(port: int) -> None:
    """Requests that are refused, as fast as they are taken."""
    text = request("1", "runs.get", {"run_id": "run_0"})
    await _many(4, lambda: _pour(port, frame(text.encode()) * 200))


async def streams(port: int) -> None:
    """Answers of one user that never come to an end."""

    async def one(number: int) -> None:
        async with motet.connect(f"ws://127.0.0.1:{port}", token=MALLORY) as client:
            await client.send(f"mallory:{number}", STALL, agent="echo")
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for number in range(STREAMS):
            nursery.start_soon(one, number)


FLOODS: Final[dict[str, Flood]] = {
    "idle": idle,
    "wrong-tokens": wrong_tokens,
    "pings": pings,
    "fragments": fragments,
    "requests": requests,
    "streams": streams,
}


async def _many(count: int, one: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)


async def _pour(port: int, data: bytes) -> None:
    """Send it again and again on a connection of a known user, who reads all answers."""
    while True:
        try:
            async with (
                await trio.open_tcp_stream("127.0.0.1", port) as stream,
                trio.open_nursery() as nursery,
            ):
                await _open(stream, MALLORY)
                nursery.start_soon(_swallow, stream, nursery.cancel_scope)
                while True:
                    await stream.send_all(data)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.sleep(0.05)


async def _swallow(stream: trio.SocketStream, ended: trio.CancelScope) -> None:
    while await stream.receive_some(65_536):
        pass
    ended.cancel()


async def _open(stream: trio.SocketStream, token: str) -> None:
    await stream.send_all(handshake(Random(0)))
    head = b""
    while b"\r\n\r\n" not in head:
        if not (some := await stream.receive_some()):
            raise trio.BrokenResourceError
        head += some
    text = request("0", "connect", {"auth": {"token": token}})
    await stream.send_all(frame(text.encode()))


# ---------------------------------------------------------------------- the server


class Echo:
    """A model that says something short; asked to stall, it begins and never ends."""

    name = "floods:echo"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        last = request.messages[-1]
        yield _said(isinstance(last, UserMessage) and last.text == STALL)


async def _said(stalls: bool) -> AsyncIterator[ModelEvent]:
    yield TextPart("well")
    if stalls:
        await trio.sleep_forever()
    await trio.lowlevel.checkpoint()
    yield Finished("stop")


async def serve() -> None:
    """Serve until the standard input ends; prints the port."""
    tokens = (TokenConfig(token=CALM, user="calm"), TokenConfig(token=MALLORY, user="mallory"))
    config = GatewayConfig(listen="127.0.0.1:0", tokens=tokens, messages_per_minute=10**6)
    with TemporaryDirectory(prefix="motet-floods-") as state:
        async with motet.open_host(state, agents=[motet.Agent("echo", model=Echo())]) as host:
            url = await host.serve(config)
            print(url.rpartition(":")[2].strip("/"), flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)


# ---------------------------------------------------------------------- the client


async def fare(port: int, tries: int, pings_of_each: int = 20) -> Fared:
    """Connect so many times, and ping and be answered on each connection."""
    admissions, taken, answers = list[float](), list[float](), list[float]()
    for number in range(tries):
        began = trio.current_time()
        with trio.move_on_after(10 * ADMISSION):
            async with motet.connect(f"ws://127.0.0.1:{port}", token=CALM) as client:
                admissions.append(trio.current_time() - began)
                for _ in range(pings_of_each):
                    began = trio.current_time()
                    await client.call("ping")
                    taken.append(trio.current_time() - began)
                answers.append(await _first_word(client, f"calm:{number}"))
                continue
        admissions.append(math.inf)
    return Fared(tuple(admissions), tuple(taken), tuple(answers) or (math.inf,))


async def _first_word(client: motet.Client, session: str) -> float:
    async with client.stream(f"session:{session}") as events:
        began = trio.current_time()
        await client.send(session, "hello", agent="echo")
        async for record in events:
            if isinstance(record.event, TextDelta):
                break
        return trio.current_time() - began


async def flooded(name: str, tries: int = 100) -> Fared:
    """Start a server and a flood, and see how a client fares; ends both."""
    with _process("serve") as server:
        assert server.stdout is not None
        port = int(await trio.to_thread.run_sync(server.stdout.readline))
        await fare(port, 2)  # what is done once is no flood's fault
        with _process("flood", name, str(port)) as attacker:
            await trio.sleep(1.0)
            fared = await fare(port, tries)
            assert attacker.poll() is None, f"the flood {name} has ended by itself"
            assert server.poll() is None, f"the server has ended under {name}"
    return fared


@contextmanager
def _process(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """A process of this module, which is killed at the end of the block."""
    command = [sys.executable, "-m", "tests.fuzz.floods", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def floods(names: tuple[str, ...], tries: int) -> list[str]:
    """All of them, one after the other; what was too slow, in words."""
    found: list[str] = []
    for name in names:
        fared = await flooded(name, tries)
        admission, ping, first = (f"{1e3 * figure:.1f} ms" for figure in fared.figures)
        print(f"{name}: admitted in {admission}, answered in {ping} (99 %); first word {first}")
        found += fared.problems(name)
    return found


def main() -> int:
    match sys.argv[1:]:
        case ["serve"]:
            trio.run(serve)
            return 0
        case ["flood", name, port]:
            trio.run(FLOODS[name], int(port))
            return 0
        case _:
            pass
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.floods")
    parser.add_argument("names", nargs="*", metavar="FLOOD", help=", ".join(FLOODS))
    parser.add_argument("--tries", type=int, default=100, help="connections (%(default)s)")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(FLOODS):
        parser.error(f"no flood {sorted(unknown)}: there are {', '.join(FLOODS)}")
    found = trio.run(floods, tuple(chosen.names) or tuple(FLOODS), chosen.tries)
    print("\n".join(found) or "nobody was kept out")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
