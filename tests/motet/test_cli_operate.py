"""A person at a running server: who it finds, what it stops, and another configuration."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from motet.actors.config import load_config
from motet.cli.init import write_project
from motet.protocols.errors import ConfigError
from tests.motet.command import Process, environment, motet, started

CONFIG = """
state = "state"
workspace = "work"
[agents.helper]
model = "demo"
instructions = "one"
[gateway]
listen = "127.0.0.1:0"
"""


def serving(server: Process) -> None:
    server.expect("motet serves ")
    server.expect("\n")


@pytest.mark.slow
def test_a_server_is_found_looked_at_stopped_and_configured_anew(tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text(CONFIG)
    none = motet("ps", cwd=tmp_path)
    assert none.code == 1
    assert "motet serve" in none.err
    with started("serve", "--watch", cwd=tmp_path) as server:
        serving(server)
        assert (tmp_path / "state" / "server.json").stat().st_mode & 0o777 == 0o600

        actors = json.loads(motet("ps", "--json", cwd=tmp_path).out)
        assert "/host/gateway" in [actor["path"] for actor in actors]
        assert "gateway" in motet("ps", cwd=tmp_path).out

        assert motet("stop", cwd=tmp_path).code == 2
        assert motet("stop", "--all", cwd=tmp_path).out == "nothing was going on\n"
        assert motet("stop", "run_nobody", cwd=tmp_path).code == 1

        made = json.loads(motet("token", "new", "alice", "--json", cwd=tmp_path).out)
        assert made["token"].startswith("mtt_")
        assert "/host/gateway" in motet("ps", "--json", cwd=tmp_path).out, "the file lets us in"
        revoked = motet("token", "revoke", made["info"]["id"], cwd=tmp_path)
        assert "alice is revoked" in revoked.out

        file.write_text(CONFIG.replace("one", "two"))
        server.expect("the configuration was reloaded")
        file.write_text(CONFIG.replace("listen", "listn"))
        server.expect("did you mean 'listen'?")
        file.write_text(CONFIG)
        server.expect("the configuration was reloaded")
        server.signal(signal.SIGHUP)
        server.expect('"changes": []')
        assert motet("config", "reload", cwd=tmp_path).out == "nothing has changed\n"

        server.signal(signal.SIGTERM)
        assert server.end() == 0
    assert not (tmp_path / "state" / "server.json").exists()


def test_nothing_of_a_project_is_overwritten(tmp_path: Path) -> None:
    write_project(tmp_path / "mine")
    assert load_config(tmp_path / "mine" / "motet.toml").agents["helper"].model == "demo"
    (tmp_path / "mine" / "motet.toml").write_text("# mine")
    (tmp_path / "mine" / "agent_tools.py").unlink()
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        write_project(tmp_path / "mine")
    assert (tmp_path / "mine" / "motet.toml").read_text() == "# mine"
    assert not (tmp_path / "mine" / "agent_tools.py").exists()


@pytest.mark.slow
def test_a_project_starts_with_a_test_that_runs(tmp_path: Path) -> None:
    made = motet("init", "mine", cwd=tmp_path)
    assert made.code == 0, made.err
    folder = tmp_path / "mine"
    checked = motet("config", "check", "--json", cwd=folder)
    assert {one["verdict"] for one in json.loads(checked.out)} == {"ok"}
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        arguments, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout
    assert motet("init", "mine", cwd=tmp_path).code == 2
