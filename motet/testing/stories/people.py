"""The answers of people during a program: to approvals, to escalations, and to messages of agents.

Invariant: a refusal by the host is an ordinary outcome, since people act at any moment; every other
error leaves the function.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress

import trio

from motet.actors.agents.spec import AnyAgent
from motet.actors.host import Host
from motet.protocols.approvals import ApprovalAnswered, ApprovalDecision
from motet.protocols.errors import MotetError, NotFound
from motet.protocols.sessions import Principal
from motet.testing.stories import acts

__all__ = ["answer", "decision_of", "refused", "replied", "reset", "resolve", "watch"]

PATIENT = 60.0
"""Virtual seconds for which a user waits for an answer."""

PAGE = 50
"""Messages of a room in which the one to reply to is looked for."""


@contextmanager
def refused() -> Generator[list[str]]:
    """Catch a refusal; the list gets its text."""
    why: list[str] = []
    try:
        yield why
    except MotetError as error:
        why.append(f"{type(error).__name__}: {error}")


def decision_of(step: acts.Approve) -> ApprovalDecision:
    """The decision of a step."""
    if not step.allow:
        return "deny"
    return "allow-always" if step.always else "allow-once"


async def answer(host: Host, principal: Principal, decision: ApprovalDecision) -> int:
    """Answer the pending approvals of this principal; returns their number."""
    waiting = await host.approvals(state="pending", principal=principal)
    for approval in waiting:
        with suppress(ApprovalAnswered, NotFound):  # the run was faster, and has ended
            await host.approve(approval.id, decision, principal=principal)
    return len(waiting)


async def resolve(host: Host, step: acts.Resolve, who: Principal) -> None:
    """Answer the open escalations of this principal, oldest first."""
    waiting = await host.escalations(state="open", principal=who)
    for escalation in reversed(waiting):
        with refused():  # such as: its session was deleted meanwhile
            await host.resolve(escalation.id, step.decision, note=step.note, principal=who)


async def watch(host: Host, agent: AnyAgent, step: acts.Disconnect, runs: list[str]) -> None:
    """Send a text, and go away after some events of its run, or soon; ``runs`` gets its id."""
    who = Principal(step.user)
    async with host.stream(agent, step.text, session=step.session, principal=who) as run:
        runs.append(run.id)
        with trio.move_on_after(PATIENT):
            for _ in range(step.after):
                if await anext(run, None) is None:
                    break


async def reset(host: Host, session: str, principal: Principal) -> None:
    """Reset a session."""
    await host.reset(session, principal=principal)


async def replied(host: Host, room: str, back: int) -> int | None:
    """The number of the ``back``-th newest message of an agent; None: there are fewer."""
    with refused():
        messages = await host.rooms.history(room, limit=PAGE)
        of_agents = [message.seq for message in messages if message.kind == "agent"]
        return of_agents[-back] if back <= len(of_agents) else None
    return None
