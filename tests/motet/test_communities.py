"""docs/guide-communities.md as a new host of a community follows it: each command, in order."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests import forks
from tests.motet.command import ROOT, environment

GUIDE = (ROOT / "docs/guide-communities.md").read_text("utf-8")
PEOPLE = """\
alice: owner
bob: member
cleo: moderator
irc:*: reader
irc:dan: banned
slow mode: one message in 30 s
"""


def script(port: int) -> str:
    """All commands of the guide, as one script that ends at the first that fails."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.M | re.S)
    shell = shlex.join(forks.in_a_shell())
    first = f'set -eu; trap "kill 0" ERR; motet() {{ {shell} -m motet.cli "$@"; }}\n'
    return first + "".join(blocks).replace("7878", str(port))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.slow
def test_a_new_host_gets_from_an_empty_folder_to_a_room_that_people_run(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    ran = subprocess.run(
        ["bash", "-c", script(free_port())],
        cwd=work,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        start_new_session=True,
    )

    assert ran.returncode == 0, ran.stderr + (work / "community/serve.log").read_text()
    assert "[helper] " in ran.stdout
    assert "has used the 1 turns of today: agents answer again from" in ran.stderr
    assert "you are muted in the room" in ran.stderr
    assert PEOPLE in ran.stdout
    head, *messages = (work / "community/club.jsonl").read_text().splitlines()
    room = msgspec.json.decode(head, type=dict[str, object])
    assert (room["owner"], room["terms"]) == ("alice", {"title": "Garden Club", "slow": 30.0})
    said = [msgspec.json.decode(one, type=dict[str, object])["author"] for one in messages]
    assert said == ["bob", "helper", "bob"]  # the second is not answered, the third was refused
    assert "is deleted" in ran.stderr
