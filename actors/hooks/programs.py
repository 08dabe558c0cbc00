"""Programs as hooks: each event is answered by a process of its own.

Invariants: when :func:`run_program` has ended, by return, error or cancellation, every process that
the program started is dead and reaped, unless the kernel could not end it (G2); no file that a hook
is started with lies in the workspace, where tools could change it and so permit themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Unpack

import attrs

from motet.actors.hooks.registry import HookOptions, HookSet
from motet.protocols.config import HookConfig
from motet.protocols.errors import ConfigError
from motet.protocols.hook_programs import HookProgramError, decision_of, payload
from motet.protocols.hook_rules import rule_of
from motet.protocols.hooks import AnyDecision, AnyHookEvent, Point
from motet.runtime.processes import HeadTail, environment, open_child

MAX_STDOUT = 1 << 18
"""Bytes of an answer; a longer one is a failure."""
MAX_STDERR = 4_000


@attrs.define
class Ended:
    """The end of a program. ``code``: 128 plus the signal, if a signal killed it."""

    code: int
    stdout: bytes
    stderr: str


async def run_program(
    argv: Sequence[str], event: bytes, *, cwd: str, env: Mapping[str, str]
) -> Ended:
    """Run ``argv`` with ``event`` on its stdin until it ends.

    Cancellation ends it, all of its descendants included, and waits until they are gone. Raises
    ``OSError`` if it could not be started, ``HookProgramError`` for a longer answer than allowed.
    """
    stderr = HeadTail(MAX_STDERR)
    async with open_child(argv, cwd=cwd, env=env) as child:
        answer = await child.answer(event, room=MAX_STDOUT, words=stderr)
        if answer is None:
            raise HookProgramError(f"its standard output is longer than {MAX_STDOUT:,} bytes")
        return Ended(await child.wait(), answer, stderr.text())
    raise AssertionError("leaving the block of a child swallows nothing")


@attrs.frozen
class CommandHook:
    """Asks a program about each event: a new process each time.

    Its environment has ``PATH``, ``HOME``, ``CLAUDE_PROJECT_DIR`` (the workspace) and the variables
    that ``env`` names.
    """

    argv: tuple[str, ...]
    workspace: str
    cwd: str
    env: tuple[str, ...] = ()

    async def __call__(self, event: AnyHookEvent) -> AnyDecision:
        """Raises ``OSError`` and ``HookProgramError``, failures of the hook."""
        asked = payload(event, self.workspace)
        ended = await run_program(self.argv, asked, cwd=self.cwd, env=self._environment())
        return decision_of(event, ended.code, ended.stdout, ended.stderr)

    def _environment(self) -> Mapping[str, str]:
        named = {name: os.environ[name] for name in self.env if name in os.environ}
        return {**environment(), "CLAUDE_PROJECT_DIR": self.workspace, **named}


def add_command(
    hooks: HookSet,
    point: Point,
    argv: Sequence[str],
    *,
    workspace: Path,
    cwd: str | None = None,
    env: Sequence[str] = (),
    **options: Unpack[HookOptions],
) -> None:
    """Register a program. ``cwd``: its working directory; None: the current one.

    Raises ``ConfigError`` for one that could never work, or that tools could change.
    """
    rule_of(point)
    name = options.get("name") or " ".join(map(str, argv))
    folder = Path(cwd or ".").absolute()
    _refuse(argv, name, folder, workspace)
    hook = CommandHook(tuple(argv), str(workspace), str(folder), tuple(env))
    options["name"] = name
    hooks.add(point, hook, **options)


def add_configured(hooks: HookSet, configured: Iterable[HookConfig], workspace: Path) -> None:
    """Register the programs of a configuration. Raises ``ConfigError``."""
    for index, hook in enumerate(configured):
        try:
            add_command(
                hooks,
                hook.point,
                hook.command,
                workspace=workspace,
                cwd=hook.cwd,
                env=hook.env,
                match=hook.match,
                on_error=hook.on_error,
                fail_open=hook.fail_open,
                timeout=hook.timeout,
                priority=hook.priority,
                name=hook.name,
            )
        except ConfigError as error:
            raise ConfigError(f"hooks[{index}]: {error}") from None


def _refuse(argv: Sequence[str], name: str, folder: Path, workspace: Path) -> None:
    if isinstance(argv, str) or not argv or not argv[0] or any("\0" in word for word in argv):
        raise ConfigError(f"hook {name!r}: give a program and its arguments, such as ['./check']")
    if sys.platform != "linux":
        raise ConfigError(f"hook {name!r}: programs as hooks need Linux")
    for word in argv:
        file = (folder / word).resolve()
        if file.is_file() and file.is_relative_to(workspace.resolve()):
            raise ConfigError(
                f"hook {name!r}: {file} is inside the workspace {workspace}, where tools could "
                "change it: keep hooks elsewhere, or choose another workspace"
            )
