"""The command line of the sandbox, as data."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from motet.runtime.process_guard import descendants
from motet.runtime.processes import GUARD
from motet.runtime.sandbox import Machine, Owner, sandbox_argv, unfit

MACHINE = Machine(
    bwrap="/usr/bin/bwrap",
    setpriv="/usr/bin/setpriv",
    prlimit="/usr/bin/prlimit",
    shell="/bin/sh",
    links=(("bin", "usr/bin"), ("lib64", "usr/lib64")),
    folders=("lib",),
    root=False,
)
OWNER = Owner(1234, 5678)


def argv(machine: Machine = MACHINE, *, network: bool = False) -> list[str]:
    return sandbox_argv(machine, "/srv/agents/work", OWNER, "echo hi", network=network)


def test_only_the_workspace_is_mounted_writable() -> None:
    words = argv()
    bound = [words[i + 1] for i, word in enumerate(words) if word == "--bind"]
    assert bound == ["/srv/agents/work"]
    assert words[words.index("--chdir") + 1] == "/srv/agents/work"


def test_of_etc_only_the_entries_for_finding_programs_are_mounted() -> None:
    assert {word for word in argv() if word.startswith("/etc/")} == {
        "/etc/ld.so.cache",
        "/etc/alternatives",
    }


def test_the_root_is_made_read_only_after_everything_is_mounted() -> None:
    words = argv()
    last = max(i for i, word in enumerate(words) if word.startswith(("--bind", "--ro-bind")))
    assert last < words.index("--remount-ro")
    assert ("--remount-ro", "/") in pairwise(words)


def test_the_host_is_laid_out_as_it_is() -> None:
    pairs = set(pairwise(argv()))
    assert {("usr/bin", "/bin"), ("usr/lib64", "/lib64"), ("--ro-bind", "/lib")} <= pairs


def test_an_ordinary_user_needs_a_user_namespace_and_drops_nothing() -> None:
    assert "--unshare-user" in argv()
    assert "/usr/bin/setpriv" not in argv()


def test_root_becomes_the_owner_of_the_workspace_before_the_shell_starts() -> None:
    words = argv(replace(MACHINE, root=True))
    inside = words[words.index("--") :]
    assert "--unshare-user" not in words
    assert inside.index("/usr/bin/setpriv") < inside.index("/bin/sh")
    assert {("--reuid", "1234"), ("--regid", "5678")} <= set(pairwise(inside))


@pytest.mark.parametrize("network", [False, True])
def test_the_network_is_there_when_configured(network: bool) -> None:
    words = argv(network=network)
    assert ("--unshare-net" in words) is not network
    assert ("/etc/resolv.conf" in words) is network


def test_the_environment_is_cleared() -> None:
    words = argv()
    named = {words[i + 1] for i, word in enumerate(words) if word == "--setenv"}
    assert "--clearenv" in words
    assert named == {"PATH", "HOME", "LANG"}


def test_without_prlimit_only_the_number_of_processes_is_unlimited() -> None:
    assert "--nproc=512" in argv()
    assert argv(replace(MACHINE, prlimit=None))[-3:] == ["/bin/sh", "-c", "echo hi"]


@given(st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_a_command_is_one_argument_whatever_it_says(command: str) -> None:
    """Law: no command changes its own sandbox."""
    words = sandbox_argv(MACHINE, "/srv/agents/work", OWNER, command, network=False)
    assert words == [*argv()[:-1], command]


@pytest.mark.parametrize("folder", ["/", "/usr", "/usr/src", "/etc", "/proc/1", "/tmp", "/root"])
def test_a_part_of_the_system_is_no_workspace(folder: str) -> None:
    assert unfit(folder)


@pytest.mark.parametrize("folder", ["/tmp/x", "/root/work", "/home/u/work", "/usrx", "/work"])
def test_an_ordinary_folder_can_be_a_workspace(folder: str) -> None:
    assert not unfit(folder)


@given(st.dictionaries(st.integers(2, 12), st.integers(1, 12), max_size=12))
def test_descendants_are_all_that_lead_to_the_root(parent_of: dict[int, int]) -> None:
    """Law: a process is a descendant exactly if the root is among its ancestors."""

    def leads_to_root(pid: int) -> bool:
        seen: set[int] = set()
        while pid in parent_of and pid not in seen:
            seen.add(pid)
            pid = parent_of[pid]
            if pid == 1:
                return True
        return False

    assert sorted(descendants(1, parent_of)) == [p for p in sorted(parent_of) if leads_to_root(p)]


class TestGuard:
    """The guard by itself, as the host runs it."""

    @staticmethod
    def run(*command: str, limits: str = "") -> subprocess.CompletedProcess[bytes]:
        words = [sys.executable, "-I", "-S", GUARD, "0.1", limits, *command]
        read, lifeline = os.pipe()
        try:
            return subprocess.run(words, stdin=read, capture_output=True, check=False)
        finally:
            os.close(read)
            os.close(lifeline)

    def test_it_ends_with_the_code_of_the_command(self) -> None:
        assert self.run("sh", "-c", "exit 7").returncode == 7

    def test_the_signal_that_kills_a_command_ends_its_guard_too(self) -> None:
        assert self.run("sh", "-c", "kill -TERM $$").returncode == -15

    def test_a_missing_program_has_exit_code_127_and_is_named(self) -> None:
        done = self.run("/no/such/program")
        assert done.returncode == 127
        assert b"cannot start /no/such/program" in done.stdout

    def test_the_command_does_not_read_the_lifeline(self) -> None:
        assert self.run("cat").returncode == 0

    def test_limits_hold_for_the_command(self) -> None:
        done = self.run("sh", "-c", "ulimit -f", limits="RLIMIT_FSIZE=512,RLIMIT_CORE=0")
        assert done.stdout.strip() == b"1"
