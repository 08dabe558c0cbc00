"""A stored run once more: the same where nothing has changed, and nothing is touched by it."""

from collections.abc import Callable, Sequence

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet.actors.hosting.replay import Replay
from motet.protocols.errors import ConfigError, NotFound, UnknownName
from motet.protocols.sessions import Principal
from motet.testing import ScriptedModel, call, fail, say
from motet.testing.scripted import Step

BROKEN = call("lookup", key="broken")
FOUND = call("lookup", key="a")
HANGS = call("lookup", key="hang")
SESSION = "user:talk"


class Shelf:
    """A tool with an effect: it counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.suffix = ""
        self.hangs = trio.Event()

    async def lookup(self, key: str) -> str:
        """Look up a key."""
        self.asked += 1
        if key == "broken":
            raise ValueError("the shelf is broken")
        if key == "hang":
            self.hangs.set()
            await trio.sleep_forever()
        return f"book {key}{self.suffix}"


def agent_of(shelf: Shelf, *steps: Step, **options: object) -> motet.Agent:
    model = ScriptedModel(steps)
    agent = motet.Agent("helper", model=model, tools=[shelf.lookup])
    for name, value in options.items():
        setattr(agent, name, value)
    return agent


async def replayed(
    shelf: Shelf, *steps: Step, change: Callable[[motet.Agent], None] = lambda _: None
) -> Replay:
    """A run of these steps, its agent changed, and the run again."""
    agent = agent_of(shelf, *steps)
    async with motet.open_host() as host:
        run = await host.run(agent, "go", session=SESSION, check=False)
        change(agent)
        return await host.replay(run.run_id)


async def test_a_replay_does_the_same_and_runs_no_tool() -> None:
    shelf = Shelf()
    steps = [say("I look.") + FOUND + BROKEN, BROKEN, say("found")]
    done = await replayed(shelf, *steps)
    assert done.rows.now == done.rows.then
    assert done.events.now == done.events.then
    assert done.same
    assert "result lookup (done) book a" in done.rows.now
    assert sum("[Advice: this call has failed 2 times" in line for line in done.rows.now) == 1
    assert shelf.asked == 3
    assert done.result.output == "found"


async def test_a_replay_has_the_rows_before_it_and_leaves_the_session_as_it_was() -> None:
    shelf = Shelf()
    agent = agent_of(shelf, say("one"), FOUND, say("two"), say("three"))
    async with motet.open_host() as host:
        await host.run(agent, "first", session=SESSION)
        run = await host.run(agent, "second", session=SESSION)
        await host.run(agent, "third", session=SESSION)
        before = (await host.history(SESSION), await host.runs(), host.status().live_sessions)
        done = await host.replay(run.run_id)
        assert (await host.history(SESSION), await host.runs(), host.status().live_sessions) == (
            before
        )
    assert done.same
    assert [row.text for row in done.journal.before] == ["first", "one"]


async def test_differences_of_a_changed_agent_are_reported() -> None:
    def be_strict(agent: motet.Agent) -> None:
        agent.limits = motet.Limits(tool_calls=1)

    done = await replayed(Shelf(), FOUND, call("lookup", key="b"), say("two"), change=be_strict)
    assert not done.same
    changes = {change.line: change.mark for change in done.rows.changes()}
    assert changes["result lookup (done) book a"] == " "
    assert changes["result lookup (done) book b"] == "-"
    assert "+" in changes.values()


@pytest.mark.parametrize(
    "steps",
    [
        [fail(401, message="wrong key")],
        [FOUND, fail(kind="content_filter", message="SAFETY")],
        [FOUND, fail(400, message="no such model")],
        [FOUND] * 30,
    ],
    ids=["no answer", "a refusal", "a failure after a call", "a limit"],
)
async def test_a_run_that_did_not_complete_ends_the_same_way(steps: Sequence[Step]) -> None:
    done = await replayed(Shelf(), *steps)
    assert done.rows.now == done.rows.then
    assert done.same
    assert done.result.status == done.journal.info.status != "completed"


@pytest.mark.parametrize("steps", [[HANGS], [FOUND, HANGS]])
async def test_a_run_that_was_stopped_is_stopped_at_the_same_place(steps: Sequence[Step]) -> None:
    shelf = Shelf()
    agent = agent_of(shelf, *steps)
    async with motet.open_host() as host, trio.open_nursery() as nursery:
        ended = trio.Event()

        async def run() -> None:
            await host.run(agent, "go", session=SESSION, check=False)
            ended.set()

        nursery.start_soon(run)
        await shelf.hangs.wait()
        await host.stop(session=SESSION)
        await ended.wait()
        (info,) = await host.runs()
        done = await host.replay(info.run_id)
    assert info.status == "cancelled"
    assert done.rows.now == done.rows.then
    assert done.same


async def test_live_tools_run_and_their_new_results_are_reported() -> None:
    shelf = Shelf()
    agent = agent_of(shelf, FOUND, say("found"))
    async with motet.open_host() as host:
        run = await host.run(agent, "go", session=SESSION)
        shelf.suffix = ", second edition"
        done = await host.replay(run.run_id, tools="live")
    assert shelf.asked == 2
    assert [(c.mark, c.line) for c in done.rows.changes() if c.mark != " "] == [
        ("-", "result lookup (done) book a"),
        ("+", "result lookup (done) book a, second edition"),
    ]


async def test_a_live_call_that_needs_an_approval_is_denied() -> None:
    paid: list[int] = []

    def pay(euros: int) -> str:
        """Pay."""
        paid.append(euros)
        return "paid"

    model = ScriptedModel([call("pay", euros=3), say("done")])
    agent = motet.Agent("helper", model=model, tools=[motet.tool(pay, approval=True)])
    async with motet.open_host() as host:
        async with host.stream(agent, "pay", session=SESSION) as run:
            async for event in run:
                if isinstance(event, motet.ApprovalRequested):
                    await host.approve(event.id, "allow-once")
        assert (await host.replay(run.id)).same
        live = await host.replay(run.id, tools="live")
    assert paid == [3]
    assert any(line.startswith("result pay (denied)") for line in live.rows.now)


async def test_another_model_gets_the_results_of_then_and_nothing_else() -> None:
    shelf = Shelf()
    agent = agent_of(shelf, FOUND, say("found"))
    other = ScriptedModel([FOUND + call("lookup", key="z"), say("found more")])
    async with motet.open_host() as host:
        run = await host.run(agent, "go", session=SESSION)
        done = await host.replay(run.run_id, model=other)
    assert shelf.asked == 1
    assert "result lookup (done) book a" in done.rows.now
    assert any("this run made no such call then" in line for line in done.rows.now)
    assert done.result.output == "found more"


async def test_a_text_that_steered_the_run_steers_it_again() -> None:
    async with motet.open_host() as host:

        async def look(key: str) -> str:
            """Look."""
            await host.send("only red ones", session=SESSION)
            return key

        model = ScriptedModel([call("look", key="a"), say("red")])
        agent = motet.Agent("helper", model=model, tools=[look])
        run = await host.run(agent, "go", session=SESSION)
        done = await host.replay(run.run_id)
    assert "injected: only red ones" in done.rows.then
    assert done.rows.now == done.rows.then


async def test_a_run_that_was_handed_on_begins_with_its_first_agent_again() -> None:
    writer = motet.Agent("writer", model=ScriptedModel([say("written")], name="second"))
    model = ScriptedModel([call("transfer_to_writer")])
    async with motet.open_host() as host:
        lead = motet.Agent("lead", model=model, handoffs=[writer])
        done = await host.replay((await host.run(lead, "go", session=SESSION)).run_id)
    assert done.rows.now == done.rows.then
    assert done.events.now == done.events.then
    assert done.result.text == "written"


async def test_an_output_of_a_declared_type_is_made_again() -> None:
    model = ScriptedModel([say("no"), call("final_answer", title="t", severity=2)])
    agent = motet.Agent("helper", model=model, output_type=dict[str, int | str])
    async with motet.open_host() as host:
        run = await host.run(agent, "go", session=SESSION, check=False)
        done = await host.replay(run.run_id)
    assert done.rows.now == done.rows.then


async def test_a_run_is_found_by_its_beginning_and_only_by_its_owner() -> None:
    agent = agent_of(Shelf(), say("one"))
    async with motet.open_host() as host:
        run = await host.run(agent, "go", session=SESSION, principal=Principal("alice"))
        assert (await host.replay(run.run_id[:8])).same
        for unknown, principal in (("run_nope", None), (run.run_id, Principal("bob"))):
            with pytest.raises(NotFound, match="no run"):
                await host.replay(unknown, principal=principal or Principal("alice"))
        with pytest.raises(UnknownName, match="kind of tools"):
            await host.replay(run.run_id, tools="dry")  # type: ignore[arg-type]


async def test_a_live_run_is_not_replayed() -> None:
    shelf = Shelf()
    agent = agent_of(shelf, call("lookup", key="hang"))
    async with motet.open_host() as host, host.stream(agent, "go", session=SESSION) as run:
        await shelf.hangs.wait()
        with pytest.raises(ConfigError, match="is running: replay it when it has ended"):
            await host.replay(run.id)


CALLS = st.sampled_from(["a", "b", "broken"]).map(lambda key: call("lookup", key=key))
ANSWERS = st.lists(CALLS, min_size=1, max_size=3).map(lambda calls: sum(calls[1:], calls[0]))
PROGRAMS = st.lists(ANSWERS, max_size=5)


@given(PROGRAMS)
@settings(max_examples=25)
def test_every_program_replays_to_itself(program: list[Step]) -> None:
    """For all sequences of calls, good and bad: a replay has the rows and events of the run."""

    async def main() -> None:
        done = await replayed(Shelf(), *program, say("done"))
        assert done.rows.now == done.rows.then
        assert done.events.now == done.events.then

    trio.run(main)
