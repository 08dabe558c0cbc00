"""What of a model's answer may be shown while it still comes. Pure.

One filter for one answer: a retry or the next request to the model gets a new one. Laws: however
the answer is cut into chunks, what is shown is the same; it only grows; nothing inside of a
thinking tag is ever in it; a silent reply shows nothing. Held back is only what may still become
a tag or the token, and from a tag that may stand in a code span what follows it there.

What is shown is the answer without reasoning and ``<final>`` tags. The other steps need the whole
text: the stored message, which is sanitized, replaces what was shown.
"""

from __future__ import annotations

import msgspec

from motet.actors.agent.sanitize.pieces import Piece, Pieces
from motet.actors.agent.silence import SilenceMatch


class StreamFilter(msgspec.Struct, eq=False):
    """Feed it the answer's chunks; show what it gives back, which may be nothing."""

    _pieces: Pieces = msgspec.field(default_factory=Pieces)
    _silence: SilenceMatch | None = msgspec.field(default_factory=SilenceMatch)
    """None when the answer is known not to be silent."""
    _ahead: int = 0
    """How much of the undecided text has been given out."""
    _held: list[str] = []

    def feed(self, text: str) -> str:
        """What can be shown now that the answer goes on with this."""
        decided = _visible(self._pieces.feed(text))
        ahead = self._pieces.ahead
        new = (decided + ahead)[self._ahead :]
        self._ahead = len(ahead)
        return new if self._silence is None else self._unless_silent(new, self._silence)

    def close(self) -> str:
        """What can be shown now that the answer has ended."""
        rest = _visible(self._pieces.close())[self._ahead :]
        if self._silence is not None:
            rest = self._unless_silent(rest, self._silence)
        if self._silence is None or self._silence.whole:
            return rest
        return "".join(self._held).strip()

    def _unless_silent(self, text: str, silence: SilenceMatch) -> str:
        self._held.append(text)
        if silence.goes_on(text):
            return ""
        self._silence = None
        return "".join(self._held).lstrip()


def _visible(pieces: list[Piece]) -> str:
    return "".join([p.text for p in pieces if p.kind not in ("thinking", "final")])
