"""Which errors a model still sees: the open ones, the newest of them in full.

Laws: a tool's success resolves its own open errors and no others, errors are told apart by number
and never by their text, at most ``shown`` blocks are given, and the same errors give the same
bytes. The event log keeps them all. Source: seed 004, contradictions 39 to 41.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec
from msgspec.structs import replace

from motet.actors.errors.compact import error_block
from motet.protocols.errors import CompactError

SHOWN = 3


class OpenError(msgspec.Struct, frozen=True):
    """An error nobody has resolved. ``error_id`` names the whole one, where it was stored."""

    number: int
    error: CompactError
    error_id: str | None = None


class ErrorContext(msgspec.Struct, frozen=True):
    """The open errors of a session, oldest first; transitions return a new context."""

    open: tuple[OpenError, ...] = ()
    last: int = 0

    def failed(self, error: CompactError, error_id: str | None = None) -> ErrorContext:
        number = self.last + 1
        return ErrorContext((*self.open, OpenError(number, error, error_id)), number)

    def succeeded(self, tool: str) -> ErrorContext:
        return self._without({e.number for e in self.open if e.error.tool_name == tool})

    def resolved(self, numbers: Container[int]) -> ErrorContext:
        """Without these errors, however they were resolved."""
        return self._without(numbers)

    def render(self, shown: int = SHOWN) -> str:
        """The newest ``shown`` blocks after one line that counts the older ones; empty if none."""
        kept = self.open[max(len(self.open) - max(shown, 0), 0) :]
        hidden = len(self.open) - len(kept)
        parts = [_older(hidden)] if hidden else []
        return "\n\n".join([*parts, *(error_block(e.error, e.error_id) for e in kept)])

    def _without(self, numbers: Container[int]) -> ErrorContext:
        return replace(self, open=tuple(e for e in self.open if e.number not in numbers))


def _older(number: int) -> str:
    return f"<error_summary>\n{number} older errors hidden\n</error_summary>"
