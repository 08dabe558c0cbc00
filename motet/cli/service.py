"""The service manager that has started the process: messages to it (systemd's ``Type=notify``),
and the sockets that it has opened (socket activation).

Invariant: a message never blocks and never fails; without a manager nothing is sent. The variables
of the manager are taken out of the environment, or programs of tools could speak for the server,
and none of these has its sockets.

Source: sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Self

import trio

from motet.protocols.errors import ConfigError

FIRST = 3
"""The descriptor of the first socket of the manager."""
SOCKET, PERIOD, WATCHED = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


def opened_sockets(
    environ: MutableMapping[str, str] = os.environ,
) -> tuple[str, tuple[int, ...]] | None:
    """The address of the sockets that the manager has opened, and their descriptors; None: none.

    Takes its variables out of the environment. Raises ``ConfigError`` for another kind of socket.
    """
    pid, count, _ = (environ.pop(f"LISTEN_{name}", "") for name in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not count.isdigit() or int(count) == 0:
        return None
    given = tuple(range(FIRST, FIRST + int(count)))
    address = ""
    for one in given:
        try:
            os.set_inheritable(one, False)
            with socket.socket(fileno=os.dup(one)) as copy:
                listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if copy.family not in (socket.AF_INET, socket.AF_INET6) or not listens:
                    raise ConfigError(f"socket {one} of the service manager does not listen on TCP")
                host, port = copy.getsockname()[:2]
        except OSError as error:
            raise ConfigError(f"socket {one} of the service manager: {error.strerror}") from error
        address = address or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return address, given


class Manager:
    """The service manager of this process, as its environment names it.

    ``period``: seconds within which it wants a sign of life; None: it does not look.
    """

    def __init__(self, address: str = "", period: float | None = None) -> None:
        # An abstract address is written with an @.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.period = period

    @classmethod
    def of(cls, environ: MutableMapping[str, str] = os.environ) -> Self:
        """Take the manager's variables out of an environment."""
        address, period, pid = (environ.pop(name, "") for name in (SOCKET, PERIOD, WATCHED))
        is_watched = period.isdigit() and int(period) > 0 and pid in ("", str(os.getpid()))
        known = address if address.startswith(("/", "@")) else ""
        return cls(known, int(period) / 1e6 if is_watched and known else None)

    def tell(self, *lines: str) -> None:
        """Send assignments such as ``READY=1``."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)

    def ready(self) -> None:
        """The server serves, for the first time or after a reload."""
        self.tell("READY=1", "STATUS=serving")

    def reloading(self) -> None:
        """The configuration is read again: :meth:`ready` follows."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
        self.tell("RELOADING=1", f"MONOTONIC_USEC={now}")

    def stopping(self) -> None:
        """The server ends: runs get some time."""
        self.tell("STOPPING=1", "STATUS=draining")

    async def show_life(self) -> None:
        """Tell it twice in each period that the event loop turns, until cancelled."""
        while self.period is not None:
            self.tell("WATCHDOG=1")
            await trio.sleep(self.period / 2)
