"""Runs the memory flush: a short conversation that writes memory files before rows are summarised.

Invariants: its tools reach no file outside the memory folder, by resolved path, and only append to
files; it ends within ``FLUSH_DEADLINE`` seconds; it counts as done only when the model has said so,
or has written something.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path
from typing import TypeAlias

import attrs
import trio

from motet.actors.errors.log import logger
from motet.actors.hooks.chain import HooksClient
from motet.actors.telemetry.error_channel import ErrorChannel
from motet.actors.tools.builtin.file_write import encoded, replace
from motet.actors.tools.builtin.files import read_lines
from motet.actors.tools.builtin.paths import locate, open_file
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.executor import ToolExecutor
from motet.actors.tools.tool import Tool, tool
from motet.actors.transcript.grammar import row_of
from motet.actors.transcript.summary import (
    FLUSH_DEADLINE,
    FLUSH_REQUESTS,
    MEMORY_FOLDER,
    flush_prompt,
    flush_request,
    flush_rows,
)
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, UserMessage
from motet.protocols.models import ModelRequest, ModelResponse
from motet.protocols.sessions import SessionContext
from motet.protocols.tools import CallResult, ExecuteCall, ToolFailure
from motet.runtime.outside import foreign_code

AskModel: TypeAlias = Callable[[ModelRequest], Awaitable[ModelResponse]]
"""Asks a model once, retries included; raises the model's failure."""
Execute: TypeAlias = Callable[[Call], Awaitable[CallResult]]
"""Runs one call after its gates, and gives its one result; a failing tool does not raise."""

LARGEST = 1 << 20
"""The most bytes of a file in the memory folder."""

_log = logger("motet.memory")


def memory_tools() -> list[Tool]:
    """``read_file`` and ``write_file``, limited to the memory folder."""
    made = (tool(read_file), tool(write_file, effects="write"))
    return [attrs.evolve(one, groups=("group:fs", "group:memory")) for one in made]


def read_file(ctx: Context[object], path: str, offset: int = 1, limit: int = 2000) -> str:
    """Read a file of the memory folder.

    Args:
        path: relative to the workspace, such as memory/2026-01-31.md.
        offset: the first line to read, counted from 1.
        limit: how many lines to read.
    """
    _refuse_outside(ctx.workspace, path)
    return read_lines(ctx.workspace, path, offset, limit)


def write_file(ctx: Context[object], path: str, content: str) -> str:
    """Add text to the end of a file of the memory folder; the file is created if need be.

    Args:
        path: relative to the workspace, such as memory/2026-01-31.md.
        content: what to add.
    """
    _refuse_outside(ctx.workspace, path)
    added = encoded(content.rstrip("\n") + "\n", "content")
    before, found = _content(ctx.workspace, path)
    if len(before) + len(added) > LARGEST:
        raise ToolFailure(
            f"{path!r} has {len(before):,} bytes and may have {LARGEST:,}; use another file",
            kind="validation",
        )
    between = b"" if not before or before.endswith(b"\n") else b"\n"
    replace(ctx.workspace, path, before + between + added, unless_changed_since=found)
    return f"added {len(added):,} bytes to {path}"


def _content(root: Path, path: str) -> tuple[bytes, os.stat_result | None]:
    try:
        with open_file(root, path) as file:
            found = os.fstat(file.fileno())
            return file.read(LARGEST + 1), found
    except ToolFailure as failure:
        if failure.kind != "not_found":
            raise
        return b"", None


def _refuse_outside(root: Path, path: str) -> None:
    """Raises for a path outside of the memory folder, links resolved."""
    parts = locate(root, path)
    if len(parts) < 2 or parts[0] != MEMORY_FOLDER:
        raise ToolFailure(
            f"{path!r} is not in the memory folder; allowed are files such as "
            f"'{MEMORY_FOLDER}/2026-01-31.md'",
            kind="permission",
            failure="refusal",
        )


def memory_executor(
    hooks: HooksClient, reporter: ErrorChannel, context: Context[object]
) -> Execute:
    """Runs calls of :func:`memory_tools` for an agent, after its gates (G10)."""
    catalog = ToolCatalog()
    catalog.add(context.agent, memory_tools())
    executor = ToolExecutor(
        catalog,
        hooks,
        reporter,
        lambda flush_request: attrs.evolve(context, call_id=flush_request.call.id),
    )

    async def execute(call: Call) -> CallResult:
        who = context.principal.user
        flush_request = ExecuteCall(context.run_id, context.session, context.agent, who, call)
        return await executor.execute(flush_request)

    return execute


@attrs.frozen
class MemoryFlush:
    """Has a model write memory files, before a part of its conversation is summarised away.

    Attributes:
        ask: for the agent's model.
        execute: runs the calls of :func:`memory_tools`.
        begin: stores that the flush is done, before its first call, so that a kill or a storage
            that fails cannot have it write twice. False, or an error: it must not write.
        system: the agent's minimal system prompt.
        today: the date in the file's name.
    """

    model: str
    ask: AskModel
    execute: Execute
    today: Callable[[], date]
    begin: Callable[[SessionContext], Awaitable[bool]]
    system: str = ""

    async def __call__(self, context: SessionContext) -> bool:
        """Flush; whether that is done. Raises nothing but a cancellation."""
        with trio.move_on_after(FLUSH_DEADLINE):
            try:
                with foreign_code:
                    return await self._run(context)
            except Exception as error:
                _log.warning("memory flush failed", exc_info=error)
                return False
        _log.warning("memory flush took too long", seconds=FLUSH_DEADLINE)
        return False

    async def _run(self, context: SessionContext) -> bool:
        today, wrote, shown = self.today(), False, flush_rows(context.rows, context.summary)
        own: list[ChatMessage] = [UserMessage(flush_prompt(today))]
        specs = [tool.spec for tool in memory_tools()]
        for left in range(FLUSH_REQUESTS - 1, -1, -1):
            asked = flush_request(
                self.model, shown, own, today=today, system=self.system, tools=specs if left else ()
            )
            response = await self.ask(asked)
            if not response.calls or response.stop_reason == "content_filter":
                return True
            if len(own) == 1 and not await self.begin(context):
                return False
            own.append(AssistantMessage(response.text, response.calls))
            for call in response.calls:
                result = await self.execute(call)
                wrote |= result.ok and call.name == "write_file"
                own.append(row_of(result))
        return wrote
