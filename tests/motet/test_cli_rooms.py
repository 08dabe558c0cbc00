"""``motet chat ROOM`` and ``motet rooms``: at a terminal, on a pipe, and beside a host."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import trio

import motet as library
from motet.actors.storage.location import KEY_FILE
from motet.announced import announced
from motet.cli.record_commands import RoomLook
from motet.cli.render import line_of
from motet.cli.room_people import administer
from motet.cli.rooms import Wanted, list_remote_rooms, set_room, show_remote_room, show_room
from motet.cli.running import Server
from motet.cli.setup import load_setup
from motet.protocols.config import GatewayConfig
from motet.protocols.errors import ConfigError, InputValidation, MotetError
from motet.protocols.events import ApprovalRequested, RunCompleted
from motet.protocols.redaction.redact import redact_text, registered_secrets
from motet.protocols.room_acts import AddPerson, act_of
from motet.protocols.room_limits import Allowance, Budgets
from motet.protocols.rooms import RoomPlan
from tests.actors.rooms.talk import agent
from tests.motet.command import motet, started, terminal
from tests.motet.test_cli_look import printed
from tests.scripted import Scripted, call, say

FILE = """
state = "../state"
workspace = "."
[agents.planner]
model = "demo"
[agents.coder]
model = "demo"
tools = ["group:fs"]
[rooms.dev]
members = ["planner", "coder"]
speakers = "mentions"
[[policy]]
tool = "write_file"
effect = "ask"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "motet.toml").write_text(FILE)
    return work


def test_a_pipe_gets_messages_with_names_and_the_rest_on_stderr(folder: Path) -> None:
    done = motet("chat", "dev", cwd=folder, stdin="@coder list files\nand this?\n/stop\n")

    assert done.code == 0, done.err
    assert done.out.startswith("[coder] ")
    assert "motet.toml" in done.out
    assert "[coder, turn 1, 7 left]" in done.err
    assert "✓ list_files" in done.err
    assert done.err.count("[the round is over: nobody to speak]") == 2
    assert "Nothing was running" in done.err

    shown = motet("rooms", "show", "dev", "-n", "2", cwd=folder)
    assert "  #2  [coder] " in shown.out.splitlines()[0]
    assert "and this?" in shown.out.splitlines()[-1]
    listed = json.loads(motet("rooms", "--json", cwd=folder).out)
    assert [(one["name"], one["state"]["floor"]["round"]) for one in listed] == [("dev", 2)]


def test_rooms_are_listed_before_anything_was_said(folder: Path) -> None:
    done = motet("rooms", cwd=folder)
    assert "planner, coder" in done.out
    missing = motet("rooms", "show", "dev", cwd=folder)
    assert (missing.code, "nothing stored" in missing.err) == (1, True)
    unknown = motet("chat", "dve", cwd=folder)
    assert (unknown.code, "dve" in unknown.err) == (2, True)


@pytest.mark.slow
def test_ctrl_c_ends_the_round_and_the_chat_continues(folder: Path) -> None:
    with terminal("chat", "dev", cwd=folder) as chat:
        chat.expect("room dev: planner, coder")
        chat.expect("> ")
        chat.type("@coder wait 50\r")
        chat.expect("[coder, turn 1")
        chat.type("\x03")
        chat.expect("[the round is over: stopped]")
        chat.type("@planner hello\r")
        chat.expect("planner")
        chat.expect("nobody to speak")
        chat.type("\x04")


@pytest.mark.slow
def test_the_rooms_of_a_server_are_talked_in_made_and_changed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"XDG_STATE_HOME": f"{folder}-xdg"}  # of the user who serves
    monkeypatch.setenv("XDG_STATE_HOME", env["XDG_STATE_HOME"])
    with started("serve", "--listen", "127.0.0.1:0", cwd=folder) as server:
        server.expect("motet serves ")
        url = server.expect("\n").strip()

        typed = "@coder write notes.txt: milk\ny\nand this?\n/stop\n"
        done = motet("chat", "dev", "--url", url, cwd=folder.parent, stdin=typed, env=env)
        assert (done.code, done.out.startswith("[coder] ")) == (0, True), done
        assert "may write_file do that?" in done.err
        assert (folder / "notes.txt").read_text().strip() == "milk"
        assert done.err.count("[the round is over: nobody to speak]") == 2
        assert "Nothing was running" in done.err

        made = motet("rooms", "create", "ops", "--member", "coder", cwd=folder)
        name = made.out.strip()
        assert name.startswith("ops-"), made
        there = Server(None, url)
        assert show_remote_room(there, "dev", 1, json=False) == 0
        assert "[local] and this?" in capsys.readouterr().out
        assert set_room(there, name, Wanted(mode="steer", people=("bob",)), json=True) == 0
        plan = json.loads(capsys.readouterr().out)["plan"]
        assert (plan["mode"], plan["members"]) == ("steer", ["coder"])
        assert administer(there, "title", name, ["Garden"], json=True) == 0
        _ = capsys.readouterr()
        assert list_remote_rooms(there, json=False) == 0
        row = rf"{name}\s+Garden\s+local\s+bob\s+coder\s+steer"
        assert re.search(row, capsys.readouterr().out)
        for wrong in (Wanted(), Wanted(mode="nod")):
            with pytest.raises(ConfigError):
                set_room(there, name, wrong, json=False)


def test_budgets_are_given_as_texts_and_a_wrong_one_is_named() -> None:
    wanted = Wanted(budgets=("day.usd=5", "person_hour.turns=20"))
    assert wanted.change.budgets == Budgets(day=Allowance(usd=5.0), person_hour=Allowance(turns=20))
    assert Wanted(budgets=("none",)).change.budgets == Budgets()
    for wrong in ("usd=5", "day.usd", "week.usd=5", "day.usd=much", "day.tokens=0"):
        with pytest.raises(ConfigError, match="--budget"):
            _ = Wanted(budgets=(wrong,)).change
    with pytest.raises(ConfigError, match=r"person_daily.*person_day.*turns, tokens, usd"):
        _ = Wanted(budgets=("person_daily.turns=1",)).change


@pytest.mark.parametrize("word", ["slow", "rate"])
def test_a_limit_without_a_number_is_refused_and_not_taken_off(word: str) -> None:
    with pytest.raises(InputValidation, match="is no"):
        _ = act_of(word, "den", "")
    assert act_of(word, "den", "off") == act_of(word, "den", "0")


def test_who_may_not_see_arguments_is_not_told_that_they_are_cut() -> None:
    asked = ApprovalRequested("apr_1", "c1", "write_file", {}, "a rule", "0" * 64, 0.0)
    piece = line_of(asked)
    assert piece is not None
    assert "not shown to your role" in piece.text
    assert "approvals show" not in piece.text


WORDS = {
    RoomLook.ADD: "dora", RoomLook.REMOVE: "cleo", RoomLook.MUTE: "cleo", RoomLook.UNMUTE: "cleo",
    RoomLook.BAN: "cleo", RoomLook.UNBAN: "cleo", RoomLook.TRANSFER: "bob", RoomLook.TITLE: "mine",
    RoomLook.SLOW: "30", RoomLook.RATE: "6", RoomLook.ANSWERS: "member", RoomLook.DETAILS: "reader",
    RoomLook.NEWCOMERS: "none", RoomLook.REVOKE: "{invite}", RoomLook.DELETE: "{room}",
}  # fmt: skip
REFUSED = r"is for only|no room"
FREE = {RoomLook.PEOPLE, RoomLook.SUMMARY, RoomLook.LEAVE}
"""What each of its people may do; the rest takes a right, but for those that name no room."""


async def test_no_action_of_the_command_line_does_anything_for_those_without_the_right() -> None:
    async with library.open_host(agents=[agent("ann", "yes")]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0", messages_per_minute=10**6))
        alice, tokens = library.Principal("alice"), dict[str, str]()
        for user in ("bob", "eve"):
            tokens[user] = (await host.new_token(user, "operator")).token
        people = "bob", "cleo"
        made = await host.rooms.create("den", RoomPlan(("ann",)), people=people, principal=alice)
        room = made.name
        await host.rooms.manage(AddPerson(room=room, user="cleo", role="reader"), principal=alice)
        invite = (await host.rooms.invite(room, principal=alice)).invite
        opened = await host.open_room(room, principal=alice)

        async def all_of_it() -> object:
            invites = await host.rooms.invites(room, principal=alice)
            return await host.rooms.export(room, principal=alice), invites

        before = await all_of_it()
        async with opened.subscribe() as told:
            for user, token in tokens.items():
                there = Server(None, url, token)
                named = {RoomLook.LIST, RoomLook.CREATE, RoomLook.SHOW, RoomLook.SET, RoomLook.JOIN}
                for look in {*RoomLook} - named - (FREE if user == "bob" else set()):
                    words = WORDS.get(look, "").format(room=room, invite=invite.id).split()
                    act = partial(administer, there, look.value, room, words, json=False)
                    with pytest.raises(MotetError, match=REFUSED):
                        await trio.to_thread.run_sync(act)
                change = partial(set_room, there, room, Wanted(mode="steer"), json=False)
                with pytest.raises(MotetError, match=REFUSED):
                    await trio.to_thread.run_sync(change)
            assert await all_of_it() == before
            await host.rooms.post(room, "this comes first", principal=alice)
            async for first in told:
                assert getattr(first, "text", "") == "this comes first"
                break


async def test_an_export_is_redacted_on_request_with_the_rules_and_tags_of_its_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: the lines and their fields are those of the export as it was said. A server elsewhere
    keeps its rules and the key of its tags."""
    own = '[[redaction.deny]]\npattern = "(Zq81[0-9A-Za-z]{8,40})"\nkind = "acme"\n'
    (tmp_path / "motet.toml").write_text(own)
    setup, secret = load_setup(tmp_path / "motet.toml", tmp_path / "st"), "Zq81kfLw02xPabQ77"
    lines: dict[str, list[dict[str, object]]] = {}
    async with library.open_host(tmp_path / "st", agents=[agent("ann", "yes")]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        token = (await host.new_token("local", "operator")).token
        plan = RoomPlan(("ann",), activation="off")
        room = (await host.rooms.create("den", plan)).name
        for text in (f"DB_PASSWORD={secret}", f"it is {secret}x", "nothing secret"):
            await host.rooms.post(room, text)
        with announced(tmp_path / "st", url, token, None):
            for name, server, redacted in (
                ("plain", Server(setup), False),
                ("here", Server(setup), True),
                ("there", Server(None, url, token), True),
            ):
                act = partial(administer, server, "export", room, [], json=False, redacted=redacted)
                assert await trio.to_thread.run_sync(act) == 0
                lines[name] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        with registered_secrets([], key=(tmp_path / "st" / KEY_FILE).read_bytes()):
            masked = redact_text(f"DB_PASSWORD={secret}")
    texts = {name: [one.get("text") for one in found] for name, found in lines.items()}
    blank = {name: [one | {"text": ""} for one in found] for name, found in lines.items()}
    assert blank["plain"] == blank["here"] == blank["there"]
    assert secret in str(texts["plain"])
    assert secret not in str(texts["here"])
    assert f"DB_PASSWORD={secret}" not in texts["there"]
    assert f"DB_PASSWORD=[secret:acme{masked[-6:]}" in texts["here"], "the tag is the host's"
    assert [str(text)[:18] for text in texts["here"]][-2:] == [
        "it is [secret:acme",
        "nothing secret",
    ]


async def test_a_pipe_goes_on_while_others_have_to_answer_an_approval(tmp_path: Path) -> None:
    """People need not wait for it; the one who talks here may not answer it."""
    ben = library.Agent("ben", model=Scripted(call(("burn", {})), say("done"), name="ben"))

    @ben.tool(effects="write", approval=True)
    async def burn() -> str:
        return "burnt"

    async with library.open_host(agents=[ben]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        (tmp_path / "token").write_text((await host.new_token("bob", "operator")).token)
        plan, alice = RoomPlan(("ben",), speakers=("mentions",)), library.Principal("alice")
        room = (await host.rooms.create("den", plan, people=("bob",), principal=alice)).name
        talk = ("chat", room, "--url", url, "--token-file", "token")
        pipe = partial(motet, *talk, cwd=tmp_path, stdin="@ben burn it\nand this?\n/who\n")
        done = await trio.to_thread.run_sync(pipe)
        assert (done.code, "bob" in done.err) == (0, True), done
        said = await host.rooms.history(room, principal=alice)
        assert [one.text for one in said] == ["@ben burn it", "and this?"]
        assert (await host.rooms.get(room, principal=alice)).floor == (), "it was left to others"
        assert [run.status for run in await host.runs()] == ["waiting"]


async def test_approvals_are_listed_and_answered_at_a_server_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the user of the token: those of others are not there."""
    steps = [step for _ in range(2) for step in (call(("burn", {})), say("done"))]
    ben = library.Agent("ben", model=Scripted(*steps, name="ben"))

    @ben.tool(effects="write", approval=True)
    async def burn() -> str:
        return "burnt"

    alice = library.Principal("alice")
    async with library.open_host(agents=[ben]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        for user in ("alice", "bob"):
            (tmp_path / user).write_text((await host.new_token(user, "operator")).token)

        async def typed(user: str, *words: str) -> tuple[object, str]:
            there = ("--url", url, "--token-file", str(tmp_path / user))
            read = partial(printed, capsys, "approvals", *words, *there)
            code, out, _ = await trio.to_thread.run_sync(read)
            return code, out

        async with host.stream("ben", "burn it", session="s", principal=alice) as first:
            events = aiter(first)
            async for event in events:
                if isinstance(event, ApprovalRequested):
                    break
            (one,) = await host.approvals(state="pending", principal=alice)
            code, out = await typed("alice")
            assert (code, one.id in out, "burn" in out) == (0, True, True)
            assert await typed("bob") == (0, "")
            for words in (("show", one.id), ("allow", one.id), ("deny", one.id)):
                assert (await typed("bob", *words))[0] == 1
            assert json.loads((await typed("alice", "show", one.id, "--json"))[1])["id"] == one.id
            code, out = await typed("alice", "allow", one.id, "--always", "--json")
            assert (code, json.loads(out)["state"]) == (0, "allowed")
            assert [type(event) async for event in events][-1] is RunCompleted
        _, grants = await typed("alice", "grants")
        assert "ben may call burn for alice" in grants
        assert (await typed("bob", "revoke", grants.split()[0]))[0] == 1
        assert (await typed("alice", "revoke", grants.split()[0]))[0] == 0
        assert await typed("alice", "grants") == (0, "")


async def test_a_thread_that_is_not_there_is_named_and_messages_are_found_by_their_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "st"
    (tmp_path / "motet.toml").write_text("")
    async with library.open_host(state, agents=[agent("ann", "yes")]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        server = Server(None, url, (await host.new_token("local", "operator")).token)
        room = (await host.rooms.create("den", RoomPlan(("ann",), activation="off"))).name
        for text in ("the Key is here", "nothing", "a key, too"):
            await host.rooms.post(room, text)
        await host.rooms.post(f"{room}/1", "in the thread")
        here = partial(show_room, load_setup(tmp_path / "motet.toml", state))
        for show in (here, partial(show_remote_room, server)):
            for which, query, lines in ((room, "KEY", 2), (f"{room}/1", "", 2), (room, "no", 1)):
                act = partial(show, which, 50, json=False, query=query)
                assert await trio.to_thread.run_sync(act) == 0
                assert len(capsys.readouterr().out.splitlines()) == lines, (which, query)
            assert await trio.to_thread.run_sync(partial(show, room, 5, json=False, query="x")) == 0
            assert capsys.readouterr().err.strip() == f"no message of {room} has 'x'"
            for missing in (f"{room}/2", f"{room}/9"):
                with pytest.raises(MotetError, match=f"{room}/"):
                    await trio.to_thread.run_sync(partial(show, missing, 50, json=False))
        change = partial(set_room, server, room, Wanted(budgets=("day.usd=5",)), json=False)
        assert await trio.to_thread.run_sync(change) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "budgets: day.usd=5"
        change = partial(set_room, server, room, Wanted(budgets=("none",)), json=False)
        assert await trio.to_thread.run_sync(change) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "budgets: none"


async def test_the_owner_of_a_room_reads_its_errors_and_traces_at_a_server_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And answers what it handed to a person. Those who may only read messages are refused."""
    limits = library.Limits(tool_errors=1)
    steps = (call(("fetch", {})), say("later"))
    ben = library.Agent("ben", model=Scripted(*steps, name="ben"), limits=limits)

    @ben.tool
    async def fetch() -> str:
        raise OSError("no route to prod")

    alice = library.Principal("alice")
    async with library.open_host(agents=[ben]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        for user in ("alice", "bob", "eve"):
            (tmp_path / user).write_text((await host.new_token(user, "operator")).token)
        made = await host.rooms.create("den", RoomPlan(("ben",)), people=("bob",), principal=alice)
        await (await host.open_room(made.name, principal=alice)).run("@ben fetch it")

        async def typed(user: str, *words: str) -> tuple[object, str]:
            there = ("--url", url, "--token-file", str(tmp_path / user))
            code, out, err = await trio.to_thread.run_sync(partial(printed, capsys, *words, *there))
            return code, out + err

        code, listed = await typed("alice", "errors", "--room", made.name)
        assert (code, "no route to prod" in listed) == (0, True)
        (error,) = json.loads((await typed("alice", "errors", "--room", made.name, "--json"))[1])
        assert error["id"] in listed
        assert "no route to prod" in (await typed("alice", "errors", "show", error["id"]))[1]
        code, table = await typed("alice", "traces", "--room", made.name)
        assert (code, "ben" in table) == (0, True)
        _, tree = await typed("alice", "traces", "show", error["run_id"], "--waterfall")
        assert f"motet errors show {error['id']}" in tree
        waiting = ("errors", "escalations", "--room", made.name)
        (one,) = json.loads((await typed("alice", *waiting, "--json"))[1])
        assert one["id"] in (await typed("alice", *waiting))[1]
        of_one = ("errors", "escalations", "show", one["id"])
        assert "no route to prod" in (await typed("alice", *of_one, "--room", made.name))[1]

        for user in ("bob", "eve"):
            for words in (("errors",), ("traces",), ("errors", "escalations")):
                assert (await typed(user, *words, "--room", made.name))[0] == 1, (user, words)
                assert "no route to prod" not in (await typed(user, *words))[1]
            for kind, which in (("errors", error["id"]), ("traces", error["run_id"])):
                assert (await typed(user, kind, "show", which))[0] == 1, (user, kind)
            answer = ("errors", "escalations", "resolve", one["id"], "--decision", "give_up")
            assert (await typed(user, *answer))[0] == 1
        assert (await typed("alice", "errors", "prune", "--older-than", "1d"))[0] == 2
        assert (await typed("alice", "traces", "export"))[0] == 2
        answer = ("errors", "escalations", "resolve", one["id"], "--decision", "give_up")
        code, answered = await typed("alice", *answer)
        assert (code, "give_up by alice" in answered) == (0, True)
