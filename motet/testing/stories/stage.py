"""The test doubles of a program: models that follow its script, recorded tools, and the replay.

Invariant: each call that reaches a tool is recorded with its end, and all tasks that it starts
carry the id of its run, so that a task that outlives its run can be named.
"""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import cast

import attrs
import msgspec
import trio

from motet.actors.hooks.registry import Hook, HookFn
from motet.actors.host import Host
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool
from motet.protocols.chat import JsonObject
from motet.protocols.hooks import AnyHookEvent
from motet.protocols.models import ModelRequest
from motet.runtime.testing.replay import ReplayDiverged, difference
from motet.testing.history import History
from motet.testing.invariants.snapshot import Ran, Snapshot
from motet.testing.models import plain_answer
from motet.testing.outside import shown
from motet.testing.scripted import Answer, Cut, Slow, Step, StepModel
from motet.testing.stories.acts import Mishap, Of
from motet.testing.stories.foreign import Call, driven, left_by
from motet.testing.stories.references import Results, plain, resolved

__all__ = [
    "Player",
    "Replay",
    "Stage",
    "being_replayed",
    "events_published",
    "hash_of",
    "replay_of",
    "run_of",
    "spoken",
    "tasks_of_runs",
    "told",
    "uncollected",
]

DONE = "ok"

PATIENCE = 20
"""Allowed answers beyond the script, in addition to ``PER_INPUT`` for each input."""
PER_INPUT = 10

_run: ContextVar[str] = ContextVar("motet_testing_run", default="")


def run_of(task: trio.lowlevel.Task) -> str:
    """The run whose tool has started a task, directly or indirectly; empty: none."""
    return task.context.get(_run, "")


def told(past: Snapshot, workspace: str) -> Iterator[str]:
    """The data of a program, one line for each thing, without what differs in each process."""
    for call in past.ran:
        data = msgspec.json.encode((call.args, call.result), enc_hook=str).decode()
        yield shown(f"{call.at} {call.run_id} ran {call.tool}: {data}", workspace)
    for asked in past.asked:
        rows = msgspec.json.encode(asked.request.messages, enc_hook=str)
        digest = hashlib.sha256(shown(rows.decode(), workspace).encode()).hexdigest()[:16]
        last = repr(asked.request.messages[-1].text) if asked.request.messages else "nothing"
        yield shown(f"{asked.at} {asked.run_id} asked with {digest}, last {last}", workspace)
    for happened in past.events:
        data = msgspec.json.encode(happened.record.event, enc_hook=str).decode()
        yield shown(f"{happened.at} {happened.record.stream}: {data}", workspace)


def tasks_of_runs(root: trio.lowlevel.Task | None) -> list[tuple[str, str]]:
    """The run and the name of every task below ``root`` that a tool has started."""
    waiting = [root] if root is not None else []
    found: list[tuple[str, str]] = []
    while waiting:
        task = waiting.pop()
        if run_id := run_of(task):
            found.append((run_id, task.name))
        for nursery in task.child_nurseries:
            waiting += nursery.child_tasks
    return sorted(found)


@contextmanager
def uncollected() -> Generator[None]:
    """Switch the garbage collector off: its times would be random, also between steps."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


async def events_published(host: Host) -> None:
    """Return when all events so far are stored and published."""
    await trio.testing.wait_all_tasks_blocked()
    parts = host._parts  # pyright: ignore[reportPrivateUsage]  # the harness looks inside
    await parts.journal.settle()


class Replay:
    """The recorded execution that a program must repeat, line by line."""

    def __init__(
        self, path: Path, digest: str, trace: Sequence[str], versions: dict[str, str]
    ) -> None:
        self.path = path
        self.times = 0
        self._digest, self._trace, self._versions = digest, trace, versions

    def compare(self, trace: Sequence[str]) -> None:
        """Raise ``ReplayDiverged`` when a trace differs from the recorded one."""
        self.times += 1
        if hash_of(trace) != self._digest:
            found = difference(self.path, self._trace, trace, self._versions)
            raise found or ReplayDiverged(
                self.path, len(trace), "another hash", "this trace", "the file was edited"
            )


_replays: list[Replay] = []


@contextmanager
def replay_of(replay: Replay) -> Generator[None]:
    """Compare every program that is executed in the block."""
    _replays.append(replay)
    try:
        yield
    finally:
        _replays.remove(replay)


def being_replayed() -> Replay | None:
    """The innermost replay; None when programs are executed for the first time."""
    return _replays[-1] if _replays else None


def hash_of(trace: Sequence[str]) -> str:
    """The SHA-256 of all lines, as that of a :class:`~motet.runtime.testing.Trace`."""
    return hashlib.sha256("".join(f"{line}\n" for line in trace).encode()).hexdigest()


@attrs.define(eq=False)
class Stage:
    """The state that the models, tools and hooks of one program share.

    Attributes:
        mishaps: the planned faults, by what is counted and the number.
        allowed: the answers beyond the scripts after which models fall silent; ``beyond`` are those
            so far.
        now: virtual time and steps of the scheduler.
        results: what tools have returned, for the references of scripts.
        ran: the calls that have reached their tools.
        verdicts: how often each hook decided what, as ``before_tool guard: ask``.
        faults: how often each planned fault has struck.
        findings: what the project's code did that no code may do.
    """

    history: History
    mishaps: dict[tuple[Of, int], Mishap]
    allowed: int
    now: Callable[[], tuple[float, int]]
    beyond: int = 0
    count: Counter[Of] = attrs.field(factory=Counter[Of])
    results: list[tuple[str, object]] = attrs.field(factory=list[tuple[str, object]])
    ran: list[Ran] = attrs.field(factory=list[Ran])
    verdicts: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]])
    faults: Counter[str] = attrs.field(factory=Counter[str])
    findings: list[str] = attrs.field(factory=list[str])
    calls: list[Call] = attrs.field(factory=list[Call])

    @property
    def endless(self) -> bool:
        """Agents keep each other busy without any further input."""
        return self.beyond > self.allowed

    def watched(self, tool: Tool) -> Tool:
        """Wrap a tool: record its calls and apply the program's mishaps."""

        async def run(ctx: Context[object], args: JsonObject) -> object:
            mishap = self._next("tool")
            place = self._begun(tool, ctx, args)
            before = _run.set(ctx.run_id)
            call = self._call(f"the tool {tool.name!r} in run {ctx.run_id}", mishap)
            try:
                if not mishap.at:
                    await self._before(mishap)
                value = await driven(tool.run(ctx, args), call)
                self.results.append((tool.name, plain(value)))
                self._result(place)
                if mishap.fails and not mishap.at:
                    self.faults["tool fails after"] += 1
                    raise RuntimeError(mishap.fails)
                return value
            finally:
                _run.reset(before)
                self._over(place)

        return attrs.evolve(tool, run=run)

    def watch_hooks(self, host: Host) -> None:
        """Wrap the hooks of a host that has just opened."""
        # The public API can only add hooks.
        registered = host.on._hooks  # pyright: ignore[reportPrivateUsage]
        known = registered.all()
        registered.swap(known, [attrs.evolve(hook, fn=self._hook(hook)) for hook in known])

    def _hook(self, hook: Hook) -> HookFn:
        name = f"{hook.point} {hook.name.rpartition('.')[2]}"

        async def run(event: AnyHookEvent) -> object:
            mishap = self._next("hook")
            # A program plans no longer delay for a hook than the hook may take.
            if mishap.late and mishap.late >= hook.timeout / 2:
                mishap = msgspec.structs.replace(mishap, late=hook.timeout / 4)
            call = self._call(f"the hook {hook.name!r}", mishap)
            if not mishap.at:
                await self._before(mishap)
            value = await driven(hook.fn(event), call)
            if value is not None:
                self.verdicts[name, type(value).__name__.lower()] += 1
            return value

        return run

    def left(self) -> None:
        """Report the system tasks that have outlived their calls so far."""
        for call in self.calls:
            for what in left_by(call):
                self._found(what)

    def _next(self, of: Of) -> Mishap:
        self.count[of] += 1
        number = self.count[of]
        return self.mishaps.get((of, number)) or Mishap(number, of=of)

    def _call(self, what: str, mishap: Mishap) -> Call:
        call = Call(what, mishap if mishap.at else None, self._found, self.now, self.struck)
        self.calls = [call, *(one for one in self.calls if one.left)]
        return call

    def _found(self, what: str) -> None:
        if not self.history.cut_off and what not in self.findings:
            self.findings.append(what)

    def struck(self, what: str) -> None:
        """Count a fault."""
        self.faults[what] += 1

    async def _before(self, mishap: Mishap) -> None:
        """The faults before the function is called."""
        if mishap.late:
            self.faults[f"{mishap.of} late"] += 1
            await trio.sleep(mishap.late)
        if mishap.fails and not mishap.after:
            self.faults[f"{mishap.of} fails before"] += 1
            raise RuntimeError(mishap.fails)

    def _begun(self, tool: Tool, ctx: Context[object], args: JsonObject) -> int:
        self.ran.append(
            Ran(
                self.history.next_at(),
                ctx.run_id,
                ctx.call_id,
                tool.name,
                ctx.session,
                ctx.principal.user,
                ended=False,
                gated=tool.approval is True,
                args=args,
            )
        )
        return len(self.ran) - 1

    def _result(self, place: int) -> None:
        self.ran[place] = msgspec.structs.replace(self.ran[place], result=self.results[-1][1])

    def _over(self, place: int) -> None:
        self.ran[place] = msgspec.structs.replace(self.ran[place], ended=True)


class Player(StepModel):
    """Answers by a script, across all sessions and crashes, and then with ``ok``."""

    def __init__(self, name: str, script: Sequence[Step], stage: Stage) -> None:
        super().__init__(name)
        self._script: Iterator[Step] = iter(script)
        self._stage = stage

    def _step(self, request: ModelRequest) -> Step:
        step = next(self._script, None)
        if step is not None:
            return spoken(step, request, self._stage.results)
        self._stage.beyond += 1
        done = plain_answer(request, DONE)
        return Slow(done, float("inf")) if self._stage.endless else done


def spoken(step: Step, request: ModelRequest, results: Results) -> Step:
    """The step with the values of its references to earlier results."""
    match step:
        case Slow(inner, seconds):
            return Slow(cast("Answer | Cut", spoken(inner, request, results)), seconds)
        case Cut(answer, after):
            return Cut(cast("Answer", spoken(answer, request, results)), after)
        case Answer(text, calls):
            schemas = {tool.name: tool.parameters for tool in request.tools}
            known = tuple(
                (one[0], resolved(one[1], schemas.get(one[0], {}), results))
                if isinstance(one, tuple)
                else one
                for one in calls
            )
            return Answer(text, known)
        case _:
            return step
