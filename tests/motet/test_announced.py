"""The token of a server without others: who finds it, and who gets nothing."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import stat
import subprocess
from contextlib import closing, redirect_stdout
from pathlib import Path

import pytest
import trio

import motet as library
from motet.announced import announced, kept_token, own_server, running
from motet.cli.serve import announce, serve
from motet.cli.setup import Setup, load_setup
from motet.client import TurnedAway
from motet.protocols.errors import ConfigError
from motet.protocols.tokens import Operator
from tests.motet.command import PATIENCE, motet, started

LISTEN = ("--listen", "127.0.0.1:0")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default state directory, also of commands that are started in ``tmp_path``."""
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}-xdg")
    state = Path(f"{tmp_path}-xdg", "motet")
    state.mkdir(parents=True)
    return state


def metrics(address: str) -> int:
    with closing(http.client.HTTPConnection(address)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().status


async def principal(url: str, token: str | None = None) -> str:
    with trio.fail_after(PATIENCE):
        async with library.connect(url, token=token) as client:
            assert client.server is not None
            return f"{client.server.principal.user} {client.server.principal.role}"
    raise AssertionError


@pytest.mark.slow
def test_a_server_makes_a_token_that_its_user_need_not_type(tmp_path: Path, home: Path) -> None:
    with started("serve", *LISTEN, cwd=tmp_path) as server:
        server.expect("motet serves ")
        url = server.expect("\n").strip()
        server.expect("#token=")
        token = server.expect("\n").strip()
        address = url.removeprefix("ws://").removesuffix("/ws")

        for found in (url, f"ws://{address}", f"ws://{address.replace('127.0.0.1', 'localhost')}"):
            assert trio.run(principal, found) == "local admin"
        assert metrics(address) == 401
        shown = motet("errors", "--url", url, cwd=tmp_path)
        assert shown.code == 0, shown
        stranger = {"XDG_STATE_HOME": f"{tmp_path}-elsewhere"}  # as another user
        for words in (("errors",), ("chat",)):
            refused = motet(*words, "--url", url, cwd=tmp_path, env=stranger, stdin="hi\n")
            assert refused.code != 0
            assert "token" in refused.err, (words, refused)
        kept = [home / "token", home / "server.json", *(home / "servers").iterdir()]
        assert {stat.S_IMODE(file.stat().st_mode) for file in kept} == {0o600}
        assert len(kept) == 3
        assert token == (home / "token").read_text().strip()
        if os.geteuid() == 0 and shutil.which("setpriv"):
            nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat")
            assert subprocess.run([*nobody, *kept], capture_output=True, check=False).stdout == b""
        server.signal(signal.SIGTERM)
        assert server.end() == 0
    assert list((home / "servers").iterdir()) == []
    with started("serve", *LISTEN, cwd=tmp_path) as server:
        server.expect(f"#token={token}\n")
        server.signal(signal.SIGKILL)
        server.end()
    assert running(home) is None


@pytest.mark.slow
def test_without_a_token_everybody_here_is_told_to_be_an_admin(tmp_path: Path) -> None:
    with started("serve", *LISTEN, "--no-token", cwd=tmp_path) as server:
        server.expect("motet serves ")
        url = server.expect("\n").strip()
        assert "#token" not in server.expect("every user and program of this machine is an admin")
        assert trio.run(principal, url) == "local admin"


@pytest.mark.slow
def test_the_token_is_not_printed_where_others_can_read_it(tmp_path: Path, home: Path) -> None:
    setup, operator = load_setup(None, home), Operator("mtt_" + "0" * 32, required=True)
    for mode, told in ((0o644, False), (0o600, True)):
        log = tmp_path / f"{mode}.log"
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY, mode)
        os.fchmod(descriptor, mode)
        with open(descriptor, "w") as out, redirect_stdout(out):
            trio.run(_announced, setup, operator)
        assert (operator.token in log.read_text()) is told


async def _announced(setup: Setup, operator: Operator) -> None:
    async with library.open_host() as host:
        announce(setup, host, "http://127.0.0.1:1", (), operator)


def test_no_token_beside_a_token_is_refused(tmp_path: Path, home: Path) -> None:
    with pytest.raises(ConfigError, match="there is a token"):
        serve(load_setup(None, tmp_path), None, tmp_path / "token.txt", open_to_all=True)


def test_a_token_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    token = kept_token(tmp_path)
    assert kept_token(tmp_path) == token
    (tmp_path / "token").chmod(0o640)

    with pytest.raises(ConfigError, match="readable for its owner only"):
        kept_token(tmp_path)
    (tmp_path / "token").write_text("words")
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(ConfigError, match="delete it"):
        kept_token(tmp_path)


async def test_the_token_of_a_server_that_has_ended_is_sent_to_nobody(
    tmp_path: Path, home: Path
) -> None:
    async with library.open_host(tmp_path / "st") as host:
        url = await host.serve(library.GatewayConfig(listen="127.0.0.1:0"))
        address = url.removeprefix("http://")
        port = int(address.rpartition(":")[2])
        home.rmdir()
        with announced(tmp_path / "st", url, "mtt_" + "0" * 32, None):
            assert {stat.S_IMODE(at.stat().st_mode) for at in (home, home / "servers")} == {0o700}
            found = own_server("127.0.0.1", port)
            assert found is not None
            assert own_server("127.0.0.1", port + 1) is None
            assert own_server("192.0.2.1", port) is None
            left = [file.read_bytes() for file in (home / "servers").iterdir()]
    (home / "servers" / f"127.0.0.1-{port}.json").write_bytes(left[0])  # as a kill leaves it
    (home / "servers" / f"127.0.0.1-{port}.json").chmod(0o600)

    assert own_server("127.0.0.1", port) is None


async def test_a_host_of_a_program_needs_a_token_if_its_operator_says_so(tmp_path: Path) -> None:
    token = "mtt_" + "0123456789abcdef" * 2
    for required in (False, True):
        async with library.open_host() as host:
            gateway = library.GatewayConfig(listen="127.0.0.1:0")
            url = await host.serve(gateway, operator=Operator(token, required=required))
            assert await principal(url, token) == "local admin"
            if not required:
                assert await principal(url) == "local admin"
                continue
            with pytest.raises(TurnedAway):
                await principal(url)
            await host.reload(library.HostConfig(guard="block"))
            with pytest.raises(TurnedAway):
                await principal(url)


async def test_its_own_token_does_not_open_a_server_to_other_machines() -> None:
    async with library.open_host() as host:
        gateway = library.GatewayConfig(listen="0.0.0.0:0")
        with pytest.raises(ConfigError, match="without a token"):
            await host.serve(gateway, operator=Operator("mtt_" + "0" * 32, required=True))


def test_a_pointer_that_others_could_write_is_not_followed(home: Path, tmp_path: Path) -> None:
    folder = home / "servers"
    folder.mkdir()
    file = folder / "127.0.0.1-7878.json"
    file.write_text(json.dumps({"state": str(tmp_path)}))
    file.chmod(0o666)

    assert own_server("127.0.0.1", 7878) is None
