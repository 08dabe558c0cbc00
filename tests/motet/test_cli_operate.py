"""A person at a running server: who it finds, what it stops, and another configuration."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
import trio.testing

from motet.actors.host import Host, hosted
from motet.actors.hosting.config import ConfigSource, load_config
from motet.cli import main
from motet.cli.init import write_project
from motet.cli.serve import reload_when_changed
from motet.cli.service import Manager
from motet.protocols.errors import ConfigError
from motet.protocols.events import HOST_STREAM, EventRecord, event_name
from tests.motet.command import Done, Process, started

Run: TypeAlias = Callable[..., Done]

CONFIG = """
state = "../st"
workspace = "."
[agents.helper]
model = "demo"
instructions = "one"
[gateway]
listen = "127.0.0.1:0"
"""


@pytest.fixture
def run(here: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Commands in this process, which are quicker."""
    assert here == Path.cwd()

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        told = capsys.readouterr()
        return Done(int(ended.value.code or 0), told.out, told.err)

    return call


def serving(server: Process) -> None:
    server.expect("motet serves ")
    server.expect("\n")


@pytest.mark.slow
def test_a_server_is_found_looked_at_stopped_and_configured_anew(here: Path, run: Run) -> None:
    file, state = here / "motet.toml", here.parent / "st"
    file.write_text(CONFIG)
    none = run("ps")
    assert none.code == 1
    assert "motet serve" in none.err
    with started("serve", cwd=here) as server:
        serving(server)
        assert (state / "server.json").stat().st_mode & 0o777 == 0o600

        actors = json.loads(run("ps", "--json").out)
        assert "/host/gateway" in [actor["path"] for actor in actors]
        assert "gateway" in run("ps").out

        assert run("stop").code == 2
        assert run("stop", "--all").out == "nothing was going on\n"
        assert run("stop", "run_nobody").code == 1

        made = json.loads(run("token", "new", "alice", "--json").out)
        assert made["token"].startswith("mtt_")
        assert run("ps").code == 0, "whoever has the state directory needs no token of a user"
        assert "alice is revoked" in run("token", "revoke", made["info"]["id"]).out
        assert run("users", "delete", "alice").code == 2, "nobody is asked"
        assert "deleted alice: 1 tokens, 0 sessions" in run("users", "delete", "alice", "--yes").out
        assert run("users", "delete", "alice", "--yes").code == 1

        file.write_text(CONFIG.replace("one", "two"))
        assert "agents.helper: takes effect with the next run" in run("config", "reload").out
        assert run("config", "reload").out == "nothing has changed\n"
        file.write_text(CONFIG.replace("listen", "listn"))
        server.signal(signal.SIGHUP)
        server.expect("did you mean 'listen'?")

        server.signal(signal.SIGTERM)
        assert server.end() == 0
    assert not (state / "server.json").exists()
    file.write_text(CONFIG)
    assert run("token", "new", "bob").code == 0
    done = json.loads(run("users", "delete", "bob", "--rooms", "delete", "--yes", "--json").out)
    assert (done["tokens"], done["sessions"], done["rooms"]) == (1, 0, [])


async def test_a_changed_file_is_seen_and_a_wrong_one_changes_nothing(here: Path) -> None:
    """Given ``--watch``, when the file changes, then the host has what it says, if it is right."""
    file = here / "motet.toml"
    file.write_text(CONFIG)
    async with hosted(ConfigSource(file), load_config(file), state=here.parent / "st") as host:
        before = host.configuration().hash
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reload_when_changed, file, host, Manager())
            await trio.testing.wait_all_tasks_blocked()
            changed = anext_event(host, "config.changed")
            file.write_text(CONFIG.replace("one", "two"))
            await changed.wait()
            after = host.configuration().hash
            refused = anext_event(host, "warning")
            file.write_text(CONFIG.replace("listen", "listn"))
            await refused.wait()
            nursery.cancel_scope.cancel()
        assert after != before
        assert host.configuration().hash == after


def anext_event(host: Host, name: str) -> trio.Event:
    """Set when the host tells such a thing of itself."""
    told = trio.Event()

    def hear(record: EventRecord) -> None:
        if event_name(record.event) == name:
            told.set()

    host.events.attach(HOST_STREAM, hear)
    return told


def test_a_token_is_shown_once_and_listed_without_itself(here: Path, run: Run) -> None:
    (here / "motet.toml").write_text(CONFIG)
    made = run("token", "new", "alice", "--expires", "90d", "--label", "phone")
    assert made.out.startswith("mtt_")
    listed = run("token")
    assert "alice" in listed.out
    assert made.out.strip() not in listed.out
    assert run("token", "new", "bob", "--expires", "soon").code == 2
    assert run("token", "revoke", "tok_000000000000").code == 1


def test_the_commands_about_a_configuration(here: Path, run: Run) -> None:
    file = here / "motet.toml"
    file.write_text(CONFIG + '[rooms.dev]\nmembers = ["helper", "codr"]\n')
    checked = run("config", "check", "--json")
    assert checked.code == 1
    broken = [one["text"] for one in json.loads(checked.out) if one["verdict"] == "broken"]
    assert broken == ["dev: unknown agent 'codr'; known: helper"]
    shown = run("config", "show")
    assert 'agents.helper.instructions = "one"' in shown.out
    assert "guard" not in shown.out
    assert 'guard = "warn"' in run("config", "show", "--effective").out
    assert json.loads(run("config", "schema").out)["title"] == "motet.toml"


def test_a_check_starts_nothing_and_checks_the_rest(here: Path, run: Run) -> None:
    """Given things that are named and not there, then each is found, and nothing is started."""
    (here / "motet.toml").write_text(
        '[[hooks]]\npoint = "run_end"\ncommand = ["./nothing"]\n'
        '[mcp.git]\ncommand = ["no-such-program"]\n'
        '[gateway]\ncertificate = "cert.pem"\nlisten = "0.0.0.0:0"\n'
        '[agents.a]\nmodel = "demo"\n[[policy]]\ntool = "no_such_tool"\neffect = "deny"\n'
    )
    checked = json.loads(run("config", "check", "--json").out)
    broken = {one["topic"]: one["text"] for one in checked if one["verdict"] == "broken"}
    assert broken["hook"] == "hooks[0]: there is no program './nothing'"
    assert broken["mcp"] == "git: there is no program 'no-such-program'"
    assert str(here / "cert.pem") in broken["gateway"]
    assert "no_such_tool" in broken["host"]


def test_nothing_of_a_project_is_overwritten(tmp_path: Path) -> None:
    write_project(tmp_path / "mine")
    assert load_config(tmp_path / "mine" / "motet.toml").agents["helper"].model == "demo"
    (tmp_path / "mine" / "motet.toml").write_text("# mine")
    (tmp_path / "mine" / "agent_tools.py").unlink()
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        write_project(tmp_path / "mine")
    assert (tmp_path / "mine" / "motet.toml").read_text() == "# mine"
    assert not (tmp_path / "mine" / "agent_tools.py").exists()


def test_a_project_begins_with_a_test_that_holds(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a new project, when its test is called as pytest would, then it passes."""
    assert run("init").code == 0
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    space: dict[str, object] = {}
    exec(compile((here / "test_agents.py").read_text(), "test_agents.py", "exec"), space)
    test = space["test_the_agent_counts_words"]
    assert callable(test)
    test(here / "work")
    checked = run("config", "check", "--json")
    assert {one["verdict"] for one in json.loads(checked.out)} == {"ok"}
