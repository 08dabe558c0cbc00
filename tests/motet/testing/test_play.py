"""Programs in a simulated host: what each step does, and that a host that is right passes."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.protocols.config import HostConfig, ShellConfig, ToolsConfig
from motet.protocols.escalations import Answer as Decision
from motet.protocols.escalations import EscalationInfo
from motet.protocols.sessions import LOCAL, RunStatus
from motet.runtime.testing import Stuck
from motet.testing.fake_program import FakeProgram
from motet.testing.stories.acts import Act

agent = motet.Agent("helper", instructions="You help.")


@agent.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@agent.tool(timeout=20)
async def nap(seconds: float = 1.0) -> str:
    """Sleep for a while."""
    await trio.sleep(min(abs(seconds), 100))
    return "slept"


planner, coder = motet.Agent("planner"), motet.Agent("coder")
room = motet.Room("den", members=[planner, coder], max_turns=4)


def played(*steps: Act, script: Sequence[mt.Step] = ()) -> mt.Snapshot:
    """What can be seen when a program is over; it is judged too."""
    program = mt.Program(steps, {"helper": script})
    with mt.simulated_host() as host:
        program.execute(host, agent)
        mt.check(host)
        return mt.snapshot(host)


def ends(snapshot: mt.Snapshot) -> list[RunStatus]:
    return [run.status for run in snapshot.runs]


HI = mt.Send("ann", "ann/1: hi", key="k1")


def test_an_input_that_nobody_awaits_any_more_keeps_no_host_from_its_rest() -> None:
    """Also an old one that is garbage: it was waited for in 10 ms steps of virtual hours."""

    def lost(host: motet.Host) -> None:
        parts = host._parts  # pyright: ignore[reportPrivateUsage]
        circle: list[object] = [parts.table.pending_inputs.expect("ann", LOCAL, "")]
        circle.append(circle)
        gc.collect()

    with mt.simulated_host() as host:
        lost(host.host)
        began = host.call(now)
        mt.Program([HI]).execute(host, agent)
        assert host.call(now) - began < 60


async def now(_host: motet.Host) -> float:
    return trio.current_time()


def test_inputs_are_answered_by_the_script_and_then_by_ok() -> None:
    seen = played(
        HI, mt.Send("ann", "ann/2: and?"), script=[mt.call("add", a=1, b=2), mt.say("three")]
    )
    assert ends(seen) == ["completed", "completed"]
    texts = [row.text for row in seen.rows("main")]
    assert texts == ["ann/1: hi", "", "3", "three", "ann/2: and?", "ok"]
    assert [(call.tool, call.ended, call.user) for call in seen.ran] == [("add", True, "ann")]


def test_a_resend_with_a_key_is_the_same_input_and_without_one_another() -> None:
    assert len(played(HI, mt.Resend("ann"), mt.Crash(), mt.Resend("ann")).runs) == 1
    assert len(played(mt.Send("ann", "ann/1: hi"), mt.Resend("ann")).runs) == 2
    assert played(mt.Resend("bob"), HI).sent[0].user == "ann"  # bob had nothing to send again


def test_a_stop_ends_the_active_runs_and_records_leftovers() -> None:
    seen = played(HI, mt.Wait(1), mt.Stop("ann"), script=[mt.call("nap", seconds=10)])
    assert ends(seen) == ["cancelled"]
    assert seen.stops[0].report.stopped == [seen.runs[0].run_id]
    assert seen.stops[0].left == ()


def test_leaving_the_stream_of_a_run_ends_it() -> None:
    seen = played(mt.Disconnect("ann", "ann/1: hi", after=2), script=[mt.call("nap", seconds=9)])
    assert ends(seen) == ["cancelled"]
    assert seen.sent[0].run_id == seen.runs[0].run_id


def test_a_text_that_steers_enters_the_run() -> None:
    seen = played(
        HI, mt.Wait(1), mt.Steer("ann", "ann/2: faster"), script=[mt.call("nap", seconds=5)]
    )
    assert sorted(ends(seen)) == ["completed", "steered"]


def test_a_refused_reset_or_foreign_session_does_not_end_the_program() -> None:
    seen = played(HI, mt.Wait(1), mt.Reset("ann"), mt.Send("bob", "bob/2: hi"), mt.Reset("cid"))
    assert [(sent.user, sent.accepted) for sent in seen.sent] == [("ann", True), ("bob", False)]
    assert "NotFound" in seen.sent[1].why


def test_an_input_may_be_on_its_way_when_the_power_is_cut() -> None:
    late = mt.Send("ann", "ann/1: hi", key="k1", soon=True)
    assert played(late, mt.Crash()).runs == ()
    assert ends(played(late, mt.Wait(1))) == ["completed"]
    assert ends(played(late, mt.Crash(), mt.Resend("ann"))) == ["completed"]


def test_a_pending_approval_is_answered_by_a_step_or_denied_at_the_end() -> None:
    bank = motet.Agent("bank")

    @bank.tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    approving: list[Act] = [mt.Wait(1), mt.Approve("ann")]
    for steps, paid in ((approving, True), ([], False)):
        program = mt.Program([HI, *steps], {"bank": [mt.call("pay", amount=5)]})
        with mt.simulated_host() as host:
            program.execute(host, bank)
            mt.check(host)
            seen = mt.snapshot(host)
        assert ends(seen) == ["completed"]
        assert any("paid 5" in row.text for row in seen.rows("main")) == paid


def shipper(tool_errors: int = 1) -> motet.Agent[None, str]:
    """An agent whose tool never works."""
    agent = motet.Agent("shipper", limits=motet.Limits(tool_errors=tool_errors))

    @agent.tool
    async def ship(item: str) -> str:
        """Ship."""
        raise OSError("no route to the warehouse")

    return agent


@pytest.mark.parametrize("decision", ["retry", "advice", "skip", "give_up"])
def test_an_escalation_is_answered_by_a_step(decision: Decision) -> None:
    again: list[Act] = [mt.Resolve("ann", decision), mt.Wait(1)]
    program = mt.Program(
        [HI, mt.Wait(1), *again, *again], {"shipper": [mt.call("ship", item="box"), mt.say("so")]}
    )
    with mt.simulated_host() as host:
        program.execute(host, shipper())
        mt.check(host)
        seen = mt.snapshot(host)
    assert ends(seen) == ["escalated", *([] if decision == "give_up" else ["completed"])]


@pytest.mark.extended
def test_drawn_programs_answer_escalations_in_every_way() -> None:
    """Law: between crashes, stops and resets too, answers are given, and all invariants hold."""
    drawn: set[str] = set()
    answered: set[str] = set()

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(program=mt.programs(shipper(), max_steps=14))
    def search(program: mt.BoundProgram) -> None:
        with mt.simulated_host() as host:
            program.execute(host)
            mt.check(host)
            drawn.update(one.decision for one in program.steps if isinstance(one, mt.Resolve))
            answered.update(one.decision for one in host.call(_escalations) if one.decision)

    search()
    assert len(drawn) > 1
    assert answered


async def _escalations(host: motet.Host) -> Sequence[EscalationInfo]:
    return await host.escalations()


def test_an_input_is_answered_after_a_crash() -> None:
    seen = played(
        HI, mt.Run(40), mt.Crash(), mt.Wait(1), script=[mt.slow(mt.say("late"), seconds=5)]
    )
    assert ends(seen) == ["completed"]
    assert len(seen.crashes) == 1


def test_steps_of_a_host_at_rest_take_a_minute_at_most() -> None:
    with mt.simulated_host() as host:
        mt.Program([mt.Run(5_000)]).execute(host, motet.Agent("a"))
        assert host.now() <= 61


def test_a_host_that_does_not_come_to_rest_names_the_line_of_the_tool() -> None:
    agent = motet.Agent("a")

    @agent.tool(timeout=1e9)
    async def waits() -> str:
        """Wait for ever."""
        await never_comes()
        return "at last"

    async def never_comes() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    program = mt.Program([HI], {"a": [mt.call("waits")]})
    with mt.simulated_host() as host:
        program.execute(host, agent)
        with pytest.raises(Stuck, match=r"waits in .*never_comes at .*test_play\.py:\d+"):
            host.loop.drive(lambda: False, 1)


def test_a_mishap_affects_the_call_with_its_number() -> None:
    program = mt.Program(
        [HI],
        {"helper": [mt.call("add", a=1, b=2) + mt.call("add", a=3, b=4)]},
        mishaps=[mt.Mishap(2, late=5, fails="out of order")],
    )
    with mt.simulated_host() as host:
        program.execute(host, agent)
        mt.check(host)
        assert host.now() == 5
        (error,) = mt.snapshot(host).errors
    assert "out of order" in str(error.raw_error)


def test_a_post_in_a_room_opens_a_round_and_a_stop_ends_it() -> None:
    program = mt.Program([mt.Post("ann", "ann/1: hi @coder"), mt.Run(9), mt.Stop("ann")])
    with mt.simulated_host() as host:
        program.execute(host, room)
        mt.check(host, mt.invariants.bounded_turns(4), mt.invariants.only_members_speak)
        seen = mt.snapshot(host)
    assert seen.rooms[0].messages[0].author == "ann"
    assert [stop.to_room for stop in seen.stops] == [True]


def test_agents_are_unchanged_after_a_program() -> None:
    before = (agent.model, agent.tools)
    for _ in range(2):
        played(HI, script=[mt.call("add", a=1, b=2)])
    assert (agent.model, agent.tools) == before


def test_agents_may_use_their_own_models() -> None:
    own = motet.Agent("own", model=mt.ScriptedModel([mt.say("by myself")]))
    with mt.simulated_host() as host:
        mt.Program([HI], {"own": [mt.say("by the script")]}).execute(host, own, own_models=True)
        assert mt.snapshot(host).rows("main")[-1].text == "by myself"


def test_a_host_that_knows_the_agent_already_is_refused() -> None:
    with (
        mt.simulated_host(agents=[agent]) as host,
        pytest.raises(motet.ConfigError, match="knows helper already: leave agents= to the"),
    ):
        mt.Program([HI]).execute(host, agent)


async def for_ever(program: FakeProgram) -> int:
    await trio.sleep_forever()
    return 0


def test_a_program_that_a_tool_leaves_behind_is_found() -> None:
    leaky = motet.Agent("leaky")

    @leaky.tool
    async def watch(folder: str) -> str:
        """Watch a folder."""
        await trio.lowlevel.open_process(["watcher", folder])
        return "watching"

    with mt.simulated_host() as host:
        host.processes.program("watcher", for_ever)
        mt.Program([HI], {"leaky": [mt.call("watch", folder="a")]}).execute(host, leaky)
        with pytest.raises(mt.InvariantBroken, match="its task program watcher goes on"):
            mt.check(host)


def remembers_for_all(host: motet.Host) -> None:
    """A memory that forgets whose it is."""
    said: list[str] = []

    @host.on("before_model")
    async def remind(event: motet.BeforeModel) -> motet.Replace:
        said.extend(row.text for row in event.request.messages)
        return motet.Replace(request=replace(event.request, system="\n".join(said)))


def test_a_users_text_in_a_request_of_another_is_found() -> None:
    program = mt.Program([HI, mt.Send("bob", "bob/2: hi", session="other")])
    with mt.simulated_host(setup=remembers_for_all) as host:
        program.execute(host, agent)
        with pytest.raises(mt.InvariantBroken, match=r"a request of bob in run .* has 'ann/1: hi'"):
            mt.check(host)


def test_idle_sessions_are_evicted_and_a_leaked_run_is_named() -> None:
    with mt.simulated_host() as host:
        mt.Program([HI]).execute(host, agent)
        mt.check_memory(host)
        held = motet.Agent("held", model=mt.ScriptedModel([mt.call("nap", seconds=99)]))

        @held.tool(timeout=9_000)
        async def nap(seconds: float) -> str:
            """Sleep."""
            await trio.sleep(50 * seconds)
            return "slept"

        host.start(held, "hi", session="other")
        with pytest.raises(mt.InvariantBroken, match="/host/router/other"):
            mt.check_memory(host)


def test_an_error_of_the_programs_own_receive_has_the_program_as_a_note() -> None:
    async def receive(host: motet.Host, user: str, session: str, text: str, key: object) -> None:
        raise LookupError(f"{user} is no customer")

    with mt.simulated_host() as host, pytest.raises(LookupError, match="no customer") as raised:
        mt.Program([HI]).execute(host, agent, receive=receive)
    assert "mt.Send('ann', 'ann/1: hi', key='k1')" in raised.value.__notes__[0]


def test_check_works_without_a_program() -> None:
    scripted = motet.Agent("t", model=mt.ScriptedModel([mt.call("no_such_tool"), mt.say("well")]))
    with mt.simulated_host() as host:
        assert host.run(scripted, "go").output == "well"
        host.settle()
        mt.check(host)

        def always_wrong(seen: mt.Snapshot) -> list[str]:
            return [f"{len(seen.runs)} runs are too many"]

        with pytest.raises(mt.InvariantBroken, match="always_wrong: 1 runs are too many"):
            mt.check(host, always_wrong)


def passes(program: mt.BoundProgram) -> None:
    with mt.simulated_host(seed=program.seed) as host:
        program.execute(host)
        mt.check(host)
        for run in mt.snapshot(host).runs:
            mt.sometimes(run.status == "completed", "a run completes")


FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(mt.programs(agent, users=2, sessions=2))
def test_a_correct_agent_passes(program: mt.BoundProgram) -> None:
    """Law: whatever users do and whatever goes wrong, all that every host guarantees holds."""
    passes(program)


@FEW
@given(mt.programs(room, users=3))
def test_a_correct_room_passes(program: mt.BoundProgram) -> None:
    """Law: the same for a room, and nobody speaks more often than the room allows."""
    with mt.simulated_host(seed=program.seed) as host:
        program.execute(host)
        mt.check(host, mt.invariants.bounded_turns(4), mt.invariants.only_members_speak)


@pytest.mark.sweep
@pytest.mark.timeout(900)
@settings(max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mt.programs(agent, users=3, sessions=2, max_steps=40))
def test_a_correct_agent_passes_long_programs(program: mt.BoundProgram) -> None:
    """Law: as above."""
    passes(program)


@pytest.mark.sweep
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mt.programs(agent))
def test_a_program_gives_the_same_trace_twice(program: mt.BoundProgram) -> None:
    """Law (G12): nothing of a program comes from outside of it."""
    mt.run_twice(program)


def test_a_shell_command_of_a_drawn_model_finds_no_program() -> None:
    typist = motet.Agent("typist", tools=["group:shell"])
    program = mt.Program([HI], {"typist": [mt.call("shell", command="é | wc")]})
    config = HostConfig(tools=ToolsConfig(shell=ShellConfig(mode="unsafe")))
    with mt.simulated_host(config=config) as host:
        program.execute(host, typist)
        mt.check(host)
        assert [started.returncode for started in host.processes.started] == [127]
