"""The examples of the kernel do what they say, as the processes a user starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests import forks

EXAMPLES = Path(__file__).parents[2] / "examples" / "kernel"
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
