"""Plan and progress: a team that plans, works step by step, notices when it is stuck, and re-plans.

The orchestrator is three members of the room on one model. The *planner* writes the task ledger:
facts and a plan. After each step the *tracker* writes the progress ledger: whether the task is
done, whether there is progress, who works next, and on what. The *reporter* gives the final answer.
Who speaks next is a pure function of the ledgers in the chat, so that no restart loses the count.

Invariants: every worker's turn is followed by a progress ledger; ``max_stalls`` stalled steps lead
to a new plan, and ``max_plans`` plans to the final answer; whatever the models say, a round ends.

The method is that of Magentic-One (Fourney et al. 2024, arXiv:2411.04468): outer loop over plans,
inner loop over steps. There the ledgers are JSON in the orchestrator's memory; here they are
messages that people and workers read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from motet.actors.agents.spec import AgentSpec
from motet.actors.rooms.definition import Member, Room
from motet.agent import Agent
from motet.protocols.errors import ConfigError
from motet.protocols.limits import Limits
from motet.protocols.models import Model
from motet.protocols.room_conditions import Condition
from motet.protocols.room_speakers import AskModel, Speakers
from motet.protocols.rooms import RoomView
from motet.teams.member import room_agent

Worker: TypeAlias = AgentSpec[Any, Any] | Room | str

MAX_TURNS = 60
HISTORY = 200


@attrs.frozen
class Progress:
    """A progress ledger as the tracker has written it."""

    done: bool
    loop: bool
    progress: bool
    next: str = ""
    instruction: str = ""

    @property
    def stalled(self) -> bool:
        return self.loop or not self.progress


_LINE = re.compile(r"^\W*(done|loop|progress|next|instruction)\W*:\W*?(\S.*)$", re.I | re.M)
_YES = re.compile(r"\W*(yes|true|y)\b", re.I)


def read_progress(text: str, workers: Collection[str]) -> Progress | None:
    """Read a ledger; None if it says neither that the task is done nor which worker is next."""
    found = {key.lower(): value.strip() for key, value in _LINE.findall(text)}
    done, loop, progress = (bool(_YES.match(found.get(key, ""))) for key in _FLAGS)
    named = found.get("next", "").strip("@*_`\"'. ")
    worker = next((one for one in workers if one.lower() == named.lower()), "")
    if not (done or worker):
        return None
    return Progress(done, loop, progress, worker, found.get("instruction", ""))


_FLAGS = ("done", "loop", "progress")

# plan      the planner writes or renews the task ledger
# track     the tracker writes the progress ledger
# work      the worker that the ledger names takes its step
# report    the reporter gives the final answer
# over      the answer is given
Phase = Literal["plan", "track", "work", "report", "over"]


@attrs.frozen
class Ledger:
    """Where a round of plan and progress stands.

    Attributes:
        plans: task ledgers so far.
        steps: steps of workers so far.
        stalls: stalled steps in this plan, less the steps with progress.
        worker: the one that works in the phase ``work``.
    """

    phase: Phase = "plan"
    plans: int = 0
    steps: int = 0
    stalls: int = 0
    worker: str = ""


@attrs.frozen
class Orchestration(Speakers):
    """The policy of speakers of :func:`plan_and_progress`."""

    planner: str
    tracker: str
    reporter: str
    workers: tuple[str, ...]
    max_stalls: int = 3
    max_plans: int = 3

    async def pick(self, view: RoomView, ask: AskModel) -> Sequence[str]:  # noqa: ARG002
        said = [(one.author, one.text) for one in view.round if one.kind == "agent"]
        ledger = self.ledger(said)
        # A worker that has passed or failed leaves no message: the tracker decides.
        if ledger.phase == "work" and view.floor.passes and view.floor.last == ledger.worker:
            return [self.tracker]
        speaker = self.speaker(ledger)
        return [speaker] if speaker else []

    def speaker(self, ledger: Ledger) -> str:
        """Who speaks in a phase; empty: nobody."""
        names = {"plan": self.planner, "track": self.tracker, "report": self.reporter}
        return ledger.worker if ledger.phase == "work" else names.get(ledger.phase, "")

    def ledger(self, said: Iterable[tuple[str, str]]) -> Ledger:
        """Where a round with these authors and texts stands. Pure."""
        ledger = Ledger()
        for author, text in said:
            ledger = self.after(ledger, author, text)
        return ledger

    def after(self, ledger: Ledger, author: str, text: str) -> Ledger:
        """The ledger after one more message. One that does not belong there changes nothing."""
        if author == self.speaker(ledger):
            match ledger.phase:
                case "plan":
                    return attrs.evolve(ledger, phase="track", plans=ledger.plans + 1, stalls=0)
                case "track":
                    return self._tracked(ledger, read_progress(text, self.workers))
                case "work":
                    return attrs.evolve(ledger, phase="track", steps=ledger.steps + 1, worker="")
                case "report":
                    return attrs.evolve(ledger, phase="over")
                case "over":
                    return ledger
        if author == self.tracker and ledger.phase == "work":
            return self._tracked(ledger, read_progress(text, self.workers))  # its worker has passed
        return ledger

    def _tracked(self, ledger: Ledger, found: Progress | None) -> Ledger:
        if found is not None and found.done:
            return attrs.evolve(ledger, phase="report", worker="")
        stalled = found is None or found.stalled
        stalls = ledger.stalls + 1 if stalled else max(0, ledger.stalls - 1)
        ledger = attrs.evolve(ledger, stalls=stalls, worker="")
        if stalls >= self.max_stalls:
            last = ledger.plans >= self.max_plans
            return attrs.evolve(ledger, phase="report" if last else "plan")
        if found is None:
            return attrs.evolve(ledger, phase="track")
        return attrs.evolve(ledger, phase="work", worker=found.next)


def plan_and_progress(
    name: str,
    workers: Sequence[Worker],
    *,
    model: str | Model,
    max_stalls: int = 3,
    max_plans: int = 3,
    max_turns: int = MAX_TURNS,
    until: Condition | None = None,
    limits: Limits | None = None,
    prompts: Mapping[str, str] | None = None,
    people: Sequence[str] = (),
) -> Room:
    """A room whose workers are led by a planner, a tracker and a reporter on ``model``.

    Args:
        workers: agents, their names, or rooms, which work as one.
        max_stalls: stalled steps that lead to a new plan.
        max_plans: plans after which the reporter says what was reached.
        max_turns, until, limits, people: as of :class:`motet.Room`.
        prompts: instructions of ``planner``, ``tracker`` and ``reporter`` in place of the built-in
            ones; a tracker has to write the lines of :func:`read_progress`.

    Raises ``ConfigError`` for no workers, two of one name, and limits below 1.
    """
    if min(max_stalls, max_plans) < 1:
        raise ConfigError(f"room {name!r}: max_stalls and max_plans are at least 1")
    members = [room_agent(one) if isinstance(one, Room) else one for one in workers]
    names = tuple(one if isinstance(one, str) else one.name for one in members)
    if not names:
        raise ConfigError(f"room {name!r} has no workers")
    texts = {**_PROMPTS, **(prompts or {})}
    leads = [
        Agent(f"{name[:50]}.{role}", model=model, instructions=texts[role], description=about)
        for role, about in _ROLES.items()
    ]
    planner, tracker, reporter = (one.name for one in leads)
    return Room(
        name,
        members=[*leads, *(Member(one, speak="mentioned") for one in members)],
        speakers=Orchestration(planner, tracker, reporter, names, max_stalls, max_plans),
        until=until,
        max_turns=max_turns,
        history=HISTORY,
        limits=limits or Limits(),
        people=tuple(people),
    )


_ROLES = {
    "planner": "writes the plan; does no work of its own",
    "tracker": "says who works next; does no work of its own",
    "reporter": "gives the final answer",
}
_PROMPTS = {
    "planner": (
        "You plan the work of the group. Write down, for the last request of a person: the facts "
        "that are given, those to look up (and where), those to derive, and guesses; then a short "
        "plan with one line for each step, which names the member that does it. Do not do the work "
        "yourself, and do not write @ in front of names. If there is a plan of yours already, the "
        "group was stuck: say in one line what went wrong, renew the facts, and write another plan "
        "that avoids it."
    ),
    "tracker": (
        "You track the progress of the group. Read the plan and what has been said since, and "
        "write exactly these lines and nothing else:\n"
        "done: yes or no (is the person's request fully answered?)\n"
        "loop: yes or no (are the same requests or answers repeated?)\n"
        "progress: yes or no (did the last steps bring the group forward? yes before the first)\n"
        "next: the name of the member that works next, one that is neither planner, tracker nor "
        "reporter\n"
        "instruction: what that member is to do now, with all that it needs to know, in one line"
    ),
    "reporter": (
        "The work of the group is over. Answer the last request of a person from what was found, "
        "as if you spoke to that person. If it was not all reached, say what is missing. Do not "
        "speak of plans, ledgers and members."
    ),
}
