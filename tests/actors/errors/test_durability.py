"""Ids that were shown can be read: after a kill, with a damaged store, of any error."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import motet
from motet.protocols.error_records import Origin
from motet.protocols.storage import Statement, StorageError, Transact
from motet.runtime import StartFailed
from motet.runtime.describe import find_id
from tests import forks
from tests.scripted import Scripted, call, say

# A host whose model calls failing tools for ever, and prints the ids in what it is given.
CHILD = """
import sys, trio, motet
from motet.protocols.chat import ToolMessage
from motet.protocols.limits import Limits
from tests.scripted import Scripted, call

class Shown(Scripted):
    def request(self, request):
        self.then(call(*[("boom", {"n": n}) for n in range(8)]))
        for row in request.messages:
            if isinstance(row, ToolMessage):
                print(row.text.replace("\\n", " "), flush=True)
        return super().request(request)

async def boom(n: int) -> None:
    raise RuntimeError(f"kaboom {n}")

async def main():
    agent = motet.Agent("a", model=Shown(), tools=[boom])
    async with motet.open_host(sys.argv[1]) as host:
        async with trio.open_nursery() as nursery:
            for n in range(4):
                nursery.start_soon(forever, host, agent, f"s{n}")

async def forever(host, agent, session):
    while True:
        await host.run(agent, "go", session=session, check=False)

trio.run(main)
"""


@pytest.mark.slow
async def test_an_id_that_was_shown_is_there_after_a_kill(tmp_path: Path) -> None:
    shown: set[str] = set()
    for lines in (1, 40, 150):
        with forks.started("-c", CHILD, str(tmp_path), stderr=subprocess.DEVNULL) as child:
            assert child.stdout is not None
            for _ in range(lines):
                shown.add(str(find_id(child.stdout.readline().decode())))
            child.kill()
            rest = child.stdout.read().decode()
        # What was on its way through the pipe had been shown, too; the last line may be cut.
        shown |= {str(find_id(line)) for line in rest.splitlines(keepends=True) if line[-1] == "\n"}
    shown.discard("None")
    assert len(shown) > 5
    async with motet.open_host(tmp_path) as host:
        for error_id in shown:
            assert (await host.error(error_id)).raw_error["type"] == "RuntimeError"


@pytest.mark.parametrize("damage", ["no database", "a damaged page"])
async def test_a_corrupt_file_ends_the_start_with_advice(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "motet.db"
    async with motet.open_host(tmp_path):
        pass
    if damage == "no database":
        file.write_bytes(b"this is no database, it only has the name of one " * 100)
    else:
        content = bytearray(file.read_bytes())
        content[100:4096] = b"\xff" * (4096 - 100)
        file.write_bytes(content)
    with pytest.raises((StorageError, StartFailed)) as raised:
        async with motet.open_host(tmp_path):
            pass
    problem = raised.value if isinstance(raised.value, StorageError) else raised.value.__cause__
    assert isinstance(problem, StorageError)
    assert "motet.db is damaged or no SQLite database" in str(problem)
    assert "or move it away to start afresh" in str(problem)


async def test_a_damaged_error_is_a_database_error_for_the_model_and_the_run_continues(
    tmp_path: Path,
) -> None:
    """Corruption that is found in the middle of a run: the model is told, nothing else is lost."""
    script = Scripted(call(("get_error_detail", {"error_id": "err_20240101_000000_abcdef"})))
    script.then(say("went on"))
    agent = motet.Agent("a", model=script, tools=["get_error_detail"])
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        database = host.system.find("/host/database")
        assert database is not None
        await database.ask(Transact((Statement("DROP TABLE agent_errors"),)))
        result = await host.run(agent, "go")
    assert result.output == "went on"
    (failed,) = result.errors
    assert "DATABASE_ERROR" in failed.text


class Nothing(BaseException):
    pass


class Unsaid(int):
    """A number that cannot be compared, as a part of a syntax error."""

    def __lt__(self, other: object) -> bool:
        raise Nothing

    __gt__ = __le__ = __ge__ = __lt__


class Loader:
    """An importer's own, which keeps its source to itself."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind

    def get_source(self, _name: str) -> str:
        raise self._kind("no source")


def of_a_loader(kind: type[BaseException]) -> BaseException:
    """An error out of a module whose loader raises such errors."""
    names: dict[str, Any] = {"__name__": "virtual", "__loader__": Loader(kind)}
    exec(compile("def fail():\n    raise OSError('boom')\n", f"virtual {kind}", "exec"), names)
    with pytest.raises(OSError, match="boom") as caught:
        names["fail"]()
    return caught.value


def of_syntax() -> BaseException:
    error = SyntaxError("bad", ("f.py", 1, 1, "text", 1, 2))
    error.offset = Unsaid(1)
    return error


class Hidden(type):
    """A class that does not say where it is from."""

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise Nothing


class Placeless(Exception, metaclass=Hidden):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: of_a_loader(Nothing),
        lambda: of_a_loader(SystemExit),
        lambda: of_a_loader(GeneratorExit),
        of_syntax,
        lambda: Placeless("boom"),
    ],
    ids=["loader", "loader: SystemExit", "loader: GeneratorExit", "numbers", "class"],
)
async def test_an_error_whose_parts_raise_while_it_is_described_is_stored(
    tmp_path: Path, make: Callable[[], BaseException]
) -> None:
    async with motet.open_host(tmp_path) as host:
        told = await host._parts.services.errors.report(Origin("s", "t"), make())  # pyright: ignore[reportPrivateUsage]
        assert told.error_id is not None
        found = await host.error(told.error_id)
        assert found.raw_error["message"] in {"boom", "bad (f.py, line 1)", "Placeless: boom"}
