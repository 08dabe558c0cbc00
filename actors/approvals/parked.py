"""A run that waits for a person outside of any task: what is kept of it in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from motet.actors.agent.definition import AnyAgent
    from motet.protocols.approvals import ParkedRun


@attrs.define(eq=False)
class Parked:
    """All the rest is on disk.

    Attributes:
        agent: its name; ``code``: the agent itself, if it ran in this process.
        deps: what the program gave it; after a restart it has to give them again.
        due: it has an answer that it has not made use of.
        resumed: how often it was taken up and came to nothing.
        blocked: what keeps it from going on, in words; ``warned``: what was told of that.
    """

    run_id: str
    session: str
    agent: str
    user: str
    text: str
    code: AnyAgent | None = None
    deps: object = None
    due: bool = False
    resumed: int = 0
    blocked: str = ""
    warned: str = ""

    @classmethod
    def stored(cls, run: ParkedRun) -> Parked:
        return cls(
            run.run_id,
            run.session,
            run.agent,
            run.user,
            run.text,
            due=run.due,
            resumed=run.resumed,
        )
