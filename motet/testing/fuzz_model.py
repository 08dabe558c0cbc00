"""A model with drawn answers: valid, slightly wrong, broken, or missing.

Each kind of behaviour has a drawer, a pure function from the request and the choices to a step, or
to None when the request does not allow it (there is no unknown argument without a tool). The first
choice is always the simplest of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec

from motet.actors.agents.registry import ALWAYS_OFFERED
from motet.protocols.errors import listing, nearest
from motet.protocols.models import ModelRequest
from motet.protocols.schema_values import Pick
from motet.protocols.tools import ToolSpec
from motet.testing.choices import Source, choices_of
from motet.testing.models import plain_answer
from motet.testing.schemas import DEFECTS, Defect, arguments, near_arguments
from motet.testing.scripted import Answer, Step, StepModel, call, cut, fail, raw_call, say, slow

T = TypeVar("T")
Drawer: TypeAlias = Callable[[ModelRequest, Pick], Step | None]

TEXT = "done"
MOST_CALLS = 5
SELDOM = 8
HUGE = (20_000, 200_000, 1_000_000)
"""Characters of a huge answer."""
SAME_ID = "call_1"
WAITS = (None, 1.0, 7.0, 0.0, 60.0, 600.0)
"""Delays that a provider asks for, in seconds; the last is longer than the retry policy's limit."""
PAUSES = (1.0, 30.0, 300.0)

BROKEN = (
    '{"a": }',
    "{'a': 1}",
    '{"a": 1,}',
    "not JSON",
    "[1, 2]",
    "7",
    '{"a": 1} {"a": 2}',
    '{"a": NaN}',
    '{"a": "\\ud800"}',
    "[" * 2_000,
    '{"a": "\x00"}',
)
_NAMES = ("no_such_tool", "", "rm -rf", "x" * 200, "functions.{}", "{}s", "{}_", "Ünbekannt")


def one_of(options: Sequence[T], pick: Pick) -> T:
    return options[pick(len(options))]


def offered(request: ModelRequest, pick: Pick) -> Sequence[ToolSpec]:
    """The agent's own tools; rarely all tools, with those that every host offers."""
    own = [tool for tool in request.tools if tool.name not in ALWAYS_OFFERED]
    return request.tools if not own or pick(SELDOM) == SELDOM - 1 else own


def answer(request: ModelRequest, _pick: Pick) -> Step:
    """A plain answer, which ends the turn."""
    return plain_answer(request, TEXT)


def valid_call(request: ModelRequest, pick: Pick) -> Answer | None:
    """A call with valid arguments."""
    tools = offered(request, pick)
    if not tools:
        return None
    tool = one_of(tools, pick)
    return call(tool.name, **arguments(tool.parameters, pick))


def near_valid_call(defect: Defect, request: ModelRequest, pick: Pick) -> Step | None:
    """A call with one defect in its arguments."""
    tools = list(offered(request, pick))
    while tools:
        tool = tools.pop(pick(len(tools)))
        wrong = near_arguments(tool.parameters, defect, pick)
        if wrong is not None:
            return call(tool.name, **wrong)
    return None


def unknown_tool(request: ModelRequest, pick: Pick) -> Step:
    """A call of a tool that is not offered; its name is similar, different or empty."""
    known = [tool.name for tool in request.tools]
    near = one_of(known, pick) if known else "tool"
    names = [name.format(near) for name in _NAMES]
    return call(one_of([name for name in names if name not in known], pick))


def broken_json(request: ModelRequest, pick: Pick) -> Step | None:
    """A call whose arguments are not a JSON object."""
    tools = offered(request, pick)
    return raw_call(one_of(tools, pick).name, one_of(BROKEN, pick)) if tools else None


def truncated_json(request: ModelRequest, pick: Pick) -> Step | None:
    """A call with truncated arguments, in an answer that ends normally."""
    tools = offered(request, pick)
    if not tools:
        return None
    tool = one_of(tools, pick)
    text = _json(tool, pick)
    return raw_call(tool.name, text[: 1 + pick(min(len(text) - 1, 256))])


def duplicate_ids(request: ModelRequest, pick: Pick) -> Step | None:
    """Calls with one id for all, which earlier answers may have used, too."""
    return _several(request, pick, SAME_ID)


def parallel_calls(request: ModelRequest, pick: Pick) -> Step | None:
    """Several calls in one answer, possibly of the same tool."""
    return _several(request, pick, "")


def empty(_request: ModelRequest, _pick: Pick) -> Step:
    """An answer without text and calls."""
    return say("")


def huge(_request: ModelRequest, pick: Pick) -> Step:
    """A text of up to a million characters."""
    return say("motet " * (one_of(HUGE, pick) // 6))


def echo(request: ModelRequest, pick: Pick) -> Step:
    """A repetition of the input: the last message or the system prompt."""
    last = request.messages[-1].text if request.messages else ""
    return say((last, request.system)[pick(2)] or TEXT)


def cut_short(request: ModelRequest, pick: Pick) -> Step:
    """A stream that ends in the middle."""
    whole = valid_call(request, pick) if pick(2) else None
    return cut(whole or say("the answer is cut off here"), after=pick(8))


def rate_limit(_request: ModelRequest, pick: Pick) -> Step:
    """A rate limit, with or without the time to wait."""
    return fail(429, retry_after=one_of(WAITS, pick))


def server_error(_request: ModelRequest, pick: Pick) -> Step:
    """An error of the provider, with or without the time to wait."""
    status = one_of((500, 503, 529, 502, 408), pick)
    return fail(status, retry_after=one_of(WAITS[:3], pick))


def connection(_request: ModelRequest, pick: Pick) -> Step:
    """No connection to the provider, or no answer."""
    return fail(kind=one_of(("connection", "timeout"), pick))


def refusal(_request: ModelRequest, pick: Pick) -> Step:
    """A failure that a retry cannot fix: the request is too long or invalid."""
    return fail(400, kind=one_of(("bad_request", "context_exhausted"), pick))


def late(request: ModelRequest, pick: Pick) -> Step:
    """A valid answer after a delay."""
    found = valid_call(request, pick) if pick(2) else None
    return slow(found or plain_answer(request, TEXT), seconds=one_of(PAUSES, pick))


def _several(request: ModelRequest, pick: Pick, id: str) -> Answer | None:
    calls = Answer()
    for _ in range(2 + pick(MOST_CALLS - 1)):
        tools = offered(request, pick)
        if not tools:
            return None
        tool = one_of(tools, pick)
        if id:
            calls += raw_call(tool.name, _json(tool, pick), id=id)
        else:
            calls += call(tool.name, **arguments(tool.parameters, pick))
    return calls


def _json(tool: ToolSpec, pick: Pick) -> str:
    return msgspec.json.encode(arguments(tool.parameters, pick)).decode()


DRAWERS: Mapping[str, tuple[int, Drawer]] = {
    "answer": (6, answer),
    "valid_call": (12, valid_call),
    "parallel_calls": (6, parallel_calls),
    "loop": (2, valid_call),
    **{defect: (3, partial(near_valid_call, defect)) for defect in DEFECTS},
    "unknown_tool": (3, unknown_tool),
    "broken_json": (3, broken_json),
    "truncated_json": (3, truncated_json),
    "duplicate_ids": (3, duplicate_ids),
    "empty": (2, empty),
    "echo": (2, echo),
    "cut": (3, cut_short),
    "rate_limit": (2, rate_limit),
    "server_error": (2, server_error),
    "connection": (2, connection),
    "refusal": (1, refusal),
    "slow": (2, late),
    "huge": (1, huge),
}
"""The kinds of behaviour, the simplest first, each with its weight and how it is drawn."""


PLAIN = ("answer", None)
LOOPS = 12
"""The most repetitions of a call in a loop."""


class Drawn(msgspec.Struct, frozen=True):
    """One drawn answer: the number of its request, its kind and its step."""

    number: int
    kind: str
    step: Step

    def __str__(self) -> str:
        return f"{self.number:>3} {self.kind:<15} {self.step!r}"


class FuzzModel(StepModel):
    """Draws each answer, with calls of the tools that the request offers.

    ``source`` makes the choices: Hypothesis' ``draw`` or ``data.draw``, so that a finding shrinks;
    a ``random.Random`` or a seed; or earlier choices: a list with a ``bytes`` for each answer, or
    of numbers. The first choice is a plain answer, and so is every answer after ``limit`` requests,
    so that runs end. ``weights`` changes how often a kind is drawn; 0 is never.

    Attributes:
        kinds: the names of all kinds of answers.
        drawn: all answers so far.
    """

    kinds = tuple(DRAWERS)

    def __init__(
        self,
        source: Source,
        *,
        limit: int = 100,
        weights: Mapping[str, int] | None = None,
        name: str = "fuzz",
    ) -> None:
        super().__init__(name)
        self.drawn: list[Drawn] = []
        self._choices = choices_of(source)
        self._limit = limit
        self._weights = {kind: weight for kind, (weight, _) in DRAWERS.items()}
        self._loop: Step | None = None
        self._rounds = 0
        for kind, weight in (weights or {}).items():
            if kind not in DRAWERS:
                near = nearest(kind, self.kinds)
                hint = f"did you mean {near!r}?" if near else f"there are {listing([*self.kinds])}"
                raise ValueError(f"no kind {kind!r} of answers; {hint}")
            self._weights[kind] = weight
        if not any(self._weights.values()):
            raise ValueError("every kind of answers has the weight 0: nothing can be drawn")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {len(self.drawn)} drawn>"

    def script(self) -> list[Step]:
        """The drawn steps: a :class:`ScriptedModel` of them repeats the run."""
        return [one.step for one in self.drawn]

    def report(self) -> str:
        """The drawn answers, one line for each request."""
        return "\n".join(map(str, self.drawn))

    def _step(self, request: ModelRequest, /) -> Step:
        number = len(self.requests)
        kind, step = self._next(request) if number <= self._limit else PLAIN
        step = step or plain_answer(request, TEXT)
        self.drawn.append(Drawn(number, kind, step))
        return step

    def _next(self, request: ModelRequest) -> tuple[str, Step | None]:
        pick = self._choices()
        if self._loop is not None and self._rounds:
            self._rounds -= 1
            return "loop", self._loop
        kind = self._kind(pick)
        step = DRAWERS[kind][1](request, pick)
        if step is None:
            return PLAIN
        if kind == "loop":
            self._loop, self._rounds = step, 1 + pick(LOOPS)
        return kind, step

    def _kind(self, pick: Pick) -> str:
        place = pick(sum(self._weights.values()))
        for kind, weight in self._weights.items():
            place -= weight
            if place < 0:
                return kind
        raise AssertionError("a choice is less than the sum of the weights")
