"""The context of a call, given to its tool, and the options of tools."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar, Unpack, cast

import attrs
import trio

from motet.protocols.agents import AgentLike, AnyAgentLike
from motet.protocols.chat import JsonObject
from motet.protocols.events import ToolProgress
from motet.protocols.policy import Subject
from motet.protocols.rooms import RoomLike, RoomResult
from motet.protocols.run import RunResult
from motet.protocols.sessions import Principal
from motet.protocols.tools import Effects
from motet.runtime.programs import CallPrograms, Command, Files, ProgramOptions, RunningProgram

D = TypeVar("D", covariant=True)
Out = TypeVar("Out")
Delegate: TypeAlias = "Callable[[Context[Any], AnyAgentLike, str], Awaitable[RunResult[Any]]]"
Consult: TypeAlias = "Callable[[Context[Any], RoomLike, str], Awaitable[RoomResult]]"
HandOver: TypeAlias = "Callable[[Context[Any], AnyAgentLike], str]"

MESSAGE = 500
"""Code points of a progress message."""


def _itself(context: Context[object]) -> tuple[Subject, ...]:
    who = context.principal
    return (Subject(context.agent, who.user, who.role, context.session),)


@attrs.frozen(kw_only=True)
class Context(Generic[D]):
    """Given to a tool whose first parameter is annotated with it; never shown to the model.

    Attributes:
        deps: of the agent, from the embedding program; ``Context[D]`` names its type.
        principal: the user that the run acts for. A tool that reads others' data checks it (G16).
        call_id: the model's id of this call.
        workspace: the folder that this session may work in.
        approved: a person has approved this very call, or all calls of this tool.
        asked_by: in a room, the people whose words the run answers, with the rights that they had
            when they said them; ``principal`` is the room's own.
        subjects: those whom the policy must allow a call: the runs above this one, outermost first,
            the people whose words it answers, and itself.
        delegate, consult, hand_over, tell: the host's work for :meth:`run`, :meth:`run_room`,
            :meth:`hand_over_to` and :meth:`progress`; ``programs``: that for :meth:`run_process`
            and :meth:`open_process`.
    """

    deps: D
    run_id: str
    session: str
    agent: str
    principal: Principal
    call_id: str
    workspace: Path
    approved: bool = False
    asked_by: tuple[Principal, ...] = ()
    subjects: tuple[Subject, ...] = attrs.field(
        default=attrs.Factory(_itself, takes_self=True), repr=False
    )
    delegate: Delegate | None = attrs.field(default=None, repr=False)
    consult: Consult | None = attrs.field(default=None, repr=False)
    hand_over: HandOver | None = attrs.field(default=None, repr=False)
    tell: Callable[[ToolProgress], object] | None = attrs.field(default=None, repr=False)
    programs: CallPrograms = attrs.field(factory=CallPrograms, repr=False, eq=False)

    @property
    def lineage(self) -> tuple[Subject, ...]:
        """The runs above this one, outermost first."""
        return self.subjects[:-1]

    async def run(
        self, agent: AgentLike[D, Out] | AgentLike[None, Out], text: str
    ) -> RunResult[Out]:
        """Delegate to another agent: a run in this one's scope and budget.

        It sees ``text`` and nothing of this conversation. The result is returned however it ended.
        Cancelling, also by the tool's time-out, ends the run and waits. Raises ``ToolDenied``,
        ``ToolRetry`` (a limit is reached), and ``RuntimeError`` outside of a host.
        """
        if self.delegate is None:
            raise RuntimeError("only a tool that a host runs can run another agent")
        return await self.delegate(self, agent, text)

    async def run_room(self, room: RoomLike, text: str) -> RoomResult:
        """Have a room answer, below this run: with its budget, its people and its rights.

        The room is one of its own for this call and text, which its members read as said by this
        agent. The same call again, after a kill of the host, finds it as it was left: say so with
        ``idempotent=True`` of the tool. Cancelling stops the room and waits for its end (G1).
        Raises ``ToolDenied``, ``ToolRetry``, ``UnknownName``, ``StorageError``, and
        ``RuntimeError`` outside of a host.
        """
        if self.consult is None:
            raise RuntimeError("only a tool that a host runs can open a room")
        return await self.consult(self, room, text)

    def hand_over_to(self, agent: AnyAgentLike) -> str:
        """Continue the run as ``agent`` after this answer's calls; returns a text for the model.

        Raises ``ToolRetry`` when another call has done so, ``RuntimeError`` outside of a host.
        """
        if self.hand_over is None:
            raise RuntimeError("only a tool that a host runs can hand a conversation over")
        return self.hand_over(self, agent)

    async def run_process(
        self,
        command: Command,
        *,
        stdin: bytes | bytearray | memoryview | Files = b"",
        capture_stdout: bool = False,
        capture_stderr: bool = False,
        check: bool = True,
        stdout: Files = None,
        stderr: Files = None,
        **options: Unpack[ProgramOptions],
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program to its end, as ``trio.run_process``: the same output and exit code.

        In a process group of its own, under a guard: when it ends, when it is cancelled, when the
        call ends in any way, and when the host dies, all that it has started is ended too (G2).
        Cancelled: SIGTERM, after ``grace`` seconds SIGKILL, and it returns when all have ended.

        Raises ``subprocess.CalledProcessError`` for an exit code other than 0 unless ``check`` is
        False, ``OSError`` if it cannot be started, and ``RuntimeError`` after the call.
        """
        return await self.programs.run(
            command,
            stdin=stdin,
            capture_stdout=capture_stdout,
            capture_stderr=capture_stderr,
            check=check,
            stdout=stdout,
            stderr=stderr,
            **options,
        )

    async def open_process(
        self,
        command: Command,
        *,
        stdin: Files = None,
        stdout: Files = None,
        stderr: Files = None,
        **options: Unpack[ProgramOptions],
    ) -> RunningProgram:
        """Start a program, as ``trio.lowlevel.open_process``; it ends with the call at the latest.

        It is guarded as that of :meth:`run_process`. Only within a call that a host runs: nothing
        else would end it. Raises ``OSError``, and ``RuntimeError`` after the call.
        """
        return await self.programs.open(
            command, stdin=stdin, stdout=stdout, stderr=stderr, **options
        )

    def progress(
        self, message: str = "", *, done: float | None = None, total: float | None = None
    ) -> None:
        """Report progress to people, not to the model: ``done`` of ``total``.

        Never waits: a slow client misses some reports. A function in a thread may call it.
        """
        if self.tell is None:
            return
        event = ToolProgress(self.call_id, message[:MESSAGE], done, total)
        if trio.lowlevel.in_trio_task():
            self.tell(event)
        else:
            trio.from_thread.run_sync(self.tell, event)


Approval: TypeAlias = bool | Callable[[Context[Any], JsonObject], bool | Awaitable[bool]]
"""Whether a person must approve a call. A callable decides by context and arguments; an exception
in it counts as True."""

_APPROVAL = ("approval", "requires_approval", "needs_approval")


class Traits(TypedDict, total=False):
    """The options of a tool that :class:`~motet.actors.tools.tool.Tool` has, too.

    timeout: seconds for one call; 60 if absent.
    max_output: bytes of a result that a model gets at once, at most the default of 16,384; a
        larger one is stored, and the model reads on in pages.
    effects: ``read`` if absent; a ``write`` makes the calls of its batch run in call order (G8).
    parallel: False: no other call of a batch runs beside a call of this tool.
    approval: whether a person must approve a call, or a function that decides it.
    polling: repeated equal calls are its purpose, and no loop.
    idempotent: a call that was interrupted by the end of the host may be run again; if absent,
        true for ``effects="read"``.
    """

    timeout: float
    max_output: int
    effects: Effects
    parallel: bool
    approval: Approval
    polling: bool
    idempotent: bool


class ToolOptions(Traits, total=False):
    """The options of ``tool(...)`` and ``@agent.tool(...)``.

    name: the function's own if absent.
    description: that of its docstring if absent.
    requires_approval, needs_approval: aliases of ``approval``.
    """

    name: str | None
    description: str | None
    requires_approval: Approval
    needs_approval: Approval


def traits(options: ToolOptions) -> Traits:
    """The options with aliases resolved and defaults set.

    Raises ``TypeError`` for an unknown option, and for two aliases of one.
    """
    given: dict[str, object] = {**options}
    for name in given:
        if name not in ToolOptions.__annotations__:
            known = ", ".join(ToolOptions.__annotations__)
            raise TypeError(f"a tool has no option {name!r}; there are {known}")
    named = [name for name in _APPROVAL if name in given]
    if len(named) > 1:
        raise TypeError(f"{' and '.join(named)} mean the same: give approval=... only")
    found = {name: given[name] for name in Traits.__annotations__ if name in given}
    found.setdefault("idempotent", given.get("effects") == "read")
    for name in named:
        found["approval"] = given[name]
    return cast(Traits, found)  # only keys of Traits, with the values given for them
