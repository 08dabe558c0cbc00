"""``motet serve`` as a process: who may connect, how it ends, what it tells after a crash."""

import asyncio
import gc
import http.client
import json
import math
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
import trio
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

import motet as library
from motet.cli.serve import announce, collect_rarely, gateway_config
from motet.cli.service import Manager, opened_sockets
from motet.cli.setup import load_setup
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.errors import ConfigError
from motet.protocols.models import ModelRequest
from motet.protocols.rooms import RoomPlan
from motet.testing import FunctionModel, Step, say
from tests.motet.command import PATIENCE, UNSAFE_SHELL, Process, motet, started

TOKEN = "mtt_" + "0123456789abcdef" * 2
LISTEN = ("--listen", "127.0.0.1:0")
OPEN = (*LISTEN, "--no-token")
UNSAFE_APART = UNSAFE_SHELL.replace('"."', '"work"')


def url(server: Process) -> str:
    server.expect("motet serves ")
    return server.expect("\n").strip()


async def ask(address: str, *requests: tuple[str, Mapping[str, object]]) -> list[dict[str, object]]:
    """The answers to some requests on one connection."""
    async with connect(address, subprotocols=[Subprotocol("motet.v1")]) as socket:
        answers: list[dict[str, object]] = []
        for number, (method, params) in enumerate(requests):
            frame = {"type": "req", "id": str(number), "method": method, "params": params}
            await socket.send(json.dumps(frame))
            answer: dict[str, object] = {"type": ""}
            while answer["type"] != "res":
                answer = json.loads(await socket.recv())
            answers.append(answer)
        return answers


def readiness(address: str) -> tuple[int, object]:
    """The answer of ``/healthz/ready`` to a balancer."""
    connection = http.client.HTTPConnection(address.removeprefix("ws://").partition("/")[0])
    with closing(connection):
        connection.request("GET", "/healthz/ready")
        answer = connection.getresponse()
        return answer.status, json.load(answer)


@pytest.mark.slow
def test_a_token_file_is_made_once_and_needed_from_then_on(tmp_path: Path) -> None:
    with started("serve", *LISTEN, "--token-file", "token.txt", cwd=tmp_path) as server:
        server.expect("a new token is in token.txt")
        address = url(server)
        server.expect("clients need one")
        token = (tmp_path / "token.txt").read_text().strip()

        (right,) = asyncio.run(ask(address, ("connect", {"auth": {"token": token}})))
        (wrong,) = asyncio.run(ask(address, ("connect", {"auth": {"token": TOKEN}})))

        assert (right["ok"], wrong["ok"]) == (True, False)
        assert (tmp_path / "token.txt").stat().st_mode & 0o777 == 0o600
        server.signal(signal.SIGINT)
        server.expect("stopping: runs get some time to end")
        assert server.end() == 0
    kept = gateway_config(GatewayConfig(), None, tmp_path / "token.txt")
    assert kept.tokens == (TokenConfig(token=token, role="admin"),)


@pytest.mark.slow
def test_after_kill_9_the_next_server_names_the_run_that_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / "motet.toml").write_text(f"{UNSAFE_APART}[recovery]\nresume_within = 0\n")
    send = ("chat.send", {"session": "s", "text": "wait 600", "key": "k"})
    with started("serve", *OPEN, cwd=tmp_path) as server:
        _, sent = asyncio.run(ask(url(server), ("connect", {}), send))
        assert sent["ok"] is True
        server.signal(signal.SIGKILL)
        server.end()

    doctor = motet("doctor", cwd=tmp_path)
    with started("serve", *OPEN, cwd=tmp_path) as server:
        address = url(server)
        server.expect("interrupted by the end of the last host: run_")
        server.expect("s: wait 600")
        history = ("sessions.history", {"session": "s"})
        _, rows = asyncio.run(ask(address, ("connect", {}), history))
        server.signal(signal.SIGTERM)
        assert server.end() == 0

    assert "1 cut off by the end of their host" in doctor.out
    assert '"wait 600"' in json.dumps(rows)


async def test_a_turn_that_its_room_repeats_is_not_named_as_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "motet.toml").write_text("")
    setup, left = load_setup(tmp_path / "motet.toml", tmp_path / "killed"), trio.Event()
    asked: list[str] = []

    async def answer(request: ModelRequest) -> Step:
        asked.append(request.messages[-1].text)
        if not left.is_set():
            await trio.sleep_forever()
        return say("done")

    ann = library.Agent("ann", model=FunctionModel(answer, name="ann"))
    async with library.open_host(tmp_path / "st", agents=[ann]) as host:
        room = (await host.rooms.create("den", RoomPlan(("ann",)))).name
        await host.rooms.post(room, "hello")
        while not asked:
            await trio.lowlevel.checkpoint()
        shutil.copytree(tmp_path / "st", tmp_path / "killed")  # as a kill leaves it
    left.set()
    killed = library.open_host(tmp_path / "killed", config=setup.config, agents=[ann])
    async with killed as host:
        await (await host.open_room(room)).wait()
        assert len(asked) == 2, "the room has repeated it"
        assert [one.session for one in host.interrupted] == [f"agent:ann:room:group:{room}"]
        announce(setup, host, "http://127.0.0.1:1", (), None)
    told = capsys.readouterr().out
    assert "motet serves ws://127.0.0.1:1/ws" in told
    assert "interrupted" not in told


@pytest.mark.slow
def test_after_kill_9_the_next_server_answers_acknowledged_inputs(tmp_path: Path) -> None:
    send = ("chat.send", {"session": "s", "text": "hello", "key": "k"})
    with started("serve", *OPEN, cwd=tmp_path) as server:
        _, sent = asyncio.run(ask(url(server), ("connect", {}), send))
        server.signal(signal.SIGKILL)
        server.end()
    run_id = _field(sent, "run_id")

    with started("serve", *OPEN, cwd=tmp_path) as server:
        wait = ("runs.wait", {"run_id": run_id, "timeout_ms": 20_000})
        again = asyncio.run(ask(url(server), ("connect", {}), wait, send))
        server.signal(signal.SIGTERM)
        assert server.end() == 0

    run = _field(again[1], "run")
    assert isinstance(run, dict)
    assert run["status"] == "completed"
    assert (_field(again[2], "status"), _field(again[2], "run_id")) == ("duplicate", run_id)


@pytest.mark.slow
def test_a_signal_drains_live_runs_and_a_second_one_cuts_them_off(tmp_path: Path) -> None:
    """A balancer sees at once that no new client is served."""
    (tmp_path / "motet.toml").write_text(UNSAFE_APART)
    send = ("chat.send", {"session": "s", "text": "wait 600", "key": "k"})
    late = ("chat.send", {"session": "s", "text": "too late", "key": "l"})
    with started("serve", *OPEN, cwd=tmp_path) as server:
        address = url(server)
        asyncio.run(ask(address, ("connect", {}), send))
        server.signal(signal.SIGTERM)
        server.expect("stopping: runs get some time to end")
        _, refused = asyncio.run(ask(address, ("connect", {}), late))
        assert readiness(address) == (503, {"status": "draining"})
        server.signal(signal.SIGTERM)
        assert server.end() == 128 + signal.SIGTERM
    error = refused["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["retryable"]) == ("unavailable", True)


def _field(answer: dict[str, object], name: str) -> object:
    result = answer["result"]
    assert isinstance(result, dict), answer
    return cast("dict[str, object]", result)[name]  # decoded JSON


@pytest.mark.slow
def test_the_service_manager_is_told_of_start_life_reload_and_stop(tmp_path: Path) -> None:
    """systemd's ``Type=notify`` with a watchdog."""
    (tmp_path / "motet.toml").write_text(UNSAFE_APART)
    name = f"motet-{os.getpid()}-{tmp_path.name}"
    told = list[dict[str, str]]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(PATIENCE)

        def hear(key: str) -> None:
            while not told or key not in told[-1]:
                lines = manager.recv(4096).decode().splitlines()
                told.append(dict(line.split("=", 1) for line in lines))

        env = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "100000"}
        with started("serve", *OPEN, cwd=tmp_path, env=env) as server:
            url(server)
            hear("READY")
            hear("WATCHDOG")
            server.signal(signal.SIGHUP)
            hear("RELOADING")
            assert int(told[-1]["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1_000
            hear("READY")
            server.signal(signal.SIGTERM)
            hear("STOPPING")
            assert server.end() == 0


def test_a_watchdog_of_another_process_is_not_fed() -> None:
    given = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}
    assert Manager.of(given).period is None
    assert given == {}
    given = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "100000", "WATCHDOG_PID": f"{os.getpid()}"}
    assert Manager.of(given).period == 0.1
    assert Manager.of({"WATCHDOG_USEC": "100000"}).period is None
    Manager.of({"NOTIFY_SOCKET": "/nowhere/at/all"}).ready()


@pytest.mark.slow
def test_a_server_refuses_unsafe_and_impossible_settings(tmp_path: Path) -> None:
    open_to_all = motet("serve", "--listen", "0.0.0.0:0", "--state", "a", cwd=tmp_path)
    with started("serve", *OPEN, cwd=tmp_path) as server:
        url(server)
        twice = motet("serve", *LISTEN, cwd=tmp_path)

    assert open_to_all.code == 2
    assert open_to_all.err.startswith("motet: refusing to listen on '0.0.0.0' without a token")
    assert twice.code == 1
    assert f"used by process {server.popen.pid}" in twice.err
    assert not [done for done in (open_to_all, twice) if done.out or "Traceback" in done.err]


def test_tokens_of_the_configuration_and_the_environment_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alice = TokenConfig(token=TOKEN, user="alice", role="viewer")
    monkeypatch.setenv("MOTET_TOKEN", TOKEN[:-1] + "0")

    config = gateway_config(GatewayConfig(tokens=(alice,)), "localhost:1234", None)

    assert config.listen == "localhost:1234"
    assert [token.user for token in config.tokens] == ["alice", "local"]


def test_a_token_that_is_none_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOTET_TOKEN", "hunter2")
    with pytest.raises(ConfigError, match="MOTET_TOKEN: token must be 'mtt_'") as caught:
        gateway_config(GatewayConfig(), None, None)
    assert "hunter2" not in str(caught.value)

    monkeypatch.delenv("MOTET_TOKEN")
    with pytest.raises(IsADirectoryError):
        gateway_config(GatewayConfig(), None, tmp_path)


def test_a_server_looks_less_often_at_what_is_alive() -> None:
    """A crowd of 5,000 tasks makes no collection of all objects due."""
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.get_freeze_count() > 10_000
        assert math.prod(gc.get_threshold()) >= 40 * 70_000
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_the_sockets_of_the_service_manager_are_taken_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = str(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as opened, socket.socket() as other:
        monkeypatch.setattr("motet.cli.service.FIRST", opened.fileno())
        given = {"LISTEN_PID": pid, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "PATH": "/"}
        os.set_inheritable(opened.fileno(), True)
        address, port = opened.getsockname()
        assert opened_sockets(given) == (f"{address}:{port}", (opened.fileno(),))
        assert given == {"PATH": "/"}
        assert not os.get_inheritable(opened.fileno())
        assert opened_sockets({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
        monkeypatch.setattr("motet.cli.service.FIRST", other.fileno())
        with pytest.raises(ConfigError, match="does not listen on TCP"):
            opened_sockets({"LISTEN_PID": pid, "LISTEN_FDS": "1"})
