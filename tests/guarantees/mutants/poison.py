"""Defects of the containment of poison: tries are forgotten, the wrong one pays, none is told."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence

from motet.actors.sessions import recovery as recovering
from motet.actors.sessions.recovery import Recovery, _Resumable
from motet.actors.sessions.recovery_plan import refusal
from motet.actors.storage import recovery as rows
from motet.actors.storage.recovery import UnfinishedRun
from motet.protocols.events import EventRecord
from motet.protocols.recovery import RecoveryConfig
from motet.protocols.sessions import RecoverRuns
from motet.protocols.storage import Transact
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]


def _count_anew() -> list[Patch]:
    """Each host begins to count with itself."""
    plan = Recovery.plan

    async def look_afresh(recovery: Recovery) -> RecoverRuns:
        await recovery.forget_tries()
        return await plan(recovery)

    return [(Recovery, "plan", look_afresh)]


def _count_in_memory() -> list[Patch]:
    """Tries are counted where they die with the host."""

    async def count(recovery: Recovery, _session: str, fit: Sequence[_Resumable]) -> None:
        if statements := rows.replace_journals(map(recovery._rows_of, fit)):
            await recovery.commit(tuple(statements))

    return [(Recovery, "_count_try", count)]


def _put_another_aside() -> list[Patch]:
    """It is the oldest unfinished session that pays."""
    quarantine = Recovery._quarantine

    async def put_oldest_aside(recovery: Recovery, found: list[UnfinishedRun]) -> set[str]:
        aside = await quarantine(recovery, found)
        innocent = [one.info.session for one in found if one.info.session not in aside]
        return set(innocent[:1]) if aside and innocent else aside

    return [(Recovery, "_quarantine", put_oldest_aside)]


def _put_all_aside() -> list[Patch]:
    """With the session that kills hosts all others are put aside."""
    quarantine = Recovery._quarantine

    async def put_all_aside(recovery: Recovery, found: list[UnfinishedRun]) -> set[str]:
        aside = await quarantine(recovery, found)
        return {one.info.session for one in found} if aside else aside

    return [(Recovery, "_quarantine", put_all_aside)]


def _say_nothing() -> list[Patch]:
    """A session that is put aside falls silent, and its user is not told why."""

    def append_none(records: Sequence[tuple[EventRecord, str]]) -> Transact:
        return Transact(())

    return [(recovering, "append_events", append_none)]


def _forget_who_is_aside() -> list[Patch]:
    """A session that is aside is taken up by the next host but one."""

    def unfit_but_aside(left: UnfinishedRun, config: RecoveryConfig, now: float) -> str:
        why = refusal(left, config, now)
        return "" if left.quarantined and left.given is not None else why

    return [(recovering, "refusal", unfit_but_aside)]


def _lose_patience() -> list[Patch]:
    """One death less is enough."""
    quarantine = Recovery._quarantine

    async def put_aside_early(recovery: Recovery, found: list[UnfinishedRun]) -> set[str]:
        config = recovery.config
        fewer = max(1, config.quarantine_after - 1)
        recovery.config = RecoveryConfig(quarantine_after=fewer)
        try:
            return await quarantine(recovery, found)
        finally:
            recovery.config = config

    return [(Recovery, "_quarantine", put_aside_early)]


MUTANTS = (
    Mutant("G14", "counts tries anew at each start", _count_anew),
    Mutant("G14", "counts tries in memory", _count_in_memory),
    Mutant("G14", "puts another session aside", _put_another_aside),
    Mutant("G14", "puts all sessions aside", _put_all_aside),
    Mutant("G14", "does not say that a session is aside", _say_nothing),
    Mutant("G14", "takes up what is aside", _forget_who_is_aside),
    Mutant("G14", "puts aside one death too early", _lose_patience),
)
