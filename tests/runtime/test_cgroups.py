"""Control groups of commands, on the real ``/sys/fs/cgroup`` where this process may divide it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.runtime.cgroups import own_group

HYBRID = (
    "25 20 0:22 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"
    "26 25 0:23 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw\n"
    "27 25 0:24 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
)


def found(mounts: str, groups: str) -> str | None:
    pair = own_group(mounts, groups)
    return None if pair is None else str(pair[1])


def test_the_own_group_is_found_below_the_mount() -> None:
    service = "8:pids:/\n0::/system.slice/motet.service\n"
    where = "/sys/fs/cgroup/unified/system.slice/motet.service"
    assert found(HYBRID, service) == where
    mounted = "30 20 0:26 /system.slice /mnt/a\\040group rw - cgroup2 none rw\n"
    assert found(mounted, service) == "/mnt/a group/motet.service"


def test_a_group_outside_of_the_mount_is_none() -> None:
    assert found("30 20 0:26 /other /mnt rw - cgroup2 none rw\n", "0::/system.slice\n") is None
    assert found(HYBRID, "0::/../outside\n") is None
    assert found(HYBRID, "8:pids:/\n") is None
    assert found("27 25 0:24 / /sys/fs/cgroup/pids rw - cgroup cgroup rw\n", "0::/\n") is None


@given(
    st.lists(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1), max_size=4)
)
def test_a_group_is_at_its_path_below_the_mount(parts: list[str]) -> None:
    group = "/" + "/".join(parts)
    pair = own_group(HYBRID, f"0::{group}\n")
    assert pair is not None
    assert pair[1].relative_to(pair[0]) == PurePosixPath(group).relative_to("/")


@pytest.fixture
def delegated() -> Generator[Path]:
    """A group that is marked as systemd marks one it hands over; skipped if none can be made."""
    pair = own_group(
        Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )
    if pair is None:
        pytest.skip("no cgroup v2 here")
    group = Path(pair[0]) / f"motet-test-{os.getpid()}"
    try:
        group.mkdir()
        os.setxattr(group, "user.delegate", b"1")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"this process may not divide a group: {error}")
    yield group
    for folder in (*group.iterdir(), group):
        if folder.is_dir():
            folder.rmdir()


def told(group: Path, story: str) -> Any:
    """What a process in ``group`` prints, which runs ``story`` with ``shell`` for a command."""
    program = f"""\
        import json, os, sys
        import trio
        open({str(group / "cgroup.procs")!r}, "w").write("0")
        from motet.runtime import cgroups
        from motet.runtime.processes import run_command

        async def shell(command, **totals):
            totals = {{f"TOTAL_{{name.upper()}}": most for name, most in totals.items()}}
            done = await run_command(
                ["sh", "-c", command], cwd="/", env={{"PATH": os.defpath}}, limits=totals,
                timeout=20, room=10_000,
            )
            return done.code, done.output.strip()

        async def story():
{textwrap.indent(textwrap.dedent(story), " " * 12)}

        print(json.dumps(trio.run(story)))
        """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_command_has_a_group_of_its_own(delegated: Path) -> None:
    (delegated / "motet-command-1").mkdir()  # left by a guard that was killed
    inside, own, place, after = told(
        delegated,
        """
        _, inside = await shell("cat /proc/self/cgroup; ls -l /proc/self/fd", cpu=10)
        own, place = open("/proc/self/cgroup").read(), cgroups.command_groups()
        return inside, own, place.path, os.listdir(place.path)
        """,
    )
    assert f"0::/{delegated.name}/motet-command-" in inside
    assert str(delegated) not in inside.partition("total")[2]  # no descriptor leads out of it
    assert place == str(delegated)
    assert not [name for name in after if name.startswith("motet-command-")]
    assert f"0::/{delegated.name}" in own


@pytest.mark.extended
def test_processes_that_live_for_a_moment_have_a_total_of_processor_time(delegated: Path) -> None:
    """The guard looks ten times a second, sees few of them, and would count them at the end."""
    code, output = told(
        delegated,
        """
        burn = "(i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done) &"
        loop = f"for j in $(seq 200); do ({burn}) ; sleep 0.03; done; echo whole"
        return await shell(loop, cpu=1)
        """,
    )
    assert (code, output) == (125, "guard: limit cpu")


@pytest.mark.extended
def test_the_kernel_refuses_what_is_over_a_total(delegated: Path) -> None:
    """Only where the controllers of memory and tasks are free for cgroup v2."""
    totals = {"memory": ("memory", 64 << 20), "tasks": ("pids", 16)}
    over = {
        "memory": "head -c 400M /dev/zero | tail -n 1",
        "tasks": "for i in $(seq 40); do sleep 5 & done; wait",
    }
    tried = 0
    for name, (controller, most) in totals.items():
        if controller in (delegated / "cgroup.controllers").read_text().split():
            tried += 1
            story = f"return await shell({over[name]!r}, {name}={most})"
            code, output = told(delegated, story)
            assert code == 125
            assert output.splitlines()[-1] == f"guard: limit {name}"
    if not tried:
        pytest.skip("another version of control groups has memory and pids here")
