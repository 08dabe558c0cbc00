"""``motet serve``: a host behind its gateway, until a signal ends it.

The configuration is read again at SIGHUP, and with ``--watch`` when its file has changed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import structlog
import trio

from motet.actors.host import Host
from motet.actors.storage.tokens import new_token
from motet.actors.telemetry.subscription import subscribe
from motet.announced import TOKEN_FILE, announced, kept_token
from motet.cli.exits import OK, explained
from motet.cli.logs import log_as, starting
from motet.cli.render import cut, one_line
from motet.cli.service import Manager, opened_sockets
from motet.cli.setup import Setup, opened
from motet.protocols.config import GatewayConfig, LogConfig, TokenConfig, split_listen
from motet.protocols.errors import ConfigError, MotetError
from motet.protocols.events import HOST_STREAM, ConfigChanged
from motet.protocols.session_keys import is_of_room
from motet.protocols.structuring import structured
from motet.protocols.tokens import Operator
from motet.runtime import StartFailed

TOKEN_VARIABLE = "MOTET_TOKEN"


def serve(
    setup: Setup,
    listen: str | None,
    token_file: Path | None,
    *,
    open_to_all: bool = False,
    watch: bool = False,
) -> int:
    """Serve until SIGINT or SIGTERM, and drain; a second one ends the process at once.

    SIGHUP reads the configuration again; with ``watch`` so does a change of its file.
    ``open_to_all``: clients of this machine need no token.
    """
    gateway = gateway_config(setup.config.gateway, listen, token_file)
    if (given := opened_sockets()) is not None:
        if listen is not None:
            raise ConfigError("--listen: the service manager has opened a socket: leave one out")
        gateway = attrs.evolve(gateway, listen=given[0], sockets=given[1])
    if open_to_all and gateway.tokens:
        raise ConfigError("--no-token: there is a token, so that clients need one: choose")
    log_as(setup.config.log)
    give_blocks_back()
    # A server never keeps its state in memory because the right place happens to be in use.
    trio.run(partial(_serve, attrs.evolve(setup, chosen=True), gateway, watch, open_to_all))
    return OK


def gateway_config(
    config: GatewayConfig, listen: str | None, token_file: Path | None
) -> GatewayConfig:
    """The configured gateway with the additions of the command line and the environment.

    Raises ``ConfigError`` for an invalid address or token.
    """
    if listen is not None:
        split_listen(listen)
        config = attrs.evolve(config, listen=listen)
    tokens = [_token(text, source) for text, source in _tokens(token_file)]
    return attrs.evolve(config, tokens=(*config.tokens, *tokens))


def _tokens(token_file: Path | None) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if token_file is not None:
        found.append((_read_or_make(token_file), str(token_file)))
    if variable := os.environ.get(TOKEN_VARIABLE):
        found.append((variable, f"the environment variable {TOKEN_VARIABLE}"))
    return found


def _token(text: str, source: str) -> TokenConfig:
    try:
        return TokenConfig(token=text.strip(), user="local", role="admin")
    except ValueError as error:
        raise ConfigError(
            f"{source}: {error}; `motet serve --token-file NEW_FILE` makes one"
        ) from None


def _read_or_make(file: Path) -> str:
    """The token in a file; a missing file is made with a new token, for its owner's eyes only."""
    try:
        return file.read_text("utf-8", "replace")
    except FileNotFoundError:
        token = new_token()
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as new:
            new.write(token + "\n")
        print(f"a new token is in {file}")
        return token


async def _serve(setup: Setup, config: GatewayConfig, watch: bool, open_to_all: bool) -> None:
    manager = Manager.of()
    with (
        trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
        trio.open_signal_receiver(signal.SIGHUP) as hangups,
    ):
        async with trio.open_nursery() as nursery:
            leaving = trio.Event()
            nursery.start_soon(_watch, signals, leaving, manager)
            async with opened(setup, _never) as host:
                operator = Operator(kept_token(setup.state), required=not open_to_all)
                with starting():
                    url = await host.serve(config, operator=operator)
                nursery.start_soon(reload_on, hangups, host, manager)
                nursery.start_soon(follow_log, host)
                if watch and setup.file is not None:
                    nursery.start_soon(reload_when_changed, setup.file, host, manager)
                with announced(setup.state, url, operator.token, config.certificate):
                    others = bool(config.tokens or await host.tokens())
                    notes = await host.workspace_notes()
                    announce(setup, host, url, notes, None if others else operator)
                    collect_rarely()
                    manager.ready()
                    nursery.start_soon(manager.show_life)
                    await leaving.wait()
                left = await host.drain()
                if left:
                    structlog.get_logger("motet").info("left for the next host", runs=list(left))
            nursery.cancel_scope.cancel()
    structlog.get_logger("motet").info("stopped")


def collect_rarely() -> None:
    """Keep the garbage collector from stopping the loop for everything that is alive.

    What a start has made stays: it is not looked at again. With the interpreter's thresholds, a few
    thousand tasks that begin or fail together make one collection of all objects due; with these,
    the young ones are looked at less often, and it takes forty times as many.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


_THRESHOLDS = (-3, -1)  # glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD
_BLOCK = 131_072


def give_blocks_back() -> None:
    """Have the C library give a large block back to the system as soon as it is free.

    glibc keeps those of a size that was freed before, and cuts smaller ones from them. So each
    error of megabytes but the first would take three times its bound. Other libraries keep none.
    """
    with suppress(OSError, AttributeError):
        for threshold in _THRESHOLDS:
            ctypes.CDLL(None).mallopt(threshold, _BLOCK)


async def _watch(signals: AsyncIterator[int], leaving: trio.Event, manager: Manager) -> None:
    """The first signal drains the server, the second one ends the process."""
    log = structlog.get_logger("motet")
    name = signal.Signals(await anext(signals)).name
    log.info(
        "stopping: runs get some time to end and clients are told; once more ends at once",
        signal=name,
    )
    manager.stopping()
    leaving.set()
    os._exit(128 + await anext(signals))


def _never(message: str) -> None:
    raise AssertionError(message)


def announce(
    setup: Setup, host: Host, url: str, notes: tuple[str, ...], operator: Operator | None
) -> None:
    """Print the address: a script may wait for this line before it connects.

    ``operator``: None where people have tokens of their own. Its token is in the link, as the page
    reads it from there; but not where others read the output.
    """
    from motet.cli.checks import providers

    print(f"motet serves {url.replace('http', 'ws', 1)}/ws")
    for agent in host.agents():
        print(f"  agent    {agent.name} ({agent.model})")
    print(f"  state    {setup.state}")
    linked = operator is not None and operator.required and not _seen_by_others()
    print(f"  page     {url}/{f'#token={operator.token}' if operator and linked else ''}")
    print(f"  token    {_said(setup, operator)}")
    for note in notes:
        print(f"  files    {note}")
    for finding in providers(setup):
        if finding.verdict == "broken":
            print(f"  problem  {finding.topic}: {finding.text}")
    if host.resumed:
        print(f"  resumed  {len(host.resumed)} runs that the last host left unfinished")
    # A room repeats a turn that was cut off, or tells that it does not.
    for run in (one for one in host.interrupted if not is_of_room(one.session)):
        text = cut(one_line(run.text), 60)
        print(f"  interrupted by the end of the last host: {run.run_id} {run.session}: {text}")
    sys.stdout.flush()


def _seen_by_others() -> bool:
    """Whether others can read the output: a file, or the journal of systemd, which names itself."""
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return False
    if os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}":
        return True
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o044)


def _said(setup: Setup, operator: Operator | None) -> str:
    if operator is None:
        return "clients need one"
    if operator.required:
        return f"in {setup.state / TOKEN_FILE}; your own commands and clients here find it"
    return "none: every user and program of this machine is an admin"


# Reloads


LOOK_EVERY = 0.5
"""Seconds between two looks at the file."""


async def reload_on(signals: AsyncIterator[int], host: Host, manager: Manager) -> None:
    async for _ in signals:
        await reload(host, manager)


async def reload_when_changed(file: Path, host: Host, manager: Manager) -> None:
    """Polls the file, which also notices one that was renamed into its place."""
    seen = _stamp(file)
    while True:
        await trio.sleep(LOOK_EVERY)
        now = _stamp(file)
        if now != seen:
            seen = now
            await reload(host, manager)


async def reload(host: Host, manager: Manager) -> None:
    """Never fails: errors of the file are logged, and the last good configuration stays."""
    log = structlog.get_logger("motet")
    manager.reloading()
    try:
        done = await host.reload()
    except (MotetError, StartFailed) as error:
        log.error("the configuration was not reloaded", problem=explained(error))
    else:
        log.info("the configuration was reloaded", changes=[str(one) for one in done.changes])
    manager.ready()


async def follow_log(host: Host) -> None:
    """Log as the configuration in force says, whoever has had it reloaded."""
    async with subscribe(host.events, HOST_STREAM) as events:
        async for record in events:
            if isinstance(record.event, ConfigChanged):
                view = host.configuration().config["log"]
                log_as(structured(view, LogConfig, source="the configuration in force"))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
