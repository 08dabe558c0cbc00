"""Every example does what it says: most in this process, daemons as the processes they are."""

from __future__ import annotations

import os
import re
import runpy
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import trio

from motet.actors.models.demo import DemoModel
from tests import forks

EXAMPLES = Path(__file__).parents[2] / "examples"

SAYS = {
    "hello": r"""
        I am motet's demo model: .*
        completed, \d+ tokens
        rows of this session so far: 2
    """,
    "streaming": r"""
        I call write_file\.
        -> write_file {'path': 'notes.txt', 'content': 'buy milk'}
        <- write_file worked
        I call read_file\.
        -> read_file {'path': 'notes.txt'}
        <- read_file worked
        write_file:
        created notes\.txt: 8 bytes

        read_file:
        buy milk
        completed
    """,
    "tools": r"""
        There were 0 pears, so I ordered 3\.
        orders: \['3 pears'\]
    """,
    "structured": r"""
        high: Login fails \(2 steps\)
    """,
    "team": r"""
        writer: Trio has been around since 2017\.
        librarian +completed
        (?:lead|writer) +completed
    """,
    "room": r"""
        \[bob\] the names are cid, ann and ben
        \[alice\] @planner who does it\?
        \[planner\] @coder please sort the names\.
        \[coder\] @planner sorted: ann, ben, cid\.
        \[planner\] Well done\.
        3 turns; nobody to speak
    """,
    "guard": r"""
        \[audit\] shell: refused
        \[audit\] shell: ran ls in /srv
        I listed the files\.
    """,
    "stop_and_steer": r"""
        Then I look no further\.
        stopped 1, still running 0
        cancelled
    """,
    "errors": r"""
        completed - I could not find bob\.
        lookup, \w+: .*broken near 'bob'.*
        stored in full: \[.*'message'.*
        limited by turns
    """,
    "mcp_tools": r"""
        I have noted it\.
        the server has ended with its host
    """,
    "approvals": r"""
        done: restarted sshd, since it hangs
    """,
    "teams/writer_critic": r"""
        \[writer\] The sea is big\.
        \[critic\] Too plain\.
        \[writer\] The sea has no other side\.
        \[critic\] APPROVE
        4 turns; 'APPROVE' was said
    """,
    "teams/triage": r"""
        \[alice\] I want my money back\.
        \[triage\] Refunds will help you\.
        \[refunds\] Which order is it\?
        \[alice\] Order A-17\.
        \[refunds\] Order A-17 is refunded\.
    """,
    "teams/group_chat": r"""
        \[planner\] First search, then compute\.
        \[searcher\] The Heat scored .*
        \[analyst\] That is 48 % more\.
        \[planner\] TERMINATE
        'TERMINATE' was said
    """,
    "teams/plan": r"""
        \[research\.planner\] Facts to look up.*
        \[surfer\] Nothing found\.
        .*
        \[research\.planner\] The search was too narrow.*
        \[librarian\] School of Notre-Dame.*
        \[research\.reporter\] Motets were first written in Paris, around 1200\.
        9 turns; nobody to speak
    """,
    "teams/graph": r"""
        \[writer\] A draft\.
        \[grammar\] A comma is missing\.
        \[style\] Shorter, please\.
        \[editor\] Final: a draft, short\.
        nobody to speak
    """,
}
DAEMONS = {"asyncio_daemon", "bridge_tcp", "threads_daemon"}


def answering(answer: str) -> Callable[[str], str]:
    """A person at the terminal."""
    return lambda _question: answer


def pattern(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_the_table_and_the_tests_name_every_example() -> None:
    paths = (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("teams/*.py"))
    files = {path.relative_to(EXAMPLES).with_suffix("").as_posix() for path in paths}
    text = (EXAMPLES / "README.md").read_text()
    table = re.findall(r"^\| \[([\w/]+)\.py\]\(\1\.py\)", text, re.M)
    assert files == set(table) == SAYS.keys() | DAEMONS


@pytest.mark.parametrize("name", SAYS)
def test_an_example_prints_what_it_is_about(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "mcp_tools":
        pytest.importorskip("mcp")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DemoModel.__init__, "__kwdefaults__", {"pace": 0.0})  # no pauses
    monkeypatch.setattr("builtins.input", answering("y"))

    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    assert re.fullmatch(pattern(SAYS[name]), capsys.readouterr().out.strip(), re.S)


def test_an_approval_that_is_refused_is_no_restart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", answering("n"))

    runpy.run_path(str(EXAMPLES / "approvals.py"), run_name="__main__")

    assert capsys.readouterr().out.startswith("not done:")


@contextmanager
def daemon(name: str) -> Generator[tuple[forks.Program, int, IO[str]]]:
    """A daemon that has said where it listens."""
    # stderr goes to the test's: pytest shows it when the test fails.
    with (
        TemporaryDirectory() as folder,
        forks.started("-W", "error", str(EXAMPLES / f"{name}.py"), cwd=Path(folder)) as process,
    ):
        try:
            assert process.stdout is not None
            output = TextIOWrapper(process.stdout)
            yield process, int(output.readline().split()[-1]), output
        finally:
            process.kill()


@pytest.mark.slow
async def test_the_daemon_of_asyncio_answers_lines_and_ends_its_runs_on_a_signal() -> None:
    with trio.fail_after(30), daemon("asyncio_daemon") as (process, port, output):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"hello\n")
            assert (await stream.receive_some()).startswith(b"I ")
            await stream.send_all(b"wait 60\n")

            os.kill(process.pid, signal.SIGTERM)

            said = await trio.to_thread.run_sync(output.read)
            assert said == "all runs have ended\n"
            assert process.wait() == 0


@pytest.mark.slow
async def test_the_daemon_of_threads_answers_requests_and_ends_on_ctrl_c() -> None:
    def fetch(path: str) -> str:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as response:
            return str(response.read(), "utf-8")

    with trio.fail_after(30), daemon("threads_daemon") as (process, port, output):
        assert (await trio.to_thread.run_sync(fetch, "/alice?hello")).startswith("I am motet's")
        with pytest.raises(HTTPError, match="400") as refused:
            await trio.to_thread.run_sync(fetch, "/alice")
        refused.value.close()

        os.kill(process.pid, signal.SIGINT)

        assert await trio.to_thread.run_sync(output.read) == "leaving\n"
        assert process.wait() == 0


class Person:
    """Somebody who chats over the bridge."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.heard = ""

    async def say(self, text: str) -> None:
        await self.stream.send_all(text.encode() + b"\n")

    async def hears(self, text: str) -> None:
        """Wait until ``text`` is said; what came before it is gone."""
        while text not in self.heard:
            data = await self.stream.receive_some()
            assert data, f"no {text!r} in {self.heard!r}"
            self.heard += data.decode()
        self.heard = self.heard.partition(text)[2]


@pytest.mark.slow
async def test_the_bridge_lets_each_person_chat_and_stop_as_their_own_user() -> None:
    with trio.fail_after(30), daemon("bridge_tcp") as (_, port, output):
        people: list[Person] = []
        async with (
            await trio.open_tcp_stream("127.0.0.1", port) as one,
            await trio.open_tcp_stream("127.0.0.1", port) as other,
        ):
            for name, stream in (("ada", one), ("bob", other)):
                person = Person(stream)
                await person.hears("Your name?")
                await person.say(name)
                await person.hears(f"Hello {name}")
                people.append(person)
            ada, bob = people

            await ada.say("wait 60")
            await bob.say("/stopall")
            await bob.hears("othing")
            await bob.say("hello")
            await bob.hears("demo model")
            await ada.say("/stop")
            await ada.hears("topped")
            await ada.say("/usage")
            await ada.hears("token")
            await ada.say("x" * 5_000)
            with pytest.raises(AssertionError, match="no 'nothing more'"):
                await ada.hears("nothing more")
        assert output.readable()


@pytest.mark.slow
async def test_the_bridge_wants_a_name() -> None:
    with trio.fail_after(30), daemon("bridge_tcp") as (_, port, _output):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            person = Person(stream)
            await person.say("a name: with a colon")
            await person.hears("A name has 1 to 32")
