"""A project that answers twice: what it has seen is in its memory, and so not after a restart.

A messenger sends again what it has no answer for. The webhook knows the numbers of the messages
that it has handed over, and does not hand on the number itself.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import motet

agent = motet.Agent("desk", instructions="You answer customers.")

_seen: WeakKeyDictionary[motet.Host, set[str]] = WeakKeyDictionary()


async def receive(host: motet.Host, user: str, session: str, text: str, key: str | None) -> None:
    """A message has come in by the webhook; ``key`` is its number."""
    seen = _seen.setdefault(host, set())
    if key is not None and key in seen:
        return
    await host.submit(text, session=session, principal=motet.Principal(user))
    if key is not None:
        seen.add(key)
