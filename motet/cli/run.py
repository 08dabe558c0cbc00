"""``motet run``: one input, its answer, an exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio

from motet.actors.host import Host
from motet.actors.hosting.inputs import RunStream
from motet.cli.exits import code_of_status
from motet.cli.logs import log_to_stderr
from motet.cli.render import Rendering, in_json
from motet.cli.screen import Screen
from motet.cli.setup import Setup, opened
from motet.protocols.approvals import ApprovalPending
from motet.protocols.errors import InputValidation
from motet.protocols.models import Usage
from motet.protocols.run import RunResult
from motet.protocols.sessions import RunStatus
from motet.protocols.tools import CallResult


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result as ``--json`` prints it."""

    run_id: str
    session: str
    agent: str
    status: RunStatus
    output: str
    usage: Usage
    errors: tuple[CallResult, ...] = ()
    limit: str = ""
    detail: str = ""
    error: str = ""
    approvals: tuple[str, ...] = ()


def run_once(setup: Setup, agent: str, text: str, *, session: str | None, json: bool) -> int:
    """Answer ``text`` and return the exit code. ``-`` stands for standard input."""
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        raise InputValidation("the text is empty: say something")
    log_to_stderr(logging.ERROR)
    screen = Screen.standard()
    setup = setup.unattended()
    result = trio.run(partial(_answer, setup, agent, text, session, screen, quiet=json))
    if json:
        print(in_json(report(result)))
    return code_of_status(result.status)


def report(result: RunResult) -> Report:
    return Report(
        run_id=result.run_id,
        session=result.session,
        agent=result.agent,
        status=result.status,
        output=result.text,
        usage=result.usage,
        errors=result.errors,
        limit=result.limit,
        detail=result.detail,
        approvals=result.approvals,
        error="" if result.error is None else f"{type(result.error).__name__}: {result.error}",
    )


async def _answer(
    setup: Setup, agent: str, text: str, session: str | None, screen: Screen, *, quiet: bool
) -> RunResult:
    """Run it and show its events; a signal stops it and waits for its clean-up."""

    def warn(message: str) -> None:
        screen.line(f"warning: {message}", "warning")

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with (
            opened(setup, warn) as host,
            _refuse_if_suspended(host, session),
            host.stream(agent, text, session=session) as run,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_stop_on_signal, run, signals, screen)
            await _show(run, screen, quiet=quiet)
            result = await run.wait()
            nursery.cancel_scope.cancel()
    if not quiet and not screen.live:
        screen.write(result.text)
    screen.end()
    return result


@asynccontextmanager
async def _refuse_if_suspended(host: Host, session: str | None) -> AsyncGenerator[None]:
    """Raise ``ApprovalPending`` if the input would wait behind a suspended run."""
    waiting = await host.runs(session=session, status="waiting") if session is not None else ()
    if waiting:
        asked = await host.approvals(session=session, state="pending")
        raise ApprovalPending(waiting[0].run_id, tuple(info.id for info in asked))
    yield


async def _show(run: RunStream, screen: Screen, *, quiet: bool) -> None:
    """Show a run's events; off a terminal, its answer is printed at the end, when it is final."""
    rendering = Rendering(screen.live)
    async for event in run:
        if not quiet:
            pieces = rendering.pieces(event)
            screen.show(piece for piece in pieces if screen.live or piece.kind != "text")


async def _stop_on_signal(run: RunStream, signals: AsyncIterator[int], screen: Screen) -> None:
    await anext(signals)
    run.cancel()
    number = await anext(signals)
    screen.line("left at once; the next start marks the run as interrupted")
    os._exit(128 + number)
