"""Commands are parsed, and each on a real host has its effect, its answer, and a bounded wait."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.gateway.commands import STORE_SECONDS, answer_command
from motet.protocols.chat import UserMessage
from motet.protocols.commands import (
    COMMANDS,
    Command,
    help_text,
    message_text,
    parse_command,
    problem_with,
)
from motet.protocols.errors import NotFound
from motet.protocols.escalations import EscalationAnswered, without_history
from motet.protocols.gateway import CommandAnswer
from motet.protocols.sessions import StopReport
from tests.actors.runs.ops import PATIENT, ended, ops, pending
from tests.scripted import Scripted, call, say

ALICE, BOB = motet.Principal("alice"), motet.Principal("bob")
GROUP = "agent:a:tcp:group:den"


async def typed(
    host: motet.Host,
    text: str,
    session: str = "s",
    principal: motet.Principal = ALICE,
    sender: str = "",
) -> CommandAnswer:
    command = parse_command(text)
    assert command is not None
    return await answer_command(host, principal, session, command, sender=sender)


def hanging() -> motet.Agent[None]:
    agent = motet.Agent("a", model=Scripted(*[call(("hang", {}))] * 9), description="Hangs.")

    @agent.tool
    async def hang() -> None:
        await trio.sleep_forever()

    return agent


async def test_a_session_that_was_never_used_answers_every_command() -> None:
    async with motet.open_host(agents=[hanging()]) as host:
        told: dict[str, str] = {}
        for name in COMMANDS:
            try:
                told[name] = (await typed(host, f"/{name}")).text
            except NotFound:
                told[name] = "not found"
        strange = await typed(host, "/stopp")
    assert set(told) == set(COMMANDS)
    assert told["stop"] == told["stopall"] == "Nothing was running."
    assert told["status"] == "Nothing was said here yet."
    assert told["queue"].endswith("Nothing waits here.")
    assert told["model"] == "a uses scripted."
    assert told["errors"] == "No error was stored here."
    assert told["usage"] == "No run has used anything here yet."
    assert told["agents"] == "a (scripted) Hangs."
    assert told["who"] == "You are alice (operator) in s."
    assert told["approve"] == "No approval is pending here."
    assert told["resolve"] == "No escalation is open here."
    assert (told["new"], told["compact"]) == ("not found", "not found")
    assert "/stop?" in strange.text


async def test_commands_show_a_session_to_its_own_user_only() -> None:
    agent = motet.Agent("a", model=Scripted(call(("broken", {})), say("done"), call(("hang", {}))))

    @agent.tool
    def broken() -> str:
        raise OSError("no route to host")

    @agent.tool
    async def hang() -> None:
        await trio.sleep_forever()

    async with motet.open_host() as host:
        await host.run(agent, "secret", session="s", principal=ALICE)
        await host.submit("work", session="s", agent="a", principal=ALICE)
        await host.submit("later", session="s", principal=ALICE, mode="followup")
        await wait_all_tasks_blocked()
        mine = {name: (await typed(host, f"/{name}")).text for name in LOOKS}
        theirs = {name: (await typed(host, f"/{name}", principal=BOB)).text for name in LOOKS}
        assert (await typed(host, "/stop", principal=BOB)).report == StopReport()
        assert (await typed(host, "/stopall", principal=BOB)).report == StopReport()
        assert host.status().running == 1
        for acting in ("/new", "/compact"):
            with pytest.raises(NotFound):
                await typed(host, acting, principal=BOB)
    assert "agent a" in mine["status"]
    assert "later" in mine["status"]
    assert "1. later" in mine["queue"]
    assert "broken (" in mine["errors"]
    assert "no route to host" in mine["errors"]
    assert "tokens in" in mine["usage"]
    assert mine["who"] == "You are alice (operator) in s, with a."
    for text in theirs.values():
        assert not any(word in text for word in ("secret", "work", "later", "broken", "alice"))


LOOKS = ("status", "queue", "errors", "usage", "who", "model")


async def test_stop_ends_the_newest_run_and_what_waits_here_and_stopall_everything(
    autojump_clock: MockClock,
) -> None:
    async with motet.open_host(agents=[hanging()]) as host:
        first = await host.submit("go", session="s", principal=ALICE)
        waiting = [
            (await host.submit("next", session="s", principal=ALICE, mode="followup")).run_id
            for _ in range(2)
        ]
        await host.submit("next", session="t", principal=ALICE, mode="followup")
        await trio.sleep(1)

        stopped = await typed(host, "stop")

        assert stopped.report == StopReport(stopped=[first.run_id], dropped_inputs=waiting)
        assert stopped.text == "1 stopped; 2 dropped from the queue"
        await trio.sleep(1)
        assert (host.status().running, host.status().queued) == (1, 0)
        for _ in range(2):
            await host.submit("next", session="s", principal=ALICE, mode="followup")
        await trio.sleep(1)
        assert (host.status().running, host.status().queued) == (2, 1)
        named = (await host.runs(session="t", principal=ALICE))[0].run_id
        assert (await typed(host, f"/stop {named}")).report == StopReport(stopped=[named])
        assert (await typed(host, f"/stop {named}")).text == "Nothing was running."

        everything = await typed(host, "/stop all")

        assert everything.text == "1 stopped; 1 dropped from the queue"
        assert (host.status().running, host.status().queued) == (0, 0)
    del autojump_clock


async def test_in_a_group_a_stop_ends_runs_of_its_sender_only(
    autojump_clock: MockClock,
) -> None:
    bridge = motet.Principal("bridge")
    async with motet.open_host(agents=[hanging()]) as host:
        ids: dict[str, str] = {}
        for sender in ("eve", "fay"):
            ack = await host.submit(
                "go", session=GROUP, agent="a", principal=bridge, sender=sender, debounce=0.0
            )
            ids[sender] = ack.run_id
            await trio.sleep(1)
        assert host.status().running == 2

        eve = await typed(host, "/stop", GROUP, bridge, "eve")

        assert eve.report == StopReport(stopped=[ids["eve"]])
        assert (await typed(host, "/stopall", GROUP, bridge, "eve")).report == StopReport()
        assert host.status().running == 1
        assert (await typed(host, "/stop", GROUP, bridge)).report == StopReport(
            stopped=[ids["fay"]]
        )
    del autojump_clock


async def test_a_queue_mode_is_set_and_an_unknown_one_is_named() -> None:
    model = Scripted(say("hi"))
    async with motet.open_host(agents=[motet.Agent("a", model=model)]) as host:
        await host.run("a", "hello", session="s", principal=ALICE)
        assert "collect" in (await typed(host, "/queue COLLECT")).text
        assert host.queue_mode("s") == "collect"
        assert "'sing' is not a mode: steer, " in (await typed(host, "/queue sing")).text
        told = (await typed(host, "/model other")).text
        assert told == "Nothing was changed: unknown model 'other'; known: scripted"


async def test_an_approval_is_answered_and_the_run_goes_on() -> None:
    own = ops(call(("wipe", {"disk": "a"})), say("done"))
    async with motet.open_host(agents=[own.agent], config=PATIENT) as host:
        ack = await host.submit("go", session="s", principal=ALICE)
        await pending(host)
        assert "To answer: /approve ID" in (await typed(host, "/approve")).text
        assert "is not a decision" in (await typed(host, "/approve x maybe")).text
        assert (await typed(host, "/approve allow-once")).text == "wipe: allowed"
        assert (await ended(host, ack.run_id)).status == "completed"
    assert own.ran == ["wipe a"]


@pytest.mark.parametrize("giving_up", ["{} give_up", "give up", "{} give up"])
async def test_an_escalation_is_answered_and_the_next_run_is_named(giving_up: str) -> None:
    fails = [call(("broken", {"n": n})) for n in range(4)]
    model = Scripted(fails[0], say("one"), fails[1], say("two"), fails[2], say("three"), fails[3])
    agent = motet.Agent("a", model=model, limits=motet.Limits(tool_errors=1))

    @agent.tool
    def broken(n: int) -> None:
        raise OSError(f"no route {n}")

    async def fail(host: motet.Host) -> str:
        await host.run("a", "go", session="s", principal=ALICE, check=False)
        (waiting,) = await host.escalations(session="s", state="open", principal=ALICE)
        return waiting.id

    async with motet.open_host(agents=[agent]) as host:
        first = await fail(host)
        shown = (await typed(host, "/resolve")).text
        assert shown.startswith(f"{first}: Too many errors with broken (1 in a row)")
        assert '\n  1. broken({"n":0}): unknown: no route 0 [err_' in shown
        assert shown.endswith(
            "Say which and how: /resolve ID retry [TEXT], advice TEXT, skip TEXT or give_up."
        )
        assert "'maybe' is not a decision" in (await typed(host, f"/resolve {first} maybe")).text
        assert "skip needs a note" in (await typed(host, "/resolve skip")).text
        for text in ("retry", "advice use  that\nhost", "skip never\n mind"):
            answer = await typed(host, f"/resolve {text}")
            assert isinstance(answer.run_id, str)
            assert answer.text.endswith(f"{text.split()[0]}, {answer.run_id} goes on")
            assert (await ended(host, answer.run_id)).status == "completed"
            told = model.requests[-1].messages[-1]
            assert isinstance(told, UserMessage)
            note = text.split(None, 1)[1:]
            assert without_history(told.text).endswith(note[0] if note else "where you stopped.")
            last = await fail(host)
        answer = await typed(host, f"/resolve {giving_up.format(last)}")
        assert (answer.text, bool(answer.run_id)) == (f"{last}: give_up", False)
        with pytest.raises(EscalationAnswered, match="alice has answered"):
            await typed(host, f"/resolve {last} retry")
        with pytest.raises(motet.NotFound, match="no escalation 'esc_0'"):
            await typed(host, "/resolve esc_0 retry")


async def test_a_session_is_summarised_when_it_is_long_enough() -> None:
    async with motet.open_host(agents=[motet.Agent("a", model=Scripted(say("hi")))]) as host:
        await host.run("a", "hello", session="s", principal=ALICE)
        assert "Nothing was summarised" in (await typed(host, "/compact")).text


async def test_a_command_that_reads_gives_up_on_stuck_stores_and_a_stop_does_not_ask_them(
    autojump_clock: MockClock,
) -> None:
    async with motet.open_host(agents=[hanging()]) as host:
        ack = await host.submit("go", session="s", principal=ALICE)
        await trio.sleep(1)
        for name in ("sessions", "approvals", "errors", "traces"):
            actor = host.system.find(f"/host/{name}")
            assert actor is not None
            actor.suspend()
        for name in ("status", "queue", "errors", "usage", "who", "approve", "resolve", "new"):
            began = trio.current_time()
            answer = await typed(host, f"/{name}")
            assert f"have not answered /{name}" in answer.text
            assert trio.current_time() - began == STORE_SECONDS
        began = trio.current_time()
        answer = await typed(host, "/stop")
        assert trio.current_time() - began <= 5
        assert isinstance(answer.report, StopReport)
        # What it cannot put on record yet, it says.
        assert [*answer.report.stopped, *answer.report.still_running] == [ack.run_id]
        for name in ("sessions", "approvals", "errors", "traces"):
            actor = host.system.find(f"/host/{name}")
            assert actor is not None
            actor.resume()
    del autojump_clock


async def test_a_room_can_be_stopped_and_not_reset() -> None:
    model = Scripted(None, name="ann")
    ann = motet.Agent("ann", model=model)
    async with motet.open_host() as host:
        room = await host.open_room(motet.Room("den", members=[ann]), principal=ALICE)
        await room.post("hello", user="alice")
        await model.asked.wait()
        for stranger in (Command("stop"), Command("stopall")):
            answer = await answer_command(host, BOB, "", stranger, room="den")
            assert answer.report == StopReport()
        refused = await answer_command(host, ALICE, "", Command("new"), room="den")
        assert "this is a room" in refused.text

        stopped = await answer_command(host, ALICE, "", Command("stop"), room="den")

        assert stopped.text == "1 stopped"
        assert room.idle
        who = await answer_command(host, ALICE, "", Command("who"), room="den")
        assert who.text == "You are alice (operator) in the room den."
        with pytest.raises(NotFound):
            await host.stop(room="den", principal=BOB)


@pytest.mark.parametrize("text", ["stop", " STOP ", "Stop!", "stop...", "abort", "esc", "esc.!"])
def test_a_bare_word_stops(text: str) -> None:
    assert parse_command(text) == Command("stop")


@pytest.mark.parametrize(
    "text", ["don't stop", "stop it", "stop?", "escape", "", "/", "/usr/bin/env fails", "a /stop"]
)
def test_other_texts_go_to_the_model(text: str) -> None:
    assert parse_command(text) is None


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_known_in_any_case_and_explained(name: str) -> None:
    assert parse_command(f"  /{name.upper()}\n") == Command(name)
    assert problem_with(Command(name)) is None
    assert f"/{name}: " in help_text()


def test_an_unknown_command_names_the_nearest_and_the_escape() -> None:
    command = parse_command("/stpo now")
    assert command == Command("stpo", "now", known=False)
    why = problem_with(Command("stpo", "now", known=False))
    assert why is not None
    assert "/stop?" in why
    assert "//stpo" in why


def test_new_with_a_text_does_nothing_so_that_the_text_is_not_lost() -> None:
    command = parse_command("/new tell me")
    assert command is not None
    assert "Nothing was done" in str(problem_with(command))


@given(st.text())
def test_a_doubled_slash_sends_any_text_as_it_is(text: str) -> None:
    """Law: for every text that begins with a slash, ``/`` + text is no command and arrives."""
    slashed = "/" + text
    assert parse_command("/" + slashed) is None
    assert message_text("/" + slashed) == slashed


@given(st.text())
def test_parsing_never_fails_and_a_plain_text_is_unchanged(text: str) -> None:
    """Law: parsing is total; what begins with no slash reaches the model as it was typed."""
    parse_command(text)
    if not text.lstrip().startswith("//"):
        assert message_text(text) == text
