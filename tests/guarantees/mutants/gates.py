"""Defects of the gates: a fault opens them, a verdict is used twice, and nobody is told."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from weakref import WeakKeyDictionary

from motet.actors.hooks import chain
from motet.actors.hooks.chain import Hooks, HooksClient
from motet.actors.hooks.registry import Hook
from motet.protocols.hook_rules import HookFault
from motet.protocols.hooks import Allow, AnyHookEvent, BeforeTool, Deny, Verdict
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]


def _fail_open() -> list[Patch]:
    """A gate that failed lets everything pass, however it was declared."""

    def refusal(event: AnyHookEvent, hook: str) -> Allow:
        return Allow()

    return [(chain, "refusal", refusal)]


def _reuse_verdicts() -> list[Patch]:
    """What was allowed once is allowed for each later call of the tool with these arguments."""
    ask = HooksClient.ask
    known: WeakKeyDictionary[HooksClient, dict[str, Verdict]] = WeakKeyDictionary()

    async def ask_once(client: HooksClient, event: AnyHookEvent) -> Verdict:
        if not isinstance(event, BeforeTool):
            return await ask(client, event)
        mine, key = known.setdefault(client, {}), f"{event.name} {event.args}"
        if key in mine:
            return mine[key]
        verdict = await ask(client, event)
        if isinstance(verdict.decision, Allow):
            mine[key] = verdict
        return verdict

    return [(HooksClient, "ask", ask_once)]


def _take_late_answers() -> list[Patch]:
    """An answer counts whenever it comes, also after the time that the gate has."""
    verdict_of = chain.verdict_of

    def whenever(hook: Hook, event: AnyHookEvent, value: object, *, late: bool) -> Verdict | None:
        return verdict_of(hook, event, value, late=late and value is None)

    return [(chain, "verdict_of", whenever)]


def _take_silence_for_consent() -> list[Patch]:
    """Where nobody answers for the gates, nobody is against it."""

    def silence(client: HooksClient, hooks: object, event: AnyHookEvent, why: str) -> Verdict:
        return Verdict(Allow())

    return [(HooksClient, "_silence", silence)]


def _leave_no_mark() -> list[Patch]:
    """Of a gate that failed open nobody learns anything."""
    mark = Hooks._report

    def mark_the_closed(hooks: Hooks, fault: HookFault) -> None:
        if fault.on_error == "block":
            mark(hooks, fault)

    return [(Hooks, "_report", mark_the_closed)]


def _time_out_open() -> list[Patch]:
    """A gate that does not answer in time is passed over."""
    go_on = chain.Asked.go_on

    async def go_on_without(asked: chain.Asked) -> Exception | str | None:
        found = await go_on(asked)
        if not isinstance(found, str):
            return found
        asked.take(Verdict(Allow()), asked.began)
        return None

    return [(chain.Asked, "go_on", go_on_without)]


def _forgive_refusals() -> list[Patch]:
    """What a gate that fails open says against a call is taken for a failure of it."""
    verdict_of = chain.verdict_of

    def lenient(hook: Hook, event: AnyHookEvent, value: object, *, late: bool) -> Verdict | None:
        verdict = verdict_of(hook, event, value, late=late)
        denies = verdict is not None and isinstance(verdict.decision, Deny)
        forgives = hook.on_error == "continue" and denies
        return Verdict(Allow(), hook.name) if forgives else verdict

    return [(chain, "verdict_of", lenient)]


MUTANTS = (
    Mutant("G10", "opens a gate that fails", _fail_open),
    Mutant("G10", "uses a verdict for the next call too", _reuse_verdicts),
    Mutant("G10", "takes an answer that comes too late", _take_late_answers),
    Mutant("G10", "passes over a gate that gives no answer in time", _time_out_open),
    Mutant("G10", "takes silence for consent", _take_silence_for_consent),
    Mutant("G10", "leaves no mark of a gate that was let pass", _leave_no_mark),
    Mutant("G10", "forgives what a gate that fails open refuses", _forgive_refusals),
)
