"""The life of a host in a thread of its own.

Invariants: the thread has ended when the block is left, or ``TimeoutError`` says that it has not;
a program that leaves no block has its host ended in order when the interpreter exits. The thread
is a daemon so that one which does not end in time cannot keep the process alive, and an ``atexit``
callback, which the interpreter calls before it abandons daemons, ends it: nothing is lost.
"""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

import trio

from motet.actors.embed.options import Opening
from motet.actors.embed.place import portal_into
from motet.actors.embed.portal import HostClosed, Portal
from motet.actors.embed.started import GRACE
from motet.actors.embed.where import loop_here
from motet.actors.host import open_host
from motet.actors.log import logger
from motet.protocols.config import HostConfig

_log = logger("motet.embed")


class HostLife:
    """The part of :class:`motet.HostThread` that opens and closes it."""

    def __init__(
        self,
        config: str | Path | HostConfig | None = None,
        *,
        grace: float = GRACE,
        **opening: Unpack[Opening],
    ) -> None:
        self.grace = grace
        self._open_host = partial(open_host, config=config, **opening)
        self._thread = threading.Thread(target=self._live, name="motet host", daemon=True)
        self._scope = trio.CancelScope()
        self._token: Future[trio.lowlevel.TrioToken] = Future()
        self._portal: Future[Portal] = Future()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"<HostThread {self._state}>"

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as unclean:
            if error is None:
                raise
            _log.error("the host did not end well", exc_info=unclean)

    def open(self) -> Self:
        """Start the host, as entering the ``with`` block does. Once; raises as ``open_host``."""
        if loop_here() == "trio":
            raise RuntimeError(
                "HostThread was opened inside trio: use `async with motet.open_host(...)` there"
            )
        if self._pid:
            raise RuntimeError("this HostThread was opened before: make another one")
        self._thread.start()
        self._pid = os.getpid()
        atexit.register(self.close)
        try:
            self._portal.result()
        except BaseException:  # Ctrl-C too: then it was still being opened
            self._failure = None  # the caller gets it now
            self.close()
            raise
        return self

    def close(self) -> None:
        """Cancel what runs, wait for its clean-up, close the database. Twice changes nothing.

        Raises ``TimeoutError`` when that took longer than ``grace``, and the failure of a host
        that had died. Ctrl-C leaves at once; the host goes on closing.
        """
        if self._pid != os.getpid():
            return  # never opened, or a copy in a forked process, which has no such thread
        if threading.current_thread() is self._thread:
            raise RuntimeError("a host cannot wait for its own end: close it from another thread")
        with suppress(trio.RunFinishedError):
            if not self._over.is_set():
                self._token.result().run_sync_soon(self._scope.cancel)
        if not self._over.wait(self.grace):
            raise TimeoutError(
                f"the host has not ended within {self.grace:g} s: something that it runs does not "
                "end when cancelled, such as a synchronous tool; a process can be killed instead"
            )
        atexit.unregister(self.close)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _entered(self) -> Portal:
        """The way in. Raises ``RuntimeError`` where there is none, and says why."""
        if not self._pid:
            raise RuntimeError("the host is not open: use it inside of `with HostThread(...)`")
        if self._pid != os.getpid():
            raise RuntimeError(
                f"this host lives in process {self._pid}, of which this one is a fork: threads "
                "are not forked; open a HostThread in each worker process, after the fork"
            )
        if self._over.is_set() and self._failure is not None:
            raise HostClosed(f"the host has died: {self._failure!r}") from self._failure
        if self._over.is_set():
            raise HostClosed("the host is closed: open another one")
        return self._portal.result()

    @property
    def _state(self) -> str:
        if not self._pid:
            return "not open"
        return "closed" if self._over.is_set() else f"open in process {self._pid}"

    def _live(self) -> None:
        """The host's thread, from its beginning to its end."""
        try:
            trio.run(self._host)
        except BaseException as error:
            self._failure = error
        finally:
            self._over.set()
            if not self._token.done():
                self._token.set_exception(trio.RunFinishedError())
            if not self._portal.done():
                self._portal.set_exception(self._failure or HostClosed("it was not opened"))

    async def _host(self) -> None:
        self._token.set_result(trio.lowlevel.current_trio_token())
        with self._scope:
            async with portal_into(self._open_host) as portal:
                self._portal.set_result(portal)
                await trio.sleep_forever()
