"""Advice for a model that makes the same failing call again.

Laws: advice is given from the second failure in a row on, never for the first; the order of keys
in the arguments makes no difference; a success of the tool, or other arguments, start afresh.
Rows are kept per tool, so calls of other tools in between hide nothing. Source: contradiction 36.
"""

from __future__ import annotations

import hashlib

import msgspec

ADVISED_FROM = 2
_DIGEST = 16


class RepeatedCalls(msgspec.Struct, frozen=True):
    """The last failing call of each tool, as a digest, and how often it failed in a row."""

    rows: dict[str, tuple[str, int]] = {}

    def failed(self, tool: str, arguments: str) -> tuple[RepeatedCalls, str]:
        """The next state, and the advice to add to the result: empty for a first failure.

        ``arguments`` is the JSON text as the model gave it, valid or not.
        """
        digest = _digest(arguments)
        last, times = self.rows.get(tool, ("", 0))
        times = times + 1 if last == digest else 1
        return RepeatedCalls({**self.rows, tool: (digest, times)}), advice(times)

    def succeeded(self, tool: str) -> RepeatedCalls:
        if tool not in self.rows:
            return self
        return RepeatedCalls({name: row for name, row in self.rows.items() if name != tool})


def advice(times: int) -> str:
    """One line for a call that has failed ``times`` times in a row."""
    if times < ADVISED_FROM:
        return ""
    return (
        f"[Advice: this call has failed {times} times in a row with the same arguments, and would "
        "again. Change the arguments, use another tool, or say what is missing.]"
    )


def canonical(arguments: str) -> str:
    """JSON text with sorted keys and without spaces; text that is not JSON as it is."""
    try:
        value: object = msgspec.json.decode(arguments)
        return msgspec.json.encode(value, order="deterministic").decode()
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments


def _digest(arguments: str) -> str:
    whole = canonical(arguments).encode("utf-8", "surrogatepass")
    return hashlib.sha256(whole).hexdigest()[:_DIGEST]
