"""Plan and progress: ledgers, stalls, new plans, and rounds that end whatever models say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import motet
from motet.protocols.errors import ConfigError
from motet.teams.plan import Ledger, Orchestration, Progress, read_progress
from tests.actors.rooms.talk import Speaks, agent, model_of, text_of

WORKERS = ("coder", "surfer")
RULES = Orchestration("p", "t", "r", WORKERS, max_stalls=2, max_plans=2)


def ledger(done: bool, loop: bool, progress: bool, worker: str) -> str:
    lines = (("done", done), ("loop", loop), ("progress", progress))
    said = "\n".join(f"{name}: {'yes' if given else 'no'}" for name, given in lines)
    return f"{said}\nnext: {worker}\ninstruction: go on"


ledgers = st.builds(
    ledger, st.booleans(), st.booleans(), st.booleans(), st.sampled_from((*WORKERS, "nobody"))
) | st.sampled_from(("", "done: maybe", "I think coder should go on"))


@given(st.lists(ledgers, min_size=60, max_size=60))
def test_a_round_ends_whatever_the_tracker_says(texts: list[str]) -> None:
    """Law: no more plans than allowed, never as many stalls in one plan, a ledger after each step,
    and one final answer; without progress it ends within a known number of turns.
    """
    dealt, said, state = iter(texts), list[tuple[str, str]](), Ledger()
    while speaker := RULES.speaker(state):
        text = next(dealt, ledger(True, False, True, "")) if speaker == "t" else "text"
        before = state
        said.append((speaker, text))
        state = RULES.after(state, speaker, text)
        assert state == RULES.ledger(said), "it follows from what was said"
        assert state.plans <= RULES.max_plans
        assert state.stalls <= RULES.max_stalls
        if before.phase == "work":
            assert state.phase == "track"
        if state.phase == "work":
            assert state.worker in WORKERS
    assert state.phase == "over"
    assert [author for author, _ in said].count("r") == 1
    assert said[0][0] == "p"


@given(st.lists(st.sampled_from((*WORKERS, "p", "t", "r", "x")), max_size=30))
def test_messages_that_do_not_belong_there_change_nothing(authors: list[str]) -> None:
    state = Ledger()
    for author in authors:
        after = RULES.after(state, author, "text")
        if author != RULES.speaker(state) and (author, state.phase) != ("t", "work"):
            assert after == state
        state = after


def test_stalls_lead_to_a_new_plan_and_at_last_to_the_answer() -> None:
    stuck = ledger(False, False, False, "coder")
    said = [("p", "plan"), ("t", stuck)]
    assert RULES.ledger(said) == Ledger("work", 1, 0, 1, "coder")
    said += [("coder", "hm"), ("t", stuck)]
    assert RULES.ledger(said) == Ledger("plan", 1, 1, 2)
    said += [("p", "another"), ("t", ledger(False, False, True, "surfer"))]
    assert RULES.ledger(said) == Ledger("work", 2, 1, 0, "surfer")
    said += [("surfer", "hm"), ("t", stuck), ("coder", "hm"), ("t", stuck)]
    assert RULES.ledger(said).phase == "report"


def test_a_ledger_is_read_as_models_write_it() -> None:
    text = "**done**: No\n- loop: false\n* Progress: yes, a lot\nNext: @Coder.\nInstruction: run it"
    assert read_progress(text, WORKERS) == Progress(False, False, True, "coder", "run it")
    assert read_progress("done: yes", WORKERS) == Progress(True, False, False)
    assert read_progress("next: somebody", WORKERS) is None
    assert read_progress("nothing", WORKERS) is None


async def test_a_team_works_step_by_step() -> None:
    coder, surfer = agent("coder", "it is 42"), agent("surfer", "found a page")
    lead = Speaks("")
    dealt = iter(
        (
            "facts and plan",
            ledger(False, False, True, "surfer"),
            ledger(False, False, True, "coder"),
            ledger(True, False, True, ""),
            "The answer is 42.",
        )
    )
    lead.script = lambda _: next(dealt)
    room = motet.plan_and_progress("lab", [coder, surfer], model=lead)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        result = await opened.run("what is it?", user="alice")
    roles = [one.author.removeprefix("lab.") for one in result.messages]
    assert roles == ["planner", "tracker", "surfer", "tracker", "coder", "tracker", "reporter"]
    assert (result.text, result.reason) == ("The answer is 42.", "nobody to speak")
    assert "instruction: go on" in model_of(surfer).told[0]
    assert "found a page" in text_of(lead.requests[2])


async def test_a_worker_that_passes_comes_back_to_the_tracker() -> None:
    coder = agent("coder", "PASS")
    lead = Speaks("")
    dealt = iter(
        ("plan", ledger(False, False, True, "coder"), ledger(True, False, True, ""), "End.")
    )
    lead.script = lambda _: next(dealt)
    room = motet.plan_and_progress("lab", [coder], model=lead)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        result = await opened.run("what is it?", user="alice")
    assert [one.author for one in result.messages][-2:] == ["lab.tracker", "lab.reporter"]
    assert len(model_of(coder).requests) == 1


def test_impossible_limits_and_no_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="no workers"):
        motet.plan_and_progress("lab", [], model="demo")
    with pytest.raises(ConfigError, match="at least 1"):
        motet.plan_and_progress("lab", ["a"], model="demo", max_stalls=0)
