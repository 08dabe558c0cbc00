"""Whether a run goes in circles: three detectors that look at its calls and their results.

Laws: the same call with the same result, seen again within the last 30 calls, is a warning from
the third and critical from the fifth time on; the same result of one tool, whatever its arguments,
from the fourth and sixth; a row of calls that only read from the 8th and 12th, while at most 60 %
of them are different. Many different reads are work: they are remarked on from the 24th, and never
critical. Tools that poll are never looked at. Nobody is closed unwarned: what is critical in the
first batch that shows it is a warning there.
Source: agent loop specification, section 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from motet.actors.errors.classify import parse_failure_text
from motet.protocols.chat import ANSWERS, Call
from motet.protocols.stable_json import call_key
from motet.protocols.tools import CallResult

Kind: TypeAlias = Literal["read", "write", "polling"]
"""``polling``: to be asked again and again is what the tool is for, or it says nothing."""
_CallKey: TypeAlias = tuple[str, str]
"""Tool and arguments, as the model wrote them."""
_ResultKey: TypeAlias = tuple[str, str, str]
"""Tool, outcome and text."""
Detector: TypeAlias = Literal["same_call", "same_result", "reads"]
Level: TypeAlias = Literal["warning", "critical"]

WINDOW = 30
FEW_DISTINCT = 0.6


class Thresholds(NamedTuple):
    """From which count on a detector warns, and from which it is critical."""

    warning: int
    critical: float

    def level(self, count: int) -> Level | None:
        if count >= self.critical:
            return "critical"
        return "warning" if count >= self.warning else None


SAME_CALL = Thresholds(3, 5)
SAME_RESULT = Thresholds(4, 6)
READS_OF_FEW = Thresholds(8, 12)
READS_OF_MANY = Thresholds(24, inf)


class Finding(msgspec.Struct, frozen=True):
    """One detector's word on a run, as of one call.

    Attributes:
        count: equal calls, equal results, or reads in a row.
        distinct: of ``reads``: how many different ones are among them.
    """

    detector: Detector
    level: Level
    tool: str
    count: int
    distinct: int = 0


class LoopDetector(msgspec.Struct, eq=False):
    """The calls of one run, as far as a loop would show in them.

    Attributes:
        kinds: what tools are, by name, as :func:`kind_of` reads it.
    """

    kinds: Mapping[str, Kind] = {}
    _calls: list[_CallKey] = []
    _results: list[_ResultKey] = []
    _reads: list[_CallKey] = []
    _keys: dict[_CallKey, str] = {}
    _warned: bool = False

    @property
    def reads(self) -> int:
        """Reads since the last write."""
        return len(self._reads)

    @property
    def distinct(self) -> int:
        """Different calls among :attr:`reads`."""
        return len(set(map(self._key, self._reads)))

    def observe_batch(self, pairs: Iterable[tuple[Call, CallResult]]) -> Finding | None:
        """What to say of the calls of one answer: the worst that is found, at most one thing."""
        found = [finding for pair in pairs for finding in self.observe(*pair)]
        if not found:
            return None
        worst = max(found, key=lambda one: (one.level == "critical", one.count))
        worst = worst if self._warned else replace(worst, level="warning")
        self._warned = True
        return worst

    def observe(self, call: Call, result: CallResult) -> Sequence[Finding]:
        """Take one call and its result, as its tool gave it; every detector's word on it."""
        kind = kind_of(call, self.kinds)
        if kind == "polling":
            return ()
        self._calls.append((call.name, call.arguments))
        self._results.append(_result_key(result))
        if len(self._calls) > WINDOW:
            del self._calls[0], self._results[0]
        if kind == "write":
            self._reads.clear()
        else:
            self._reads.append(self._calls[-1])
        same = self._results.count(self._results[-1])
        if same < SAME_CALL.warning and len(self._reads) < READS_OF_FEW.warning:
            return ()
        # That a write was done is said in the same words every time.
        silent = kind == "write" and result.ok
        found = (
            self._same_call(call.name) if same >= SAME_CALL.warning else None,
            None if silent else self._same_result(call.name, same),
            self._only_reads(call.name) if self.reads >= READS_OF_FEW.warning else None,
        )
        return tuple(finding for finding in found if finding)

    def _same_call(self, tool: str) -> Finding | None:
        key, result = self._key(self._calls[-1]), self._results[-1]
        pairs = zip(self._calls, self._results, strict=True)
        count = sum(got == result and self._key(asked) == key for asked, got in pairs)
        level = SAME_CALL.level(count)
        return Finding("same_call", level, tool, count) if level else None

    def _same_result(self, tool: str, count: int) -> Finding | None:
        level = SAME_RESULT.level(count)
        return Finding("same_result", level, tool, count) if level else None

    def _only_reads(self, tool: str) -> Finding | None:
        reads, distinct = self.reads, self.distinct
        few = distinct <= FEW_DISTINCT * reads
        level = (READS_OF_FEW if few else READS_OF_MANY).level(reads)
        return Finding("reads", level, tool, reads, distinct) if level else None

    def _key(self, asked: _CallKey) -> str:
        """Equal for calls that mean the same; made only of those that may be in a loop."""
        if asked not in self._keys:
            self._keys[asked] = call_key(*asked)
        return self._keys[asked]


def kind_of(call: Call, kinds: Mapping[str, Kind]) -> Kind:
    """What a call does, as far as its tool's name tells; a tool that is not named reads.

    A tool whose calls differ has an entry ``name:action`` for each of its ``action`` arguments,
    and ``name:`` for a call without one. ``prefix*`` stands for all names that begin so.
    """
    name = call.name
    kind = kinds.get(f"{name}:{_action(call)}") if f"{name}:" in kinds else None
    return kind or kinds.get(name) or _kind_of_prefix(name, kinds)


def _kind_of_prefix(tool: str, kinds: Mapping[str, Kind]) -> Kind:
    prefixes = [name for name in kinds if name[-1:] == "*" and tool.startswith(name[:-1])]
    if not prefixes:
        return "read"
    return kinds[max(prefixes, key=len)]


def _action(call: Call) -> str:
    try:
        fields = msgspec.json.decode(call.arguments, type=_Action)
    except (msgspec.DecodeError, RecursionError):
        return ""
    return fields.action


class _Action(msgspec.Struct):
    action: str = ""


def _result_key(result: CallResult) -> _ResultKey:
    """Equal for equal results; the id under which an error was stored makes no difference."""
    text = result.text if result.outcome in ANSWERS else parse_failure_text(result.text)[0]
    return result.name, result.outcome, text


# What the host says to the model between its requests: short, in brackets, never stored.
#
# Every text is one that a model can act on: what is the matter, and what to do now.


CONTINUE = (
    "[System: your answer was cut off at its greatest length. Go on exactly where it ends, without "
    "repeating anything and without a word about the cut.]"
)
BEGIN_AGAIN = (
    "[System: your answer was cut off at its greatest length before anything of it was said. "
    "Give a shorter one.]"
)
CUT_CALL = (
    "[Not run: your answer was cut off at its greatest length inside this call. "
    "Make the call again with shorter arguments, or split the work into several calls.]"
)


def before_request(
    iteration: int, turns: int, closing: str, finding: Finding | None = None, first: str = ""
) -> str:
    """All that is said before a request: ``first``, then a loop that was found, then the limits.

    ``closing``: the limit for which tools are withdrawn.
    """
    circle = loop_warning(finding, closing=bool(closing)) if finding else ""
    limit = closing_hint(closing) if closing and not first else left_hint(iteration, turns)
    return "\n".join(filter(None, (first, circle, limit)))


def left_hint(iteration: int, turns: int) -> str:
    """Said at the first request after 70 % and after 90 % of all are used, else empty."""
    used = iteration - 1
    if used < 2 or used not in (turns * 7 // 10, turns * 9 // 10):
        return ""
    return f"[System: {turns - used} of {turns} model requests are left in this run.]"


def closing_hint(limit: str) -> str:
    """For the last request, which offers no tools."""
    return (
        f"[System: the limit of this run is reached ({limit}). "
        "No tools are available any more: give your final answer now, with what you have.]"
    )


def not_run(limit: str) -> str:
    """The result of a call that a limit forbids."""
    return f"[Not run: the limit of this run is reached ({limit})]"


def loop_warning(finding: Finding, *, closing: bool = False) -> str:
    """What goes in circles; and, unless it is too late for that, what to do instead."""
    way = (
        " This does not lead on. Try another way, other arguments or another tool; "
        "or answer with what you have, and say what is missing."
    )
    return f"[System: {_circle(finding)}{'' if closing else way}]"


def _circle(finding: Finding) -> str:
    tool, count = finding.tool, finding.count
    match finding.detector:
        case "same_call":
            return f"{tool} was called {count} times with the same arguments and the same result."
        case "same_result":
            return f"{tool} gave the same result {count} times, whatever its arguments were."
        case "reads":
            return (
                f"the last {count} calls only looked ({finding.distinct} different ones, "
                f"{tool} the last of them)."
            )
