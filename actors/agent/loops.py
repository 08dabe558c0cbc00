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

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Literal, NamedTuple, TypeAlias

import attrs
import msgspec
from msgspec.structs import replace

from motet.actors.agent.stable_json import call_key, digest
from motet.actors.errors.format import told
from motet.protocols.chat import Call
from motet.protocols.tools import CallResult

Kind: TypeAlias = Literal["read", "write", "polling"]
"""``polling``: to be asked again and again is what the tool is for, or it says nothing."""
Detector: TypeAlias = Literal["same_call", "same_result", "reads"]
Level: TypeAlias = Literal["warning", "critical"]

WINDOW = 30
FEW_DISTINCT = 0.6


class Bounds(NamedTuple):
    """From which count on a detector warns, and from which it is critical."""

    warning: int
    critical: float

    def level(self, count: int) -> Level | None:
        if count >= self.critical:
            return "critical"
        return "warning" if count >= self.warning else None


SAME_CALL = Bounds(3, 5)
SAME_RESULT = Bounds(4, 6)
READS_OF_FEW = Bounds(8, 12)
READS_OF_MANY = Bounds(24, inf)


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


@attrs.define
class Loops:
    """The calls of one run, as far as a loop would show in them.

    Attributes:
        kinds: what tools are, by name, as :func:`kind_of` reads it.
    """

    kinds: Mapping[str, Kind] = attrs.field(factory=dict[str, Kind])
    _calls: deque[str] = attrs.field(factory=lambda: deque[str](maxlen=WINDOW), init=False)
    _results: deque[str] = attrs.field(factory=lambda: deque[str](maxlen=WINDOW), init=False)
    _reads: int = attrs.field(default=0, init=False)
    _targets: set[str] = attrs.field(factory=set[str], init=False)
    _warned: bool = attrs.field(default=False, init=False)

    @property
    def reads(self) -> int:
        """Reads since the last write."""
        return self._reads

    @property
    def distinct(self) -> int:
        """Different calls among :attr:`reads`."""
        return len(self._targets)

    def batch(self, pairs: Iterable[tuple[Call, CallResult]]) -> Finding | None:
        """What to say of the calls of one answer: the worst that is found, at most one thing."""
        found = [finding for pair in pairs for finding in self.saw(*pair)]
        if not found:
            return None
        worst = max(found, key=lambda one: (one.level == "critical", one.count))
        worst = worst if self._warned else replace(worst, level="warning")
        self._warned = True
        return worst

    def saw(self, call: Call, result: CallResult) -> Sequence[Finding]:
        """Take one call and its result, as its tool gave it; every detector's word on it."""
        kind = kind_of(call, self.kinds)
        if kind == "polling":
            return ()
        key, text = call_key(call.name, call.arguments), _result_key(result)
        self._calls.append(f"{key} {text}")
        self._results.append(f"{call.name} {text}")
        self._count_read(kind, key)
        found = (
            self._same_call(call.name),
            # That a write was done is said in the same words every time.
            None if kind == "write" and result.ok else self._same_result(call.name),
            self._only_reads(call.name),
        )
        return tuple(finding for finding in found if finding)

    def _same_call(self, tool: str) -> Finding | None:
        count = self._calls.count(self._calls[-1])
        level = SAME_CALL.level(count)
        return Finding("same_call", level, tool, count) if level else None

    def _same_result(self, tool: str) -> Finding | None:
        count = self._results.count(self._results[-1])
        level = SAME_RESULT.level(count)
        return Finding("same_result", level, tool, count) if level else None

    def _only_reads(self, tool: str) -> Finding | None:
        few = self.distinct <= FEW_DISTINCT * self._reads
        level = (READS_OF_FEW if few else READS_OF_MANY).level(self._reads)
        return Finding("reads", level, tool, self._reads, self.distinct) if level else None

    def _count_read(self, kind: Kind, key: str) -> None:
        if kind == "write":
            self._reads = 0
            self._targets.clear()
        else:
            self._reads += 1
            self._targets.add(key)


def kind_of(call: Call, kinds: Mapping[str, Kind]) -> Kind:
    """What a call does, as far as its tool's name tells; a tool that is not named reads.

    A tool whose calls differ has an entry ``name:action`` for each of its ``action`` arguments,
    and ``name:`` for a call without one. ``prefix*`` stands for all names that begin so.
    """
    names = [call.name]
    if f"{call.name}:" in kinds:
        names.insert(0, f"{call.name}:{_action(call)}")
    for name in names:
        if name in kinds:
            return kinds[name]
    return _kind_of_prefix(call.name, kinds)


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


def _result_key(result: CallResult) -> str:
    """Equal for equal results; the id under which an error was stored makes no difference."""
    return digest((result.outcome, ":", result.text if result.ok else told(result.text)[0]))
