"""``motet chat --url``: the same chat with a ``motet serve``, which goes on when it ends."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.motet.command import UNSAFE_SHELL, Process, motet, started, terminal
from tests.processes import alive, wait_alive

CTRL_C = "\x03"
CTRL_D = "\x04"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the server works; the client has a folder of its own beside it."""
    (tmp_path / "away").mkdir()
    place = tmp_path / "serving"
    place.mkdir()
    (place / "motet.toml").write_text(UNSAFE_SHELL.replace('"."', '"work"'))
    return place


@pytest.fixture
def server(place: Path) -> Iterator[Process]:
    listen = ("--listen", "127.0.0.1:0", "--token-file", "token.txt", "--state", "state")
    with started("serve", *listen, cwd=place) as server:
        yield server


def url_of(server: Process) -> str:
    server.expect("motet serves ")
    return server.expect("\n").strip()


@pytest.mark.slow
def test_a_pipe_is_answered_by_the_server_line_by_line(place: Path, server: Process) -> None:
    url, away = url_of(server), place.parent / "away"
    token = ("--token-file", str(place / "token.txt"))

    done = motet("chat", "--url", url, *token, cwd=away, stdin="run echo one\n/status\n")
    refused = motet("chat", "--url", url, cwd=away, stdin="hi\n")

    assert (done.code, done.out.count("one")) == (0, 1), done
    assert "→ shell" in done.err
    assert "No run" in done.err
    assert (refused.code, "token" in refused.err) == (1, True)
    assert "Traceback" not in refused.err


@pytest.mark.slow
def test_ctrl_c_stops_the_run_at_the_server_and_leaving_does_not(
    place: Path, server: Process
) -> None:
    url, away = url_of(server), place.parent / "away"
    token = ("--token-file", str(place / "token.txt"))
    with terminal("chat", "--url", url, *token, "-s", "s", cwd=away) as chat:
        chat.expect("> ")
        chat.type("run sleep 31441\r")
        chat.expect("→ shell")
        trio.run(wait_alive, "sleep 31441", 1)

        chat.type(CTRL_C)

        chat.expect("[stopped]")
        assert not alive("sleep 31441")
        chat.expect("> ")
        chat.type("run sleep 31442\r")
        chat.expect("→ shell")
        trio.run(wait_alive, "sleep 31442", 1)
        chat.signal(signal.SIGTERM)
        assert chat.end() == 0
    assert alive("sleep 31442")


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back_is_talked_with_again(place: Path) -> None:
    away = place.parent / "away"
    with started("serve", "--listen", "127.0.0.1:0", "--state", "state", cwd=place) as server:
        url = url_of(server)
        found = {"XDG_STATE_HOME": f"{place}-xdg"}  # of the user who serves
        with terminal("chat", "--url", url, "-s", "s", cwd=away, env=found) as chat:
            chat.expect("> ")
            chat.type("run echo before $((40 + 2))\r")
            chat.expect("before 42")
            chat.expect("> ")
            server.signal(signal.SIGKILL)
            server.end()
            chat.expect("connection lost")
            listen = ("--listen", url.removeprefix("ws://").removesuffix("/ws"))
            with started("serve", *listen, "--state", "state", cwd=place) as again:
                url_of(again)
                chat.expect("connected again")
                chat.type("run echo after $((40 + 3))\r")
                chat.expect("after 43")
                chat.expect("> ")
                lines = ("connection lost", "connected again", "→ shell", "✓ shell")
                assert [chat.seen.count(one) for one in lines] == [1, 1, 2, 2], chat.seen
                chat.type(CTRL_D)
                assert chat.end() == 0


@pytest.mark.slow
def test_a_call_that_needs_a_person_is_asked_for_at_the_other_end(place: Path) -> None:
    file = place / "motet.toml"
    file.write_text(file.read_text() + '\n[[policy]]\ntool = "shell"\neffect = "ask"\n')
    with started("serve", "--listen", "127.0.0.1:0", "--state", "state", cwd=place) as server:
        url, away = url_of(server), place.parent / "away"

        token, typed = place / "state" / "token", "run echo one\ny\nrun echo two\nn\n"
        done = motet("chat", "--url", url, "--token-file", str(token), cwd=away, stdin=typed)

    assert done.code == 0, done
    assert "may shell do that?" in done.err
    assert ("one" in done.out, "allowed by local" in done.err) == (True, True)
    assert "denied by local" in done.err
