"""How many tokens a request has: the provider's own count where there is one, else an estimate.

Laws: the estimate of rows is the sum of the estimates of each, so that it can be kept row by row;
more rows never count less. Source: agent loop specification, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from motet.protocols.chat import AssistantMessage, ChatMessage
from motet.protocols.models import ModelResponse, Usage
from motet.protocols.tools import ToolSpec

CHARS_PER_TOKEN = 3


def chars_of(row: ChatMessage) -> int:
    """Code points of what a model is sent of a row: its text and the arguments of its calls."""
    if isinstance(row, AssistantMessage) and row.calls:
        return len(row.text) + sum([len(call.arguments) for call in row.calls])
    return len(row.text)


def estimate_text(text: str) -> int:
    return len(text) // CHARS_PER_TOKEN


def estimate(rows: Iterable[ChatMessage]) -> int:
    """Tokens of these rows, as far as characters tell."""
    return sum([chars_of(row) // CHARS_PER_TOKEN for row in rows])


def overhead(system: str, tools: Sequence[ToolSpec]) -> int:
    """The estimate of what stands around the rows of a request: its system prompt and tools."""
    shown = sum(len(msgspec.json.encode(tool)) for tool in tools)
    return estimate_text(system) + shown // CHARS_PER_TOKEN


def usage_of(response: ModelResponse, prompt_tokens: int) -> Usage:
    """What an answer used: as its provider counted, or the estimate where that counts nothing."""
    if response.usage.total_tokens:
        return response.usage
    said = [response.text, response.thinking, *(call.arguments for call in response.calls)]
    answer = sum(map(len, said)) // CHARS_PER_TOKEN
    return replace(response.usage, input_tokens=prompt_tokens, output_tokens=answer)


class Calibration(msgspec.Struct, frozen=True):
    """What the provider counted for the last request, beside what was estimated of that one.

    Both are of one request, never sums over a run. A count of nothing says nothing.
    """

    estimated: int = 0
    actual: int = 0

    def tokens(self, estimated: int) -> int:
        """Tokens of a request with this estimate.

        What came since is added as estimated; what went since takes its share of the count along.
        """
        if self.estimated <= 0 or self.actual <= 0:
            return estimated
        if estimated >= self.estimated:
            return self.actual + estimated - self.estimated
        return self.actual * estimated // self.estimated


UNCALIBRATED = Calibration()
