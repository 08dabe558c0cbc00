"""A model whose answers are drawn: what it reaches, that runs end, and findings to be pasted."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated, Literal, cast

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.actors.tools.arguments import ArgumentError
from motet.protocols.chat import UserMessage
from motet.protocols.models import Finished, ModelEvent, ModelRequest
from motet.testing import FuzzModel, ScriptedModel, Step, call, cut, fail, raw_call, say, slow
from motet.testing.fuzz_model import BROKEN
from motet.testing.scripted import FAILED, Answer, RawCall


@motet.tool
def add(a: Annotated[int, motet.Range(0, 9)], b: int) -> int:
    """Adds."""
    return a + b


@motet.tool
async def note(kind: Literal["bug", "wish"], text: str, tags: list[str] | None = None) -> str:
    """Notes."""
    await trio.sleep(1)
    return f"{kind}: {text} {tags}"


TOOLS = [add, note]
REQUEST = ModelRequest(
    "fuzz", (UserMessage("go"),), system="be good", tools=tuple(tool.spec for tool in TOOLS)
)


async def stepped(model: FuzzModel, requests: int) -> Sequence[mt.Drawn]:
    """What a model draws for so many equal requests."""
    for _ in range(requests):
        try:
            async with model.request(REQUEST) as events:
                async for _ in events:
                    pass
        except Exception:
            continue
    return model.drawn


def test_every_kind_of_answer_is_reached_within_1000_examples() -> None:
    """An example is one answer, drawn by Hypothesis as in a test of a user.

    With ten answers an example most were copies: Hypothesis makes an example of pieces of the one
    before, and of 2000 answers about 300 differed.
    """

    @given(st.data())
    @settings(max_examples=1_000, phases=[Phase.generate], database=None, derandomize=True)
    def examples(data: st.DataObject) -> None:
        model = FuzzModel(data.draw)
        trio.run(stepped, model, 1, clock=MockClock(autojump_threshold=0))
        for drawn in model.drawn:
            mt.sometimes(drawn.kind)

    examples()
    mt.assert_reached(*FuzzModel.kinds)


def test_without_choices_each_answer_is_a_plain_one() -> None:
    model = FuzzModel([])
    trio.run(stepped, model, 3)
    assert model.script() == [say("done")] * 3


def test_after_its_limit_it_answers_plainly() -> None:
    model = FuzzModel(1, limit=2, weights={"answer": 0})
    trio.run(stepped, model, 5, clock=MockClock(autojump_threshold=0))
    assert [drawn.kind for drawn in model.drawn[2:]] == ["answer"] * 3
    assert "answer" not in {drawn.kind for drawn in model.drawn[:2]}


def test_without_tools_it_calls_only_unknown_ones() -> None:
    async def main() -> None:
        model = FuzzModel(3)
        request = msgspec.structs.replace(REQUEST, tools=())
        for _ in range(100):
            try:
                async with model.request(request) as events:
                    async for _ in events:
                        pass
            except Exception:
                continue
        kinds = {drawn.kind for drawn in model.drawn}
        assert "unknown_tool" in kinds
        assert not kinds & {"valid_call", "wrong_type", "broken_json", "loop"}

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("text", BROKEN)
def test_broken_json_is_not_a_json_object(text: str) -> None:
    with pytest.raises(ArgumentError):
        add.accepts.parse(text)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'broken_json'\?"):
        FuzzModel(1, weights={"broken_jsn": 1})
    with pytest.raises(ValueError, match="weight 0"):
        FuzzModel(1, weights=dict.fromkeys(FuzzModel.kinds, 0))


async def run(model: motet.Model, output_type: type = str) -> motet.RunResult[object]:
    agent = motet.Agent("t", model=model, tools=TOOLS, output_type=output_type)
    async with motet.open_host() as host:
        return await host.run(agent, "go", check=False)


@pytest.mark.parametrize("output_type", [str, list[int]])
def test_every_drawn_run_ends_and_keeps_the_hosts_invariants(output_type: type) -> None:
    """Law: a model can make a run fail, be limited or escalated, and never an internal error."""
    for seed in range(8):
        model = FuzzModel(seed, limit=12)
        result = trio.run(run, model, output_type, clock=MockClock(autojump_threshold=0))
        assert result.status in ("completed", "failed", "limited", "escalated"), model.report()
        assert not isinstance(result.error, motet.Internal), model.report()


def shape(result: motet.RunResult[object]) -> list[object]:
    """A run without the ids that are new each time."""
    return [result.status, *((type(row), row.text[:200]) for row in result.rows)]


@pytest.mark.parametrize("seed", [2, 6, 11])
def test_a_script_of_the_drawn_answers_repeats_the_run(seed: int) -> None:
    model = FuzzModel(seed, limit=10)
    first = trio.run(run, model, clock=MockClock(autojump_threshold=0))
    script = ScriptedModel(model.script())
    second = trio.run(run, script, clock=MockClock(autojump_threshold=0))
    assert shape(first) == shape(second)
    script.assert_complete()


def test_the_source_of_a_script_makes_its_steps() -> None:
    """Law: a step is written as the Python that makes it, and read again from its JSON."""
    names = {
        "ScriptedModel": list, "say": say, "call": call, "cut": cut,
        "fail": fail, "raw_call": raw_call, "slow": slow,
    }  # fmt: skip
    model = FuzzModel(7, limit=400)
    trio.run(stepped, model, 400, clock=MockClock(autojump_threshold=0))
    steps: list[Step] = [
        *model.script(),
        fail(429, retry_after=7, message="wait"),
        fail(kind="connection"),
        fail(),
        call("tool", **{"for": 1, "x-y": "ab" * 500, "z": ["q" * 1000]}),
        say("I add. ") + call("add", a=1) + raw_call("add", "{", id="c1"),
        say(""),
    ]
    source = mt.script_source(steps)
    assert eval(source, names) == steps
    assert max(map(len, source.splitlines())) < 3_000
    assert msgspec.json.decode(msgspec.json.encode(steps), type=list[Step]) == steps


def test_a_finding_shrinks_to_the_one_answer_that_matters() -> None:
    # Whole answers shrink away. Of several calls in one answer, those before the one that matters
    # may stay, since their choices have fixed places.
    single = {"parallel_calls": 0, "duplicate_ids": 0}

    @st.composite
    def models(draw: st.DrawFn) -> FuzzModel:
        model = FuzzModel(draw, weights=single)
        trio.run(stepped, model, 6, clock=MockClock(autojump_threshold=0))
        return model

    def calls_with(model: FuzzModel, name: str) -> bool:
        calls = [
            one[1] if isinstance(one, tuple) else {}
            for step in model.script()
            if isinstance(step, Answer)
            for one in step.calls
        ]
        return any(name in arguments for arguments in calls)

    quiet = settings(
        max_examples=2_000,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow],
    )
    found = find(models(), lambda model: calls_with(model, "tags"), settings=quiet)
    steps = [step for step in found.script() if step != say("done")]
    assert steps == [call("note", kind="bug", text="a", tags=["a"])]


def test_choices_come_from_hypothesis_a_seed_or_a_list() -> None:
    scripts: list[list[Step]] = []
    for source in (5, Random(5)):
        model = FuzzModel(source)
        trio.run(stepped, model, 20, clock=MockClock(autojump_threshold=0))
        scripts.append(model.script())
    assert scripts[0] == scripts[1]
    rows = FuzzModel([b"\x06", b"", b"\x06\x00\x01"])
    trio.run(stepped, rows, 3)
    assert rows.script() == [
        call("add", a=0, b=0), say("done"), call("note", kind="bug", text="a"),
    ]  # fmt: skip
    for wrong in ("5", True, 0.5, None):
        with pytest.raises(TypeError, match="choices come from"):
            FuzzModel(cast("int", wrong))


def test_an_answer_is_cut_after_the_given_number_of_parts() -> None:
    async def main() -> None:
        model = ScriptedModel([cut(say("one two three"), after=2), cut(call("add", a=1), after=9)])
        seen: list[list[ModelEvent]] = []
        async with model.request(REQUEST) as events:
            seen.append([event async for event in events])
        async with model.request(REQUEST) as events:
            seen.append([event async for event in events])
        assert [len(one) for one in seen] == [2, 2]
        assert not any(isinstance(event, Finished) for one in seen for event in one)

    trio.run(main)


def test_a_raw_call_reaches_the_host_as_the_model_wrote_it() -> None:
    async def main() -> None:
        steps: list[Step] = [
            raw_call("add", '{"a": 1, "b": ', id="x"),
            slow(say("sorry"), seconds=30),
        ]
        result = await run(ScriptedModel(steps))
        assert result.text == "sorry"
        assert "ends too early" in result.rows[2].text
        assert trio.current_time() >= 30

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_repr_of_steps() -> None:
    assert repr(say("a") + raw_call("t", "{", id="c")) == "say('a') + raw_call('t', '{', id='c')"
    assert repr(slow(cut(call("t", x=1), after=1), seconds=2)) == (
        "slow(cut(call('t', x=1), after=1), seconds=2)"
    )
    assert RawCall("t", "{}") == raw_call("t", "{}").calls[0]
    assert fail().message == FAILED
