"""Faulty projects of the kinds that users have, each with its corrected twin, in two shapes.

None of them is known to the harness: a subject is a plain project, and what is right is a property
of a few lines. ``PROJECTS`` has a function for each shape, which makes the faulty or the corrected
project anew, so that nothing is shared between two searches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

import attrs
import httpx2
import trio

import motet
from motet import testing as mt
from motet.protocols.models import ModelRequest
from motet.testing.stories.target import Receive, Subject

__all__ = ["PROJECTS", "Project", "Trial"]


def _nothing() -> None:
    """The default of ``Project.reset``."""


@attrs.frozen
class Project:
    """A subject and what its test says: hooks, the property, services, a way to start anew."""

    subject: Subject
    holds: Callable[[mt.SimulatedHost], None]
    setup: Callable[[motet.Host], None] | None = None
    reset: Callable[[], None] = _nothing
    receive: Receive | None = None
    http: Sequence[mt.FakeHttp] = ()
    own_models: bool = False


Trial: TypeAlias = Callable[[bool], Project]
"""Makes the project: the corrected one, or the faulty one."""


# ---------------------------------------------------------------- check, then act


def tables(fixed: bool) -> Project:
    """Two tools give the last table of a restaurant away."""
    free, given, lock = ["t1"], list[str](), trio.Lock()
    host = motet.Agent("host")

    async def gives(who: str) -> str:
        if not free:
            return "we are full"
        table = free[0]
        await trio.lowlevel.checkpoint()  # looks into the book of guests
        given.append(f"{who} {table}")
        free[:] = [one for one in free if one != table]
        return table

    async def given_to(who: str) -> str:
        if not fixed:
            return await gives(who)
        async with lock:
            return await gives(who)

    @host.tool
    async def seat_walk_in() -> str:
        """Seat the next guest at the door."""
        return await given_to("walk-in")

    @host.tool
    async def confirm_booking(name: str) -> str:
        """Confirm a booking of the telephone."""
        return await given_to(name)

    def reset() -> None:
        free[:] = ["t1"]
        given.clear()

    def holds(_: mt.SimulatedHost) -> None:
        assert len(given) <= 1, given

    return Project(host, holds, reset=reset)


def purse(fixed: bool) -> Project:
    """A balance is read, a ledger is asked, and the new balance is written."""
    money, paid, lock = {"left": 100}, list[int](), trio.Lock()
    agent = motet.Agent("cashier")

    async def take(euros: int) -> str:
        before = money["left"]
        if euros <= 0 or euros > before:
            return "no"
        await trio.sleep(0.02)
        money["left"] = before - euros
        paid.append(euros)
        return "paid"

    @agent.tool
    async def spend(euros: int, why: str) -> str:
        """Spend some euros."""
        if not fixed:
            return await take(euros)
        async with lock:
            return await take(euros)

    def reset() -> None:
        money["left"] = 100
        paid.clear()

    def holds(_: mt.SimulatedHost) -> None:
        assert money["left"] == 100 - sum(paid), (money, paid)

    return Project(agent, holds, reset=reset)


# ---------------------------------------------------------------- an approval for other arguments


async def _granted(host: motet.Host) -> bool:
    """Somebody has allowed a tool for always, and is not asked again."""
    return bool(await host.grants())


def wiper(fixed: bool) -> Project:
    """A gate asks once for each user, whatever path is to be deleted next."""
    trusted = set[object]()
    agent = motet.Agent("janitor")

    @agent.tool
    async def delete(path: str, force: bool) -> str:
        """Delete a file."""
        return f"{path} is gone"

    def setup(host: motet.Host) -> None:
        @host.on("before_tool", match="delete")
        async def guard(event: motet.BeforeTool) -> motet.Ask | motet.Allow:
            known = (event.principal.user, event.args["path"]) if fixed else event.principal.user
            return motet.Allow() if known in trusted else motet.Ask("may it be deleted?")

        @host.on("after_tool", match="delete")
        async def learn(event: motet.AfterTool) -> None:
            if event.ok:
                trusted.add(
                    (event.principal.user, event.args["path"]) if fixed else event.principal.user
                )

    def holds(host: mt.SimulatedHost) -> None:
        seen = mt.snapshot(host)
        said = [one.args["path"] for one in seen.approvals if one.state == "allowed"]
        assert host.call(_granted) or all(call.args["path"] in said for call in seen.ran), said

    return Project(agent, holds, setup, trusted.clear)


def mailer(fixed: bool) -> Project:
    """An approval is remembered for the session, for every address."""
    agent = motet.Agent("postman")
    asked = set[tuple[str, ...]]()

    @agent.tool
    async def send_mail(to: str, body: str) -> str:
        """Send a mail."""
        await trio.sleep(0.3)
        return f"sent to {to}"

    def setup(host: motet.Host) -> None:
        @host.on("before_tool")
        async def approve(event: motet.BeforeTool) -> motet.Ask | motet.Allow:
            key = (event.session, event.name)
            if fixed:
                return motet.Ask("send?")
            if key in asked:
                return motet.Allow()
            asked.add(key)
            return motet.Ask("send?")

    def holds(host: mt.SimulatedHost) -> None:
        seen = mt.snapshot(host)
        said = [(one.run_id, one.args) for one in seen.approvals if one.state == "allowed"]
        assert host.call(_granted) or all((call.run_id, call.args) in said for call in seen.ran), (
            said
        )

    return Project(agent, holds, setup, asked.clear)


# ---------------------------------------------------------------- a polite loop


def welcomes(fixed: bool) -> Project:
    """Three members greet whoever has called them."""

    def model(name: str, other: str) -> mt.FunctionModel:
        said = "welcome!" if fixed else f"@{other} welcome!"
        return mt.FunctionModel(lambda _: said, name=f"model of {name}")

    ring = [("ada", "ben"), ("ben", "cleo"), ("cleo", "ada")]
    members = [motet.Agent(name, model=model(name, other)) for name, other in ring]
    room = motet.Room("lobby", members=members, speakers=motet.mentions(), max_turns=12)

    def holds(host: mt.SimulatedHost) -> None:
        mt.check(host, mt.invariants.bounded_turns(2))

    return Project(room, holds, own_models=True)


def answers_back(fixed: bool) -> Project:
    """Two members quote what was said to them, with its mention."""

    def model(name: str, other: str) -> mt.FunctionModel:
        def answer(request: ModelRequest) -> str:
            last = request.messages[-1].text if request.messages else ""
            return "noted" if fixed else f"{other} said {last[:40]!r}, right @{other}?"

        return mt.FunctionModel(answer, name=f"model of {name}")

    members = [motet.Agent(a, model=model(a, b)) for a, b in (("pat", "quin"), ("quin", "pat"))]
    room = motet.Room("desk", members=members, speakers=motet.mentions(), max_turns=8)

    def holds(host: mt.SimulatedHost) -> None:
        mt.check(host, mt.invariants.bounded_turns(3))

    return Project(room, holds, own_models=True)


# ---------------------------------------------------------------- paid back twice


def tickets(fixed: bool) -> Project:
    """A ticket is settled twice; its number is in a sentence of another tool."""
    opened, settled = dict[str, str](), list[str]()
    agent = motet.Agent("support")

    @agent.tool
    async def open_ticket(subject: str) -> str:
        """Open a ticket."""
        number = f"T-{len(opened) + 17}"
        opened[number] = subject
        return f"ticket {number} is open"

    @agent.tool
    async def settle(ticket: str, euros: int) -> str:
        """Pay a customer for a ticket."""
        if ticket not in opened:
            raise motet.ToolRetry("there is no such ticket")
        if fixed and ticket in settled:
            return "it is settled"
        settled.append(ticket)
        return "paid"

    def reset() -> None:
        opened.clear()
        settled.clear()

    def holds(_: mt.SimulatedHost) -> None:
        assert len(settled) == len(set(settled)), settled

    return Project(agent, holds, reset=reset)


def invoices(fixed: bool) -> Project:
    """An invoice of a list is paid back twice."""
    back = list[int]()
    agent = motet.Agent("clerk")
    known = {4711: 30, 4712: 12}

    @agent.tool
    async def list_invoices() -> list[dict[str, int]]:
        """All invoices."""
        return [{"invoice": number, "euros": euros} for number, euros in known.items()]

    @agent.tool
    async def pay_back(invoice: int) -> str:
        """Pay an invoice back."""
        if invoice not in known:
            raise motet.ToolRetry("unknown invoice")
        if fixed and invoice in back:
            return "already"
        await trio.sleep(0.1)
        if fixed and invoice in back:
            return "already"
        back.append(invoice)
        return "done"

    def holds(_: mt.SimulatedHost) -> None:
        assert len(back) == len(set(back)), back

    return Project(agent, holds, reset=back.clear)


# ---------------------------------------------------------------- paid again after a time-out


def charger(fixed: bool) -> Project:
    """A card is charged again when the bank did not answer in time."""
    bank = mt.fake_http("https://cards.example/v2")
    agent = motet.Agent("till")

    @bank.post("/charges")
    def charge_card(request: mt.HttpRequest) -> object:
        known = bank.state.setdefault("known", dict[str, object]())
        if request.key and request.key in known:
            return mt.HttpAnswer(409, known[request.key])
        charged: object = {"charge": request.json()["order"]}
        if request.key:
            known[request.key] = charged
        return charged

    @agent.tool(timeout=60)
    async def charge(ctx: motet.Context[None], cents: int) -> str:
        """Charge the card of the customer."""
        order = f"{ctx.run_id}/{ctx.call_id}"
        headers = {"Idempotency-Key": order} if fixed else {}
        body = {"order": order, "cents": cents}
        async with httpx2.AsyncClient(timeout=10, verify=False) as client:
            for wait in (0.5, 1, 2):
                try:
                    url = "https://cards.example/v2/charges"
                    answer = await client.post(url, json=body, headers=headers)
                except httpx2.TransportError:
                    await trio.sleep(wait)
                else:
                    return answer.text
        return "the bank cannot be reached"

    def holds(_: mt.SimulatedHost) -> None:
        orders = [effect.partition('"order":')[2].partition(",")[0] for effect in bank.effects]
        assert len(orders) == len(set(orders)), orders

    return Project(agent, holds, http=[bank])


def payroll(fixed: bool) -> Project:
    """A salary is sent once more after ten seconds of silence, which a scope of Trio measures."""
    bank = mt.fake_http("https://iban.example")
    agent = motet.Agent("payroll")

    @bank.post("/transfers")
    def transfer(request: mt.HttpRequest) -> object:
        return {"ok": True}

    @bank.get("/transfers")
    def transfers(request: mt.HttpRequest) -> object:
        return list(bank.effects)

    @agent.tool
    async def look_up(name: str) -> str:
        """The account of an employee."""
        return f"DE{len(name)}"

    @agent.tool
    async def pay_salary(ctx: motet.Context[None], employee: str) -> str:
        """Pay the salary of an employee."""
        body = {"to": employee, "call": f"{ctx.run_id}/{ctx.call_id}"}
        url = "https://iban.example/transfers"
        async with httpx2.AsyncClient(timeout=None, verify=False) as client:
            for _ in range(2):
                with trio.move_on_after(10):
                    if fixed and body["call"] in (await client.get(url)).text:
                        return "paid before"
                    return (await client.post(url, json=body)).text
        return "not paid"

    def holds(_: mt.SimulatedHost) -> None:
        assert len(bank.effects) == len(set(bank.effects)), bank.effects

    return Project(agent, holds, http=[bank])


# ---------------------------------------------------------------- a gate that swallows cancellation


def _worker() -> motet.Agent[None, str]:
    agent = motet.Agent("worker")

    @agent.tool
    async def work(hours: int) -> str:
        """Work for some hours."""
        await trio.sleep(0.5)
        return "done"

    return agent


def quota(fixed: bool) -> Project:
    """A gate asks a service for the quota, and allows the call whatever goes wrong."""

    async def ask_quota() -> bool:
        for _ in range(2):
            await trio.sleep(0.2)
        return True

    def setup(host: motet.Host) -> None:
        @host.on("before_tool")
        async def within_quota(event: motet.BeforeTool) -> motet.Allow | motet.Deny:
            try:
                allowed = await ask_quota()
            except BaseException as error:
                if fixed and not isinstance(error, Exception):
                    raise
                allowed = True
            return motet.Allow() if allowed else motet.Deny("no quota is left")

    return Project(_worker(), mt.check, setup)


def audited(fixed: bool) -> Project:
    """A gate that returns from ``finally``, so that no cancellation leaves it."""

    def setup(host: motet.Host) -> None:
        @host.on("before_model")
        async def audit(event: motet.BeforeModel) -> motet.Allow:
            if fixed:
                await trio.sleep(0.05)
                return motet.Allow()
            try:
                await trio.sleep(0.05)
            finally:
                return motet.Allow()  # noqa: B012 (the fault)

    return Project(_worker(), mt.check, setup)


# ---------------------------------------------------------------- a task that outlives its tool


def uploader(fixed: bool) -> Project:
    """A file is uploaded in the background of the program."""
    agent = motet.Agent("uploader")

    async def upload() -> None:
        for _ in range(3):
            await trio.sleep(0.5)

    @agent.tool
    async def save(name: str) -> str:
        """Save a file."""
        if fixed:
            await upload()
        else:
            trio.lowlevel.spawn_system_task(upload, name="upload")
            await trio.sleep(0.1)
        return "saved"

    return Project(agent, mt.check)


def ticker(fixed: bool) -> Project:
    """A progress bar that nobody ends when its tool is cancelled."""
    agent = motet.Agent("builder")

    @agent.tool
    async def build(target: str) -> str:
        """Build a target."""
        scope, over = trio.CancelScope(), trio.Event()

        async def tick() -> None:
            with scope:
                while True:
                    await trio.sleep(0.25)
            over.set()

        trio.lowlevel.spawn_system_task(tick)
        if fixed:
            try:
                await trio.sleep(1)
            finally:
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await over.wait()
        else:
            await trio.sleep(1)
            scope.cancel()
        return f"{target} is built"

    return Project(agent, mt.check)


# ---------------------------------------------------------------- answered twice, or not at all

Seen: TypeAlias = "WeakKeyDictionary[motet.Host, deque[str]]"


def bot(fixed: bool) -> Project:
    """A bot remembers the updates it has seen, in its memory."""
    seen: Seen = WeakKeyDictionary()

    async def receive(
        host: motet.Host, user: str, session: str, text: str, key: str | None
    ) -> None:
        updates = seen.setdefault(host, deque(maxlen=100))
        if key is not None:
            if key in updates:
                return
            updates.append(key)
        who = motet.Principal(user)
        await host.submit(text, session=session, principal=who, key=key if fixed else None)

    return Project(motet.Agent("bot"), mt.check, receive=receive)


def greeter(fixed: bool) -> Project:
    """A messenger's hook drops what it has seen last, and nothing older."""
    last: WeakKeyDictionary[motet.Host, dict[str, str | None]] = WeakKeyDictionary()

    async def receive(
        host: motet.Host, user: str, session: str, text: str, key: str | None
    ) -> None:
        known = last.setdefault(host, {})
        if key is not None and known.get(user) == key:
            return
        await trio.sleep(0.01)
        who = motet.Principal(user)
        await host.submit(text, session=session, principal=who, key=key if fixed else None)
        known[user] = key

    return Project(motet.Agent("greeter"), mt.check, receive=receive)


PROJECTS: dict[str, Trial] = {
    "check-then-act: tables": tables,
    "check-then-act: purse": purse,
    "approval: wiper": wiper,
    "approval: mailer": mailer,
    "polite loop: welcomes": welcomes,
    "polite loop: answers back": answers_back,
    "refund: tickets": tickets,
    "refund: invoices": invoices,
    "payment: charger": charger,
    "payment: payroll": payroll,
    "gate: quota": quota,
    "gate: audited": audited,
    "system task: uploader": uploader,
    "system task: ticker": ticker,
    "doubled: bot": bot,
    "doubled: greeter": greeter,
}
