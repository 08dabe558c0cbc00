"""A project that loses messages when its host restarts: it holds them in its memory for a while.

People type in bursts, so the webhook collects what one says within two seconds, and answers "200
OK" at once. What is collected is gone with the process.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from weakref import WeakKeyDictionary

import trio

import motet

agent = motet.Agent("desk", instructions="You answer customers.")

BURST = 2.0

log = logging.getLogger(__name__)

Message = tuple[str, str | None]
"""A text, and the number that its sender gave it."""

_bursts: WeakKeyDictionary[motet.Host, dict[str, list[Message]]] = WeakKeyDictionary()


async def receive(host: motet.Host, user: str, session: str, text: str, key: str | None) -> None:
    """A message has come in by the webhook."""
    bursts = _bursts.setdefault(host, defaultdict(list))
    bursts[session].append((text, key))
    if len(bursts[session]) == 1:
        trio.lowlevel.spawn_system_task(_hand_over, host, user, session)


async def _hand_over(host: motet.Host, user: str, session: str) -> None:
    await trio.sleep(BURST)
    who = motet.Principal(user)
    for text, key in _bursts[host].pop(session):
        try:
            await host.submit(text, session=session, mode="collect", principal=who, key=key)
        except Exception:
            log.warning("a message could not be handed over")
