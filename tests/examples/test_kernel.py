"""The examples of the kernel do what they say, as the processes a user starts."""

from __future__ import annotations

import ast
import io
import re
import runpy
import tokenize
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests import forks

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "kernel"
PEERS = ROOT / "bench" / "peers" / "pykka_programs.py"
LOG = """\
info started
error the disk is full
what is this
info still there
INFO last line
no line without its end
and this one has none: \
"""


@pytest.mark.slow
def test_the_pipeline_loses_only_the_lines_that_crash_its_parser(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text(LOG)

    ran = forks.ran("-W", "error", str(EXAMPLES / "pipeline.py"), str(log))

    assert ran.returncode == 0
    counts, lost = ran.stdout.splitlines()[:2], ran.stdout.splitlines()[2:]
    assert [line.split() for line in counts] == [["error", "1"], ["info", "3"]]
    assert [line.partition(":")[0] for line in lost] == ["lost"] * 2
    assert "Line(number=3" in lost[0]
    assert "Line(number=6" in lost[1]
    assert "no level: 'what'" in ran.stderr


async def conversation(port: int, text: bytes) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(text)
        return bytes(await stream.receive_some())


@pytest.mark.slow
async def test_an_actor_lives_and_ends_in_the_nursery_of_another_program() -> None:
    program = forks.started("-W", "error", str(EXAMPLES / "in_a_nursery.py"))
    with trio.fail_after(30), program as process:
        try:
            assert process.stdout is not None
            port = int((await trio.to_thread.run_sync(process.stdout.readline)).split()[1])

            assert await conversation(port, b"2") == b"2\n"
            assert await conversation(port, b"three") == (
                b"invalid literal for int() with base 10: 'three'\n"
            )
            assert await conversation(port, b"40\n") == b"42\n"
            assert await conversation(port, b"quit") == b""

            assert await trio.to_thread.run_sync(process.stdout.read) == b"stopped at 42\n"
            assert await trio.to_thread.run_sync(process.wait) == 0
        finally:
            process.kill()


PRINTED = {
    "bank": "alice has 70, bob has 80 / refused: only 80 cents in bob",
    "ttl_cache": "tea milk / coffee / None milk",
    "rate_limiter": "gave up / permit 1 / permit 2 / permit 3 / permit 4",
    "worker_pool": "[(1, 60), (2, 30), (3, 20), (4, 15), (5, 12)] / lost: [Job(number=0)]",
    "back_pressure": "20 lines, the source was at most 6 ahead / line 0 ... line 19",
    "pubsub": "0 subscribers left / quick [10, 11, 12, 13, 14] / slow [10, 14]",
    "saga": "['flight for Rome', 'hotel for Rome', 'car for Rome'] / cancelled: flight for Oslo / "
    "cancelled: hotel for Oslo / failed: no car left",
    "chat": "ann reads room: ann is here / ann reads room: bob has left / "
    "ann reads room: bob is here / bob reads ann: hello / bob reads room: bob is here",
    "session": "0 / 1 2 1 / 3 / loaded ann ['tea', 'milk'] / loaded ann [] / saved ann / saved ann",
    "aggregate": "1 2 / ['tea', 'milk'] / refused: it is paid",
}
"""By program, its lines in the order of the alphabet: tasks that are woken together run in any."""


@pytest.mark.parametrize("name", PRINTED)
def test_each_program_prints_what_it_should(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In virtual time, so that no slow machine changes it."""
    program = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    trio.run(program["main"], clock=MockClock(autojump_threshold=0))
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(PRINTED[name].split(" / "))


def test_no_program_is_longer_than_its_pykka_counterpart_by_more_than_a_half() -> None:
    """And each is in the table of the documents with its length."""
    titled = r"# -{60,} (\w+)\n(.*?)(?=\n# -{60,}|\Z)"
    peers: dict[str, str] = dict(re.findall(titled, PEERS.read_text("utf-8"), re.S))
    rows: list[str] = []
    for name in PRINTED:
        own, peer = (
            code_lines((EXAMPLES / f"{name}.py").read_text("utf-8")),
            code_lines(peers[name]),
        )
        assert own <= 1.5 * peer, name
        rows.append(f"| [{name}.py](../examples/kernel/{name}.py) | {own} | {peer} |")
    text = (ROOT / "docs" / "kernel.md").read_text("utf-8")
    assert [row for row in rows if row not in text] == []


def code_lines(text: str) -> int:
    """The lines with code: none of imports, docstrings, comments, and ``if __name__``."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        head = node.body[0] if isinstance(node, _BODIES) and node.body else None
        if isinstance(head, ast.Expr) and isinstance(head.value, ast.Constant):
            left_out.update(range(head.lineno, (head.end_lineno or 0) + 1))
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
    with_code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            with_code.update(range(token.start[0], token.end[0] + 1))
    return len(with_code - left_out)


_BODIES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
