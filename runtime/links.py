"""Links between two actors: the failure of one is the failure of the other, as in OTP.

A watch (``monitors.py``) reports that an actor has ended for ever. A link is for two actors whose
states belong together, so that neither may go on with what the other has lost in a crash: it holds
between two incarnations, and the supervisors of both decide on what follows. An actor that is to
stay linked links again in ``on_start``.

    end of one of the two                                  the other
    a crash, or an end for the restart of its group        fails with LinkBroken
    by itself, or by a stop                                goes on, without the link

Invariants: a link is on both sides or on none; it is gone before anybody is told, so that a failure
neither comes back nor goes in circles; a link to an actor that has failed already is one to its
next incarnation. Rejected: ends by a stop as failures, as in OTP. Whoever stops a system in order
would have every actor crash that is linked to one that was stopped before.
"""

from __future__ import annotations

from collections.abc import Callable

from motet.runtime.errors import ActorDead, LinkBroken
from motet.runtime.foreign import shown
from motet.runtime.kernel import Owner

__all__ = ["break_links", "drop_links", "link", "unlink"]

Fail = Callable[[Exception], None]


def link(one: Owner, fail_one: Fail, other: Owner, fail_other: Fail) -> None:
    """Link two actors; nothing if they are. ``fail_...`` must not wait.

    Raises ActorDead if one of them is ending for ever.
    """
    other.kernel.loop.check(other.path)
    for owner in (one, other):
        if owner.is_final or owner.state == "dead":
            raise ActorDead(owner.path, owner.mailbox.shut or "it is ending")
    if one is not other:
        _links_of(one)[other] = fail_other
        _links_of(other)[one] = fail_one


def unlink(one: Owner, other: Owner) -> None:
    """Undo :func:`link`; nothing if there is no link."""
    other.kernel.loop.check(other.path)
    _forget(one, other)
    _forget(other, one)


def drop_links(owner: Owner) -> None:
    """The incarnation of ``owner`` ends, and has not failed."""
    for other in _taken(owner):
        _forget(other, owner)


def break_links(owner: Owner, error: Exception | None) -> None:
    """The incarnation of ``owner`` has failed, or restarts with its group (no error).

    All who are linked to it fail, and those who are linked to them. Each is told by whom it is
    linked to, so that the log and ``restart_reason`` lead back to the first.
    """
    # The whole net is taken apart before anybody is told: a recursion would be as deep as a chain
    # of links is long.
    broken: list[tuple[Fail, LinkBroken]] = []
    failed: list[tuple[Owner, Exception | None]] = [(owner, error)]
    for one, cause in failed:
        match cause:
            case None:
                why = "restarts with its group"
            case LinkBroken():
                why = f"has failed with {cause.path}"
            case _:
                why = f"has failed: {shown(cause)}"
        for other, fail in _taken(one).items():
            # Those that it is still linked to follow in their turn.
            _forget(other, one)
            reason = LinkBroken(one.path, why)
            reason.__cause__ = cause
            broken.append((fail, reason))
            failed.append((other, reason))
    for fail, reason in broken:
        fail(reason)


def _links_of(owner: Owner) -> dict[Owner, Fail]:
    if owner.links is None:
        owner.links = {}
    return owner.links


def _taken(owner: Owner) -> dict[Owner, Fail]:
    links, owner.links = owner.links, None
    return links or {}


def _forget(owner: Owner, other: Owner) -> None:
    if owner.links is not None:
        owner.links.pop(other, None)
        if not owner.links:
            owner.links = None
