"""The hooks of a host: a chain is asked in order, and its verdicts are merged into one (G10).

Invariants: a gate that failed never counts as an allow unless it was declared ``continue``; a
verdict that restricts (Abort, Deny, Ask) counts even if it is late or malformed. A hook gets
its own copy of the event: only its return value changes anything.

Hooks run in an actor (:class:`Hooks`), so that :class:`HooksClient` can tell a verdict from
silence: without an answer, it decides as the strictest of the hooks would.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.hooks.points import allowance, own_copy, replaced, restriction
from motet.actors.hooks.registry import Hook, HookSet
from motet.protocols import hooks
from motet.protocols.hook_rules import POINTS, HookFault, merge
from motet.protocols.hooks import AnyDecision, AnyHookEvent, Verdict
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, MailboxFull, UnderWay, handles
from motet.runtime.exceptions import safe_text, sole
from motet.runtime.outside import foreign_code

log = logger(__name__)

AT_ONCE = 64
SLACK = 1.0
"""Seconds a chain may take beyond the time-outs of its hooks, the wait in the mailbox included."""


Warn: TypeAlias = Callable[[HookFault], None]
OnVerdict: TypeAlias = Callable[[Hook, Verdict, float], None]
"""Gets each hook's own verdict, and the seconds it took."""
Keep: TypeAlias = Callable[[AnyHookEvent, str, Exception], Awaitable[str | None]]
"""Stores the error that a hook has raised, by the hook's name; gives its id. Raises nothing."""


async def decide(
    chain: Sequence[Hook],
    event: AnyHookEvent,
    warn: Warn,
    on_verdict: OnVerdict | None = None,
    keep: Keep | None = None,
) -> Verdict:
    """Ask every hook in order; each sees the event as the one before left it. Abort ends it."""
    asked = Asked(chain, event, on_verdict)
    while asked.at < len(chain):
        if (found := await asked.go_on()) is None:
            continue
        hook, error_id = chain[asked.at], None
        if isinstance(found, Exception):
            cause = sole(found)
            problem = f"{type(cause).__name__}: {safe_text(cause)}"
            error_id = await keep(asked.event, hook.name, found) if keep is not None else None
        else:
            problem = found
        warn(HookFault(hook.name, hook.on_error, asked.event, problem, error_id))
        allowed = hook.on_error == "continue"
        decision = hooks.Allow() if allowed else refusal(asked.event, hook.name)
        asked.take(Verdict(decision, hook.name, "error"), trio.current_time())
    verdict = merge(asked.verdicts)
    if type(verdict.decision) is not hooks.Ask:
        return verdict
    # The person who decides sees every hook's question, and the arguments that the call would run
    # with: those that the hooks which allow it have left.
    asks = [
        (v.hook, v.decision.reason) for v in asked.verdicts if isinstance(v.decision, hooks.Ask)
    ]
    args = asked.event.args if isinstance(asked.event, hooks.BeforeTool) else None
    return replace(verdict, args=args, asked=tuple(asks))


@attrs.define(eq=False)
class Asked:
    """An event on its way through its hooks.

    Attributes:
        event: as the hooks so far have left it.
        at: the index of the hook that is asked; the length of the chain at its end.
        began: when that hook was asked, on Trio's clock.
        verdicts: of the hooks so far.
    """

    _chain: Sequence[Hook]
    event: AnyHookEvent
    _on_verdict: OnVerdict | None
    at: int = 0
    began: float = attrs.field(factory=trio.current_time)
    verdicts: list[Verdict] = attrs.field(factory=list[Verdict])

    async def go_on(self) -> Exception | str | None:
        """Ask the hooks that are left, until one has failed: its error, or why it has none.

        All of them have one scope, whose deadline moves, since a scope costs more than most hooks.
        It is used up when its time has come, and one that fails leaves it, so that its failure is
        handled outside. None then too, if a late hook has restricted something nevertheless.
        """
        chain, hook = self._chain, self._chain[self.at]
        until = self.began + hook.timeout
        try:
            with (
                foreign_code,  # around the scope too, and what the hooks have returned
                trio.CancelScope(deadline=until) as scope,
                UnderWay(self.event.run_id, "") as under_way,
            ):
                while self.at < len(chain):
                    hook = chain[self.at]
                    limit = self.began + hook.timeout
                    # Moving it for each takes as long as asking it: a thousandth is not missed.
                    if not 0 <= limit - until <= hook.timeout / 1000:
                        scope.deadline = until = limit
                    under_way.what = f"hook {hook.name!r}"
                    value = await hook.fn(own_copy(self.event))
                    now = trio.current_time()
                    verdict = verdict_of(hook, self.event, value, late=now >= until)
                    if verdict is None:
                        break
                    self.take(verdict, now)
                    if now >= until:
                        return None
                else:
                    return None
            return f"no answer within {hook.timeout:g} s"
        except Exception as error:
            return error

    def take(self, verdict: Verdict, now: float) -> None:
        """Go on to the next hook, or end."""
        if self._on_verdict is not None:
            self._on_verdict(self._chain[self.at], verdict, now - self.began)
        self.verdicts.append(verdict)
        self.began, decision = now, verdict.decision
        self.at = len(self._chain) if type(decision) is hooks.Abort else self.at + 1
        if type(decision) is not hooks.Allow or decision.args is not None:
            self.event = replaced(self.event, decision)


def verdict_of(hook: Hook, event: AnyHookEvent, value: object, *, late: bool) -> Verdict | None:
    """The verdict by a hook's return value; None: it allows something, but too late.

    Raises ``TypeError`` and ``ValueError`` for a value that is none.
    """
    if (
        not late
        and type(value) is hooks.Allow
        and value.args is None
        and POINTS[hook.point].decides
    ):
        return Verdict(value, hook.name)  # as almost always
    if (restricted := restriction(event, value)) is not None:
        return Verdict(restricted, hook.name)
    return None if late else Verdict(allowance(event, value), hook.name)


def refusal(event: AnyHookEvent, hook: str) -> AnyDecision:
    """The decision of a gate that failed closed."""
    if isinstance(event, hooks.BeforeTool):
        return hooks.Deny(f"the gate {hook!r} failed")
    return hooks.Abort("it failed, and is declared to block when it does")


class Gate(Request[Verdict], frozen=True, tag="hooks.gate"):
    """Whether this event may happen: the merged verdict of all hooks that match."""

    event: AnyHookEvent


class Observe(Message, frozen=True, tag="hooks.observe"):
    """Tell all hooks that match of an event; their verdicts are ignored."""

    event: AnyHookEvent


class Hooks(Actor[Gate | Observe]):
    """Runs the chains. A slow hook delays its own event only, up to 64 events at once.

    ``warn`` gets the fault of every hook that failed; it must not block and must not raise.
    """

    def __init__(self, hooks: HookSet, warn: Warn, keep: Keep | None = None) -> None:
        self._hooks = hooks
        self._warn = warn
        self._keep = keep

    @handles(Gate, concurrent=AT_ONCE, here=True, brief=True)  # each hook has a time-out
    async def gate(self, request: Gate) -> Verdict:
        return await self._decided(request.event)

    @handles(Observe, concurrent=AT_ONCE)
    async def observe(self, message: Observe) -> None:
        await self._decided(message.event)

    async def _decided(self, event: AnyHookEvent) -> Verdict:
        return await decide(self._hooks.of(event), event, self._report, keep=self._keep)

    def _report(self, fault: HookFault) -> None:
        """Report a fault, also to the hooks at ``warning``, unless one of those has failed."""
        event = fault.event
        log.warning(str(fault), run=event.run_id, session=event.session)
        self._warn(fault)
        if isinstance(event, hooks.RunWarning) or not self._hooks.at("warning"):
            return
        text = f"hook {fault.hook!r} failed: {fault.message}"
        base = (event.run_id, event.session, event.agent, event.principal)
        with suppress(MailboxFull):
            self.ref.tell_nowait(Observe(hooks.RunWarning(*base, "hook", text)))


class HooksClient:
    """Asks the :class:`Hooks` actor. Without one, gates block.

    ``warn`` gets a fault for each hook that could not be asked and whose policy is ``continue``.
    """

    def __init__(
        self, hooks: HookSet, ref: ActorRef[Gate | Observe] | None, warn: Warn | None = None
    ) -> None:
        self.hooks = hooks
        self._ref = ref
        self._warn = warn
        self._asking = 0

    async def ask(self, event: AnyHookEvent) -> Verdict:
        """The merged verdict; Allow at once, without a checkpoint, when no hook matches.

        Cancellation: the chain is cancelled with it, and there is no verdict.
        """
        chain = self.hooks.of(event)
        if not chain:
            return Verdict(hooks.Allow())
        if self._ref is None:
            return self._silence(chain, event, "no Hooks actor runs to ask them")
        # With a free place the first hook is asked at once. A limit would cost a scope for nothing.
        waits = self._asking >= AT_ONCE
        within = sum([hook.timeout for hook in chain]) + SLACK if waits else None
        self._asking += 1
        try:
            return await self._ref.ask(Gate(event), timeout=within)
        except Exception as error:  # dead, stopped, overloaded or too slow
            return self._silence(chain, event, type(error).__name__)
        finally:
            self._asking -= 1

    def notify(self, event: AnyHookEvent) -> None:
        """Tell the hooks without waiting; a message that cannot be delivered is logged."""
        if self._ref is None or not self.hooks.of(event):
            return
        try:
            self._ref.tell_nowait(Observe(event))
        except Exception as error:  # a lost observation changes nothing (fail-open)
            log.warning("hooks not told", run=event.run_id, what=repr(event)[:200], why=str(error))

    def _silence(self, chain: tuple[Hook, ...], event: AnyHookEvent, why: str) -> Verdict:
        """The verdict when no hook has answered.

        Calls and children are denied even if all gates fail open: none has failed yet.
        """
        if isinstance(event, hooks.BeforeTool | hooks.BeforeChild):
            return Verdict(hooks.Deny(f"its gates gave no verdict ({why})"), cause="error")
        for hook in chain:
            if hook.on_error == "block":
                return Verdict(refusal(event, hook.name), hook.name, "error")
        for hook in chain:
            fault = HookFault(hook.name, hook.on_error, event, f"it was not asked: {why}")
            log.warning("hook not asked", hook=hook.name, run=event.run_id, why=why)
            if self._warn is not None:
                self._warn(fault)
        return Verdict(hooks.Allow())
