"""The words of a project in programs: results of earlier calls, its own values, texts and steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import motet
from motet import testing as mt
from motet.protocols.chat import JsonObject
from motet.testing.scripted import source_of
from motet.testing.stories.printing import source
from motet.testing.stories.references import plain, resolved

shop = motet.Agent("shop")


@shop.tool
async def new_order(item: str) -> dict[str, str]:
    """Make an order."""
    return {"item": item, "order_id": f"o-{len(item)}"}


@shop.tool
async def refund(order: str, amount: int) -> str:
    """Pay an order back."""
    return f"{amount} for {order}"


async def restock(host: motet.Host, user: str, count: int) -> None:
    """A step of the project: it uses the host's API."""
    assert count in (1, 2)
    await host.sessions(principal=motet.Principal(user))


def tick(host: mt.SimulatedHost) -> None:
    """A step of the project that drives the world."""
    host.advance(60)


ORDER: JsonObject = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "amount": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("result", "order", "amount"),
    [
        ({"id": "o-7", "total": 12}, "o-7", 12),
        ({"total": 12, "order": {"nested": "o-8"}, "order_id": "o-7"}, "o-7", 12),
        ("the order o-17 costs 12 euros.", "o-17", 17),
        ("o-17", "o-17", 17),
        ('{"order": "o-9", "amount": 3}', "o-9", 3),
        ([{"key": 4}], "4", 4),
        (5, "5", 5),
        ("it is -3 degrees", "-3", -3),
        (None, "none", 0),
        (True, "none", 0),
    ],
)
def test_a_reference_takes_the_value_that_fits_its_argument(
    result: object, order: str, amount: int
) -> None:
    args: JsonObject = {"order": mt.result_of("made"), "amount": mt.result_of("made")}
    known = [("made", plain(result)), ("other", "o-1")]
    assert resolved(args, ORDER, known) == {"order": order, "amount": amount}


def test_a_reference_names_a_place_an_older_result_and_a_value_without_one() -> None:
    known: list[tuple[str, object]] = [
        ("made", {"items": [{"id": "a"}]}),
        ("made", {"items": [{"id": "b"}, {"id": "c"}]}),
    ]
    places = {
        "items.1.id": "c",
        "items.4.id": "none yet",
        "nothing": "none yet",
    }
    for path, value in places.items():
        args: JsonObject = {"order": mt.result_of("made", path, otherwise="none yet")}
        assert resolved(args, ORDER, known) == {"order": value}
    older: JsonObject = {"order": [{"x": mt.result_of("made", "items.0.id", back=9)}]}
    assert resolved(older, ORDER, known) == {"order": [{"x": "a"}]}
    assert resolved({"order": mt.result_of("never")}, ORDER, known) == {"order": "none"}


@given(st.text(), st.text(), st.integers(0, 9), st.none() | st.integers() | st.text())
def test_a_reference_is_json_and_its_source_makes_it_again(
    tool: str, path: str, back: int, otherwise: object
) -> None:
    """Law: a reference survives a case file and a printed test."""
    made = mt.result_of(tool, path, back=back, otherwise=otherwise)
    assert msgspec.json.decode(msgspec.json.encode(made)) == made
    assert eval(source_of(made), {"mt": mt}) == made


def test_a_script_uses_the_id_that_a_tool_has_given() -> None:
    program = mt.Program(
        [mt.Send("ann", "ann/1: hello", session="ann")],
        {
            "shop": [
                mt.call("new_order", item="pear"),
                mt.call("refund", order=mt.result_of("new_order"), amount=2),
            ]
        },
    )
    with mt.simulated_host() as host:
        program.execute(host, shop)
        mt.check(host)
        assert mt.snapshot(host).rows("ann")[-2].text == "2 for o-4"


def drawn(
    programs: SearchStrategy[mt.BoundProgram],
    count: int,
    *,
    play: bool = False,
    setup: Callable[[motet.Host], None] | None = None,
) -> list[tuple[mt.BoundProgram, mt.Snapshot]]:
    """This many programs, with the ends of those that are played."""
    found: list[tuple[mt.BoundProgram, mt.Snapshot]] = []

    @hypothesis.seed(3)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    )
    @given(programs)
    def draw(program: mt.BoundProgram) -> None:
        seen = mt.Snapshot()
        if play:
            with mt.simulated_host(seed=program.seed, setup=setup) as host:
                program.execute(host)
                seen = mt.snapshot(host)
        found.append((program, seen))

    draw()
    return found


def answers(program: mt.BoundProgram) -> Iterator[mt.Answer]:
    """The answers of all scripts, whatever happens to them."""
    for steps in program.script.values():
        for step in steps:
            inner = getattr(step, "step", step)
            inner = getattr(inner, "answer", inner)
            if isinstance(inner, mt.Answer):
                yield inner


def test_programs_use_values_of_the_project_and_its_texts() -> None:
    programs = mt.programs(
        shop,
        arguments={
            "new_order": {"item": st.sampled_from(["pear", "plum"])},
            "refund": {"order": mt.result_of("new_order"), "amount": 5},
        },
        texts=["where is my order?", "pay it back"],
    )
    calls: Counter[str] = Counter()
    for program, _ in drawn(programs, 40):
        for step in program.steps:
            text = getattr(step, "text", "")
            assert not text or text.endswith(("order?", "back"))
        for answer in answers(program):
            for call in answer.calls:
                if not isinstance(call, tuple):
                    continue
                calls[call[0]] += 1
                if call[0] == "refund":
                    assert call[1] == {"order": mt.result_of("new_order"), "amount": 5}
                else:
                    assert call[1]["item"] in ("pear", "plum")
    assert min(calls["new_order"], calls["refund"]) > 20


def test_without_a_word_of_the_project_calls_repeat_results_and_values() -> None:
    several = references = again = longest = equal = total = 0
    for program, _ in drawn(mt.programs(shop), 60):
        given: set[str] = set()
        for answer in answers(program):
            calls = [call for call in answer.calls if isinstance(call, tuple)]
            total += 1
            several += len(calls) > 1
            equal += len(calls) > 1 and len({repr(call) for call in calls}) == 1
            for _, args in calls:
                references += "$result_of" in str(args)
                again += repr(args) in given
                given.add(repr(args))
        longest = max(longest, *(len(steps) for steps in program.script.values()), 0)
        assert eval(source(program.program), {"mt": mt, **_MAKERS}) == program.program
    assert several > 0.15 * total
    assert equal > 0.02 * total
    assert references > 20
    assert again > 20
    assert longest > 20


_MAKERS = {name: getattr(mt, name) for name in ("call", "cut", "fail", "raw_call", "say", "slow")}


def test_steps_of_the_project_are_drawn_printed_and_stored() -> None:
    rules: list[mt.Rule | Callable[..., object]] = [
        mt.rule(restock, count=st.integers(1, 2), weight=1),
        tick,
    ]
    steps: Counter[str] = Counter()
    for program, _ in drawn(mt.programs(shop, rules=rules), 10, play=True):
        for step in program.steps:
            if isinstance(step, mt.Do):
                steps[step.name] += 1
        case = mt.Case({}, program.program, "", ())
        assert msgspec.json.decode(msgspec.json.encode(case), type=mt.Case) == case
    assert steps["restock"] > steps["tick"] > 0
    bound = mt.Program([mt.Do("restock", "bob", arguments={"count": 2})]).bind(shop, rules=rules)
    assert "program.execute(host, shop, rules=[restock])" in bound.as_test()
    assert "mt.Do('restock', user='bob', arguments={'count': 2})" in bound.as_test()


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: mt.rule(lambda: None), "takes no host"),
        (lambda: mt.rule(restock), r"needs a value for count"),
        (lambda: mt.rule(tick, often=1), "has no parameter 'often'"),
        (lambda: mt.programs(shop, rules=[tick, tick]), "two rules are called 'tick'"),
        (lambda: mt.programs(shop, arguments={"refunds": {}}), "did you mean 'refund'"),
        (lambda: mt.programs(shop, arguments={"refund": {"orders": 1}}), "did you mean 'order'"),
    ],
)
def test_impossible_words_are_refused_with_the_right_ones(
    build: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(motet.ConfigError, match=sentence):
        build()


def test_a_program_with_a_step_that_its_test_does_not_give_is_refused() -> None:
    with (
        mt.simulated_host() as host,
        pytest.raises(motet.ConfigError, match="has no rule 'tick': give rules"),
    ):
        mt.Program([mt.Do("tick")]).execute(host, shop)


def gate(host: motet.Host) -> None:
    @host.on("before_tool", match="refund")
    async def ask(event: motet.BeforeTool) -> motet.Ask:
        return motet.Ask("is this right?")


@pytest.mark.slow
def test_approvals_that_only_a_hook_demands_are_allowed_and_denied() -> None:
    states: Counter[str] = Counter()
    ran = 0
    for _, seen in drawn(mt.programs(shop), 20, play=True, setup=gate):
        states.update(one.state for one in seen.approvals)
        ran += sum(call.tool == "refund" for call in seen.ran)
    assert states["allowed"] > 0
    assert states["denied"] > 0
    assert ran > 0


def echo(name: str, other: str) -> motet.Agent:
    model = mt.FunctionModel(lambda _: f"@{other} go on", name=f"model of {name}")
    return motet.Agent(name, model=model)


room = motet.Room(
    "den",
    members=[echo("ann-bot", "bob-bot"), echo("bob-bot", "ann-bot")],
    speakers=motet.mentions(),
    max_turns=3,
)


def test_members_with_models_of_their_own_are_called_and_answered() -> None:
    asked = replies = 0
    for program, seen in drawn(mt.programs(room, model="own"), 12, play=True):
        asked += bool(seen.asked)
        replies += any(message.reply_to for one in seen.rooms for message in one.messages)
        posts = [step for step in program.steps if isinstance(step, mt.Post)]
        assert all(re.match(r"\w+/\d+: ", post.text) for post in posts)
    assert asked > 5
    assert replies > 0
