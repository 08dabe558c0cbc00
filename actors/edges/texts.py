"""How much of each message of a run a client was told, so that nothing is told twice or left out.

Pure. Invariant: what :meth:`Texts.delta` and :meth:`Texts.whole` give for a message is, put
together, a beginning of its text, and all of it after ``whole``.
"""

from __future__ import annotations

import attrs


class Withdrawn(Exception):
    """Text was told that does not count any more."""


@attrs.define(eq=False)
class Texts:
    """By the numbers of messages in their run."""

    _told: dict[int, str] = attrs.field(init=False, factory=dict[int, str])

    def delta(self, i: int, at: int, text: str) -> str:
        """What is new in more text of message ``i`` at offset ``at``."""
        told = self._told.get(i, "")
        if at > len(told):
            return ""  # something before it was left out: the whole message will have it
        new = text[len(told) - at :]
        self._told[i] = told + new
        return new

    def whole(self, i: int, text: str) -> str:
        """What is new in the whole of message ``i``. Raises :class:`Withdrawn`."""
        told = self._told.get(i, "")
        self._told[i] = text
        if text.startswith(told):
            return text[len(told) :]
        if told.strip() == text.strip():
            return ""
        raise Withdrawn

    def withdraw(self, i: int) -> bool:
        """Messages from number ``i`` on are told anew; true if anything of them was told."""
        gone = {number: text for number, text in self._told.items() if number >= i}
        for number in gone:
            del self._told[number]
        return any(gone.values())
