"""The shell tool: a command in the workspace, confined by bubblewrap.

Invariant: in mode ``sandbox`` a command runs confined or not at all. Bubblewrap is tested before
the first command, since user namespaces may be switched off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from motet.actors.errors.classify import classify, kind_lines
from motet.actors.tools.builtin.paths import NOBODY, owner_of
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, tool
from motet.protocols.chat import JsonObject
from motet.protocols.command_limits import command_limits, ending, hint, is_unsupervised
from motet.protocols.config import ShellConfig
from motet.protocols.redaction.redact import redacted_prefix
from motet.protocols.seccomp import seccomp_filter
from motet.protocols.texts import last_line
from motet.protocols.tools import ToolFailure, ToolNegative
from motet.runtime import processes
from motet.runtime.processes import Finished, environment, run_command
from motet.runtime.sandbox import (
    Machine,
    Owner,
    descriptor_of,
    inspect_machine,
    sandbox_argv,
    unfit,
    unsafe_argv,
)

MAX_COMMAND = 100_000
"""The longest command in bytes; the kernel takes 131,072 for one argument."""

LINE = 200
"""Code points of the line of an output that a failure names."""

PROBE_TIMEOUT = 10.0
MARGIN = 10.0
"""Seconds that the tool's time-out exceeds the command's, whose message says more."""

_UNSAFE_HINT = "or configure shell mode 'unsafe' to run commands unconfined, as the host's own user"


@attrs.define(eq=False)
class Shell:
    """Runs commands as configured; one per host, shared by all sessions."""

    config: ShellConfig
    inspect: Callable[[], Machine] = inspect_machine
    _proven: Machine | None = attrs.field(default=None, init=False)

    async def run(self, workspace: Path, command: str, timeout: float | None = None) -> str:
        """Run ``command`` by the shell in ``workspace``, and return its output.

        A cancellation first ends every process of the command.

        Raises:
            ToolFailure: it could not be run.
            ToolNegative: it timed out (``timeout``) or failed (``exit``), with its output.
        """
        seconds = self._seconds(timeout)
        _check_command(command)
        if self.config.mode == "off":
            off = "the shell is switched off (shell mode 'off')"
            raise ToolFailure(off, kind="permission", failure="refusal")
        folder = os.path.realpath(workspace)
        if processes.simulated():  # no command reaches this machine
            argv = ["sh", "-c", command]
            return _result(await self._start(argv, folder, seconds), seconds, self.config, "")
        if sys.platform != "linux":
            raise _refused("the shell tool needs Linux")
        if self.config.mode == "unsafe":
            argv = unsafe_argv(self.inspect(), command)
            return _result(await self._start(argv, folder, seconds), seconds, self.config, "")
        machine, owner, note = await self._sandbox(folder)
        done = await self._confined(machine, folder, owner, command, seconds)
        return _result(done, seconds, self.config, note)

    def _seconds(self, timeout: float | None) -> float:
        longest = self.config.timeout
        if timeout is None:
            return longest
        if not 0 < timeout <= longest:
            message = f"timeout is above 0 and at most {longest:g} seconds, not {timeout:g}"
            raise ToolFailure(message, kind="validation")
        return timeout

    async def _sandbox(self, folder: str) -> tuple[Machine, Owner, str]:
        if unfit(folder):
            raise ToolFailure(
                f"the workspace {folder} is part of the system and cannot be handed to a sandbox; "
                "configure a folder of its own",
                kind="permission",
                failure="refusal",
            )
        machine = self._proven or await self._prove(folder)
        try:
            owner = await trio.to_thread.run_sync(owner_of, Path(folder))
        except OSError as error:
            raise _no_start(folder, error) from error
        if owner is None and machine.root:
            note = (
                f"the workspace belongs to root and commands run as user {NOBODY}; to let them "
                f"write: chown -R {NOBODY}:{NOBODY} {folder}, or run the host as an ordinary user"
            )
            return machine, Owner(NOBODY, NOBODY), note
        return machine, owner or Owner(os.geteuid(), os.getegid()), ""

    async def _prove(self, folder: str) -> Machine:
        """Test the sandbox. Only success is remembered: a failure may be temporary."""
        machine = self.inspect()
        needed = {"bubblewrap": machine.bwrap}
        if machine.root:
            needed["setpriv (util-linux)"] = machine.setpriv
        absent = [name for name, path in needed.items() if path is None]
        if absent:
            raise _no_sandbox(f"{' and '.join(absent)} is not installed")
        nobody = Owner(NOBODY, NOBODY)
        tried = await self._confined(machine, folder, nobody, "exit 0", PROBE_TIMEOUT)
        if tried.code or tried.timed_out:
            lines = tried.output.strip().splitlines()
            raise _no_sandbox(f"bubblewrap does not work here ({lines[-1] if lines else 'silent'})")
        self._proven = machine
        return machine

    async def _confined(
        self, machine: Machine, folder: str, owner: Owner, command: str, seconds: float
    ) -> Finished:
        """Run it in the sandbox, without the system calls that ordinary programs do not make."""
        network, most = self.config.network, self.config.processes
        with descriptor_of(seccomp_filter(machine.kind)) as calls:
            argv = sandbox_argv(
                machine, folder, owner, command, network=network, processes=most, calls=calls
            )
            return await self._start(argv, folder, seconds, () if calls is None else (calls,))

    async def _start(
        self, argv: list[str], folder: str, seconds: float, passed: tuple[int, ...] = ()
    ) -> Finished:
        try:
            return await run_command(
                argv,
                cwd=folder,
                env=environment(),
                limits=command_limits(self.config, os.cpu_count() or 1),
                timeout=seconds,
                room=self.config.output_chars,
                passed=passed,
            )
        except OSError as error:
            raise _no_start(folder, error) from error


def shell_tool(config: ShellConfig) -> Tool:
    """The ``shell`` tool."""
    runner = Shell(config)
    confined = {
        "sandbox": "It is confined: it can change the workspace and /tmp only, "
        f"and has {'network' if config.network else 'no network'}.",
        "unsafe": "It is not confined.",
        "off": "It is switched off.",
    }[config.mode]

    async def shell(ctx: Context[object], command: str, timeout: float | None = None) -> str:
        return await runner.run(ctx.workspace, command, timeout)

    return tool(
        shell,
        description=f"Run a shell command in the workspace and return its output. {confined} "
        "Each call is a new shell; what still runs when the command returns is ended. "
        f"It may take {config.timeout:g} seconds; a lower limit can be given as timeout.",
        timeout=config.timeout + MARGIN + PROBE_TIMEOUT,
        max_output=config.output_chars + 1_000,
        effects="write",
        polling=True,
    )


def _check_command(command: str) -> None:
    problem = ""
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        problem = "has half of a surrogate pair in it, which no text can hold"
    else:
        if not command.strip():
            problem = "is empty"
        elif "\0" in command:
            problem = "contains a NUL character"
        elif size > MAX_COMMAND:
            problem = f"has {size:,} bytes of {MAX_COMMAND:,}; write a script and run that"
    if problem:
        raise ToolFailure(f"the command {problem}", kind="validation")


def _no_sandbox(reason: str) -> ToolFailure:
    hint = f"install bubblewrap where user namespaces are allowed, {_UNSAFE_HINT}"
    return _refused(f"no command was run: {reason}; {hint}")


def _refused(told: str) -> ToolFailure:
    return ToolFailure(told, code="NO_SANDBOX", kind="permission", failure="infrastructure")


def _no_start(folder: str, error: OSError) -> ToolFailure:
    return ToolFailure(
        f"the command could not be started in {folder}: {error.strerror or error}", kind="unknown"
    )


def _result(done: Finished, seconds: float, config: ShellConfig, note: str) -> str:
    if done.code == 0 and not done.timed_out:
        return done.output or "[no output]"
    reason = f"ran longer than {seconds:g} s and was ended"
    if not done.timed_out:
        reason = ending(done.code, done.output, config)
    line = redacted_prefix(last_line(done.output, joined=True), LINE)
    whole = f"the command {reason}"
    if not done.timed_out:
        whole += hint(done.output, config)
    message = whole + (f"; {note}" if note else "") + (f": {line}" if line else "")
    last = "\n".join(done.output.rstrip().splitlines()[-5:])[-500:]
    told = f"{message}\n{last}" if last else message
    detail: JsonObject = {
        "message": whole,
        "exit_code": done.code,
        "timed_out": done.timed_out,
        "output": done.output,
        "output_bytes": done.total,
    }
    if is_unsupervised(done.code, done.output):
        raise ToolFailure(told, detail=detail, kind="exit")
    kind = "timeout" if done.timed_out else classify(line)
    shown = message + (kind_lines(kind) if kind != "unknown" else "")
    value = f"{shown}\n{done.output}" if last else shown
    ended = "timeout" if done.timed_out else "exit"
    raise ToolNegative(told, value=value, detail=detail, kind=ended)
