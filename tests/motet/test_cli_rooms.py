"""``motet chat ROOM`` and ``motet rooms``: at a terminal, on a pipe, and beside a host."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import trio

import motet as library
from motet.actors.storage.location import KEY_FILE
from motet.cli.record_commands import RoomLook
from motet.cli.render import line_of
from motet.cli.room_people import administer
from motet.cli.rooms import Server, Wanted, list_remote_rooms, set_room, show_remote_room
from motet.cli.running import announced
from motet.cli.setup import load_setup
from motet.protocols.config import GatewayConfig
from motet.protocols.errors import ConfigError, InputValidation, MotetError
from motet.protocols.events import ApprovalRequested
from motet.protocols.redaction.redact import redact_text, registered_secrets
from motet.protocols.room_acts import AddPerson, act_of
from motet.protocols.room_limits import Allowance, Budgets
from motet.protocols.rooms import RoomPlan
from tests.actors.rooms.talk import agent
from tests.motet.command import motet, started, terminal

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
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started("serve", "--listen", "127.0.0.1:0", cwd=folder) as server:
        server.expect("motet serves ")
        url = server.expect("\n").strip()

        typed = "@coder write notes.txt: milk\ny\nand this?\n/stop\n"
        done = motet("chat", "dev", "--url", url, cwd=folder.parent, stdin=typed)
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
