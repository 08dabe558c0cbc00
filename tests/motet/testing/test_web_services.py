"""Services of the web in a simulated world: answers, ledgers, and the faults of the network."""

from __future__ import annotations

import socket

import httpx2
import pytest
import trio

import motet
from motet import testing as mt
from motet.protocols.chat import ToolMessage

bank = mt.fake_http("https://bank.example/v1")


@bank.post("/payments")
def take(request: mt.HttpRequest) -> object:
    """Pay once for each key."""
    paid: dict[str, int] = bank.state.setdefault("paid", {})
    if request.key and request.key in paid:
        return mt.HttpAnswer(200, {"paid": paid[request.key], "known": True}, {"x-known": "1"})
    paid[request.key] = request.json()["euros"]
    return {"paid": paid[request.key]}


@bank.get("/accounts/*")
def account(request: mt.HttpRequest) -> str:
    return f"{request.path} {request.query.get('full', 'short')}"


cashier = motet.Agent("cashier")


@cashier.tool(timeout=600)
async def pay(euros: int, key: str = "") -> str:
    """Pay by the bank's service."""
    headers = {"Idempotency-Key": key} if key else {}
    async with httpx2.AsyncClient(base_url="https://bank.example/v1", timeout=10) as client:
        try:
            answer = await client.post("/payments", json={"euros": euros}, headers=headers)
        except httpx2.TransportError as error:
            return type(error).__name__
        return f"{answer.status_code} {answer.text}"


@cashier.tool
def look(name: str) -> str:
    """A client that blocks its thread."""
    with httpx2.Client(timeout=10) as client:
        try:
            answer = client.get(f"https://bank.example/v1/accounts/{name}?full=yes")
        except httpx2.TransportError as error:
            return type(error).__name__
        return f"{answer.status_code} {answer.text}"


web = motet.Agent("web", tools=["http_fetch"])


def played(
    answer: mt.Answer, *mishaps: mt.Mishap, agent: motet.Agent = cashier
) -> tuple[str, float]:
    """The result of the last call, and the virtual seconds until then."""
    hello = mt.Send("ann", "ann/1: hello", session="ann")
    program = mt.Program([hello], {agent.name: [answer]}, mishaps)
    with mt.simulated_host(http=[bank]) as host:
        program.execute(host, agent)
        mt.check(host)
        rows = mt.snapshot(host).rows("ann")
        results = [row.text for row in rows if isinstance(row, ToolMessage)]
        return results[-1], round(host.now(), 2)


def http(wire: str = "", late: float = 0) -> mt.Mishap:
    return mt.Mishap(1, of="http", wire=wire, late=late)  # type: ignore[arg-type]


PAID = '200 {"paid":5}'


@pytest.mark.parametrize(
    ("fault", "result", "seconds", "effects"),
    [
        (http(), PAID, 0.05, 1),
        (http(late=3), PAID, 3.05, 1),
        (http(late=30), "ReadTimeout", 10.05, 1),
        (http("lost"), "ReadTimeout", 10.05, 1),
        (http("reset"), "ReadError", 0.05, 1),
        (http("refused"), "ConnectError", 0.05, 0),
        (http("busy"), '503 {"error":"planned to fail"}', 0.05, 0),
        (http("twice"), PAID, 0.05, 1),
    ],
)
def test_a_payment_meets_each_fault_of_the_network(
    fault: mt.Mishap, result: str, seconds: float, effects: int
) -> None:
    assert played(mt.call("pay", euros=5), fault) == (result, seconds)
    assert bank.count("POST /v1/payments") == effects
    assert bank.effects == ['POST /v1/payments {"euros":5}'] * effects


def test_a_request_with_a_key_may_arrive_twice_and_others_may_not() -> None:
    assert (
        played(mt.call("pay", euros=5, key="k"), http("twice"))[0] == '200 {"paid":5,"known":true}'
    )
    assert [request.again for request in bank.requests] == [False, True]
    assert [effect.call for effect in bank.ledger.effects] == ["k", "k"]
    played(mt.call("pay", euros=5), http("twice"))
    assert len(bank.requests) == 1


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        (http(), "200 /v1/accounts/ann yes"),
        (http("lost"), "ReadTimeout"),
        (http(late=30), "ReadTimeout"),
        (http(late=3), "200 /v1/accounts/ann yes"),
        (http("refused"), "ConnectError"),
    ],
)
def test_a_client_that_blocks_its_thread_is_answered_too(fault: mt.Mishap, result: str) -> None:
    assert played(mt.call("look", name="ann"), fault)[0] == result
    assert bank.effects == []


def test_the_built_in_fetch_reads_a_fake_service() -> None:
    fetch = mt.call("http_fetch", url="https://bank.example/v1/accounts/bob")
    assert "/v1/accounts/bob short" in played(fetch, agent=web)[0]
    assert "planned to fail" in played(fetch, http("reset"), agent=web)[0]
    missing = mt.call("http_fetch", url="https://bank.example/v1/nothing")
    assert "404" in played(missing, agent=web)[0]


def test_an_address_of_no_service_stays_out_of_reach() -> None:
    async def elsewhere(ctx: motet.Context[None]) -> str:
        """Ask another service."""
        async with httpx2.AsyncClient() as client:
            return (await client.get("https://bank.example.org/")).text

    stray = motet.Agent("stray", tools=[elsewhere])
    with pytest.raises(mt.NotSimulated):
        played(mt.call("elsewhere"), agent=stray)
    with pytest.raises(ValueError, match="write https://"):
        mt.fake_http("bank")


def test_a_crash_undoes_nothing_at_the_service_and_a_dead_host_reaches_none() -> None:
    program = mt.Program(
        [
            mt.Send("ann", "ann/1: hello", session="ann"),
            mt.Wait(0.06),
            mt.Crash(),
        ],
        {"cashier": [mt.call("pay", euros=5)]},
        [mt.Mishap(1, of="http", late=5)],
    )
    with mt.simulated_host(http=[bank]) as host:
        program.execute(host, cashier)
        mt.check(host)
    assert bank.count("POST") == 1


def test_services_below_one_another_answer_their_own_addresses() -> None:
    inner = mt.fake_http("https://bank.example/v1/cards", lambda _: b"a card")
    bank.reset()
    with mt.simulated_host(http=[bank, inner]) as host:
        assert host.web.at("https://bank.example/v1/cards/7") is inner
        assert host.web.at("https://bank.example/v1/cardinal") is bank
        assert host.web.at("https://bank.example/v2") is None


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("host", ["bank.example", b"bank.example"])
def test_no_name_is_resolved_inside_of_a_simulation(host: str | bytes, waits: bool) -> None:
    async def resolve(_: motet.Host) -> object:
        if waits:
            return await trio.socket.getaddrinfo(host, 80)
        return socket.getaddrinfo(host, 80)

    refused = pytest.raises(mt.NotSimulated, match=r"getaddrinfo\(.*bank\.example.*\) inside")
    with mt.simulated_host() as world, refused:
        world.call(resolve)


def test_addresses_in_numbers_are_no_names() -> None:
    async def resolve(_: motet.Host) -> object:
        return socket.getaddrinfo("127.0.0.1", 80) and await trio.socket.getaddrinfo("::1", 80)

    with mt.simulated_host() as world:
        assert world.call(resolve)
