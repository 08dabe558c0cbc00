"""``motet chat``: the keyboard in the main thread, the conversation on Trio in another."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import Protocol, TypeAlias

import attrs
import trio

from motet.announced import default_state
from motet.cli.chat_session import ChatSession, OpenChat, Tell, open_local, open_remote
from motet.cli.dialogue import Dialogue
from motet.cli.exits import OK
from motet.cli.keyboard import Bell, Interrupts, Keyboard, join_thread, remember
from motet.cli.logs import log_to_stderr
from motet.cli.room import RoomDialogue, open_local_room, open_remote_room, remote_members
from motet.cli.screen import Screen
from motet.cli.setup import Setup
from motet.protocols.errors import ConfigError
from motet.protocols.events import EventRecord

TOKEN_VARIABLE = "MOTET_TOKEN"
Meet: TypeAlias = Callable[[Tell], AbstractAsyncContextManager[OpenChat]]


class Display(Protocol):
    """Shows events, and takes typed lines."""

    async def follow(self, events: AsyncIterable[EventRecord]) -> None: ...

    async def hear(self, text: str) -> None: ...

    def review(self) -> str: ...

    async def stop(self) -> None: ...


Begin: TypeAlias = Callable[[ChatSession, Screen, Callable[[int], None]], Display]


def chat(setup: Setup, agent: str, session: str | None) -> int:
    """Talk until the user leaves; the exit code. Raises the error that ended the conversation."""
    key = session or new_session()
    greeting = f"{agent} in {setup.workspace} · session {key}"
    return _attended(partial(open_local, setup, agent, key), greeting)


def chat_remote(url: str, token_file: Path | None, agent: str | None, session: str | None) -> int:
    """Talk with an agent or a room of a host behind a gateway, which goes on afterwards."""
    token = read_token(token_file)
    if agent and not session and (members := trio.run(remote_members, url, token, agent)):
        greeting = f"room {agent} at {url}: {', '.join(members)}"
        return _attended(partial(open_remote_room, url, token, agent), greeting, RoomDialogue.of)
    key = session or new_session()
    greeting = f"{agent or 'an agent'} at {url} · session {key}"
    return _attended(partial(open_remote, url, token, agent, key), greeting)


def chat_room(setup: Setup, room: str) -> int:
    """Talk with all agents of a configured room."""
    greeting = f"room {room}: {', '.join(setup.config.rooms[room].members)}"
    return _attended(partial(open_local_room, setup, room), greeting, RoomDialogue.of)


def read_token(file: Path | None) -> str | None:
    """The token in a file, else in the environment, if there is one."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    token = file.read_text("utf-8", "replace").strip()
    if not token:
        raise ConfigError(f"{file} is empty; `motet serve --token-file` writes such a file")
    return token


def _attended(meet: Meet, greeting: str, begin: Begin = Dialogue) -> int:
    interactive = sys.stdin.isatty()
    log_to_stderr(logging.ERROR)
    screen = Screen.standard()
    talk = ChatThread(meet, screen, Bell(), begin)
    if interactive:
        remember(default_state() / "chat_history")
        screen.line(greeting)
        screen.line("/help lists commands, Ctrl-C stops the agent, Ctrl-D leaves")
    thread = threading.Thread(target=talk.run, name="motet host")
    with Interrupts(talk.bell.rope) as interrupts:
        thread.start()
        try:
            talk.started.wait()
            Keyboard(talk, talk.bell, interactive).attend(interrupts)
        finally:
            talk.leave()
            join_thread(thread, interrupts)
    if talk.error is not None:
        raise talk.error
    return OK


def new_session() -> str:
    """An unused name, which sorts by time."""
    return f"cli:{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}"


def _not_begun() -> None:
    """A stop before the conversation has begun does nothing."""


@attrs.define(eq=False)
class ChatThread:
    """A conversation in a thread of its own, which runs :meth:`run`."""

    meet: Meet
    screen: Screen
    bell: Bell
    begin: Begin = Dialogue
    started: threading.Event = attrs.field(factory=threading.Event)
    error: Exception | None = None
    _token: trio.lowlevel.TrioToken | None = None
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _inbox: trio.MemorySendChannel[str] | None = None
    _stop: Callable[[], None] = _not_begun
    _review: Callable[[], str] = str

    def say(self, text: str) -> None:
        if self._inbox is not None:
            self._soon(self._inbox.send_nowait, text)

    def stop(self) -> None:
        self._soon(self._stop)

    def review(self) -> str:
        return self._review()

    def leave(self) -> None:
        self._soon(self._scope.cancel)

    def run(self) -> None:
        """Run the whole conversation; an error is kept for the main thread."""
        try:
            trio.run(self._converse)
        except Exception as error:
            self.error = error
        finally:
            self.bell.close()
            self.started.set()
            # Only a signal gets the main thread out of a prompt.
            signal.pthread_kill(_main_thread(), signal.SIGTERM)

    async def _converse(self) -> None:
        with self._scope:
            async with (
                self.meet(self.screen.line) as opened,
                trio.open_nursery() as nursery,
            ):
                dialogue = self.begin(opened.chat, self.screen, self.bell.ring)
                self._inbox, texts = trio.open_memory_channel[str](inf)
                self._stop = partial(nursery.start_soon, dialogue.stop)
                self._review = dialogue.review
                self._token = trio.lowlevel.current_trio_token()
                self.started.set()
                nursery.start_soon(dialogue.follow, opened.events)
                async for text in texts:
                    await dialogue.hear(text)

    def _soon(self, do: Callable[..., object], *args: object) -> None:
        """Call a function in the conversation's thread, if that has begun and not ended."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(do, *args)


def _main_thread() -> int:
    ident = threading.main_thread().ident
    assert ident is not None
    return ident
