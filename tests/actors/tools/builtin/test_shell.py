"""The shell tool with real processes: their confinement, and that none outlives its call (G2)."""

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Literal, TypeVar

import pytest
import trio
from attrs import evolve
from msgspec.structs import replace

from motet.actors.errors.classify import SUGGESTIONS
from motet.actors.tools.builtin.paths import NOBODY
from motet.actors.tools.builtin.shell import Shell
from motet.protocols.command_limits import FILE_MB, command_limits
from motet.protocols.config import ShellConfig
from motet.protocols.tools import ToolFailure, ToolNegative
from motet.runtime.sandbox import inspect_machine

T = TypeVar("T")
Mode = Literal["sandbox", "unsafe"]
CONFIG = ShellConfig(timeout=30)

TREES = {
    "in the background": "sleep {0} & sleep {0}",
    "in a session of its own": "setsid sleep {0} & sleep {0}",
    "a daemon": "(setsid sh -c 'sleep {0} & exit' &) ; sleep {0}",
    "deaf to SIGTERM": "trap '' TERM; sleep {0} & while :; do sleep {0}; done",
    "stopped": "sleep {0} & kill -STOP $!; sleep {0}",
    "writing without end": "yes {0} & sleep {0}",
}


@pytest.fixture(params=["sandbox", "unsafe"])
def mode(request: pytest.FixtureRequest) -> Mode:
    mode: Mode = request.param
    if mode == "sandbox":
        request.getfixturevalue("sandbox")
    return mode


@pytest.fixture
def shell(mode: Mode) -> Shell:
    return Shell(evolve(CONFIG, mode=mode))


@pytest.fixture
def confined(sandbox: None) -> Shell:
    del sandbox
    return Shell(CONFIG)


@pytest.fixture
def marker() -> str:
    """A sleep time that no other process on the machine has."""
    return f"{secrets.randbelow(90_000) + 10_000}.{secrets.randbelow(10**9)}"


def processes_with(marker: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if marker in words and int(entry.name) != os.getpid():
                found[int(entry.name)] = words
    return found


def zombies_of(pid: int) -> list[str]:
    stats: list[str] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            stats.append(path.read_text())
    fields = [stat.rpartition(")")[2].split() for stat in stats]
    return [field[0] for field in fields if int(field[1]) == pid and field[0] == "Z"]


def tree(kind: str, marker: str) -> str:
    return "exec 9>ready; echo up >&9; " + TREES[kind].format(marker)


async def in_thread(function: Callable[[], T]) -> T:
    with trio.fail_after(20):
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True)


async def running(ready: Path) -> FileIO:
    """The pipe, once the command has reported that it runs."""

    def opened() -> FileIO:
        pipe = ready.open("rb", buffering=0)
        assert pipe.read(3) == b"up\n"
        return pipe

    return await in_thread(opened)


@pytest.fixture
def ready(workspace: Path) -> Path:
    """A pipe that all users may write, for a command to report that it runs."""
    path = workspace / "ready"
    os.mkfifo(path)
    path.chmod(0o666)
    workspace.chmod(0o777)
    return path


class TestNothingIsLeft:
    @pytest.mark.parametrize("kind", ["in a session of its own", "deaf to SIGTERM"])
    async def test_after_a_time_out(
        self, shell: Shell, workspace: Path, marker: str, kind: str
    ) -> None:
        with pytest.raises(ToolFailure, match=r"ran longer than 0.3 s") as caught:
            await shell.run(workspace, TREES[kind].format(marker), 0.3)
        assert caught.value.kind == "timeout"
        assert processes_with(marker) == {}
        assert zombies_of(os.getpid()) == []

    @pytest.mark.parametrize("kind", TREES)
    async def test_after_a_cancellation(
        self, shell: Shell, workspace: Path, ready: Path, marker: str, kind: str
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shell.run, workspace, tree(kind, marker))
            with await running(ready):
                assert processes_with(marker)
                nursery.cancel_scope.cancel()
        assert processes_with(marker) == {}
        assert zombies_of(os.getpid()) == []

    async def test_after_the_command_has_returned(
        self, shell: Shell, workspace: Path, marker: str
    ) -> None:
        command = f"setsid sleep {marker} & (sleep {marker} &) ; echo done"
        assert await shell.run(workspace, command) == "done\n"
        assert processes_with(marker) == {}
        assert zombies_of(os.getpid()) == []

    @pytest.mark.parametrize("kind", ["in a session of its own", "a daemon"])
    async def test_after_the_host_was_killed(
        self, mode: Mode, workspace: Path, ready: Path, marker: str, kind: str
    ) -> None:
        host = Path(__file__).with_name("shell_host.py")
        process = await trio.lowlevel.open_process(
            [sys.executable, str(host), mode, str(workspace), tree(kind, marker)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with await running(ready), ExitStack() as stack:
            started: list[int] = []
            for pid in processes_with(marker):
                with suppress(ProcessLookupError):  # it had only to start another
                    started.append(os.pidfd_open(pid))
                    stack.callback(os.close, started[-1])
            process.send_signal(signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
            # The host cannot wait for them any more, so that the test has to.
            with trio.fail_after(20):
                for fd in started:
                    await trio.lowlevel.wait_readable(fd)
        assert processes_with(marker) == {}

    async def test_after_the_guard_itself_was_killed(
        self, confined: Shell, workspace: Path, ready: Path, marker: str
    ) -> None:
        async def fails() -> None:
            with pytest.raises(ToolFailure, match="killed by SIGKILL"):
                await confined.run(workspace, tree("a daemon", marker))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            with await running(ready), ExitStack() as stack:
                found = processes_with(marker)
                started = [os.pidfd_open(pid) for pid in found]
                for fd in started:
                    stack.callback(os.close, fd)
                (guard,) = (pid for pid, words in found.items() if "guard.py" in words)
                os.kill(guard, signal.SIGKILL)
                with trio.fail_after(20):
                    for fd in started:
                        await trio.lowlevel.wait_readable(fd)
        assert processes_with(marker) == {}


class TestConfined:
    async def test_it_works_in_the_workspace(self, confined: Shell, workspace: Path) -> None:
        said = await confined.run(workspace, "pwd; echo text > made; awk 'BEGIN {print 6 * 7}'")
        assert said == f"{workspace}\n42\n"
        assert (workspace / "made").read_text() == "text\n"

    @pytest.mark.parametrize(
        "path", ["/x", "/usr/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern"]
    )
    async def test_nothing_else_can_be_written(
        self, confined: Shell, workspace: Path, path: str
    ) -> None:
        with pytest.raises(ToolFailure, match="exit code 1"):
            await confined.run(workspace, f"echo x > {path}")

    async def test_scratch_space_is_its_own(self, confined: Shell, workspace: Path) -> None:
        name = f"motet-test-{secrets.token_hex(8)}"
        await confined.run(workspace, f"echo x > /tmp/{name} && echo x > /dev/shm/{name}")
        assert not Path("/tmp", name).exists()

    async def test_files_of_the_host_are_invisible(self, confined: Shell, workspace: Path) -> None:
        secret = workspace.with_name("secret")
        secret.write_text("secret")
        secret.chmod(0o644)
        command = f"cat {secret} /etc/shadow /etc/passwd {Path.home()}/.profile; ls -A /root /home"
        with pytest.raises(ToolFailure) as caught:
            await confined.run(workspace, command)
        assert str(caught.value.detail).count("No such file") == 6

    async def test_processes_of_the_host_are_not_seen(
        self, confined: Shell, workspace: Path
    ) -> None:
        said = await confined.run(workspace, "ls /proc | grep -c '^[0-9]'")
        assert int(said) < 8

    async def test_services_of_the_host_are_not_reached(
        self, confined: Shell, workspace: Path
    ) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener:
            port = listener.socket.getsockname()[1]
            with pytest.raises(ToolFailure, match="Connection refused"):
                await confined.run(workspace, f"bash -c 'echo > /dev/tcp/127.0.0.1/{port}'")

    async def test_it_is_no_root_and_cannot_become_one(
        self, confined: Shell, workspace: Path
    ) -> None:
        said = await confined.run(
            workspace, "id -u; grep -E 'CapEff|CapBnd|NoNew' /proc/self/status"
        )
        assert not said.startswith("0\n")
        assert f"CapEff:\t{'0' * 16}\n" in said
        assert "NoNewPrivs:\t1\n" in said

    async def test_memory_is_limited_and_the_error_names_the_limit(
        self, workspace: Path, mode: Mode
    ) -> None:
        shell = Shell(evolve(CONFIG, mode=mode, memory_mb=256))
        with pytest.raises(ToolFailure, match="may allocate 256 MiB"):
            await shell.run(workspace, "head -c 600M /dev/zero | tail -c 590M | wc -c; false")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    async def test_commands_run_as_the_owner_of_the_workspace(
        self, confined: Shell, workspace: Path
    ) -> None:
        os.chown(workspace, 1234, 1234)
        assert (await confined.run(workspace, "id -u; touch made")) == "1234\n"
        assert (workspace / "made").stat().st_uid == 1234

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    async def test_commands_are_never_in_the_group_of_root(
        self, confined: Shell, workspace: Path
    ) -> None:
        """Files of the system that this group may read are mounted."""
        os.chown(workspace, 1234, 0)
        assert await confined.run(workspace, "id -u; id -G") == f"1234\n{NOBODY}\n"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root owns what others may not write")
    async def test_a_full_workspace_of_root_stays_roots_and_the_error_names_the_remedy(
        self, confined: Shell, workspace: Path
    ) -> None:
        (workspace / "precious").write_text("mine")
        with pytest.raises(ToolFailure, match=f"chown -R {NOBODY}:{NOBODY} {workspace}"):
            await confined.run(workspace, "echo x > precious")
        assert (workspace / "precious").read_text() == "mine"

    @pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user")
    async def test_an_ordinary_user_needs_no_root(self, sandbox: None, tmp_path: Path) -> None:
        del sandbox
        wrapper = tmp_path / "bwrap"
        drop = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
        wrapper.write_text(f'#!/bin/sh\nexec {drop} bwrap "$@"\n')
        wrapper.chmod(0o755)
        machine = replace(inspect_machine(), root=False, bwrap=str(wrapper))
        with tempfile.TemporaryDirectory() as folder:
            os.chown(folder, NOBODY, NOBODY)
            said = await Shell(CONFIG, lambda: machine).run(Path(folder), "id -u; touch x; ls")
        assert said == f"{NOBODY}\nx\n"


class TestRefused:
    async def test_without_bubblewrap_nothing_is_run(self, workspace: Path) -> None:
        machine = replace(inspect_machine(), bwrap=None)
        with pytest.raises(ToolFailure, match=r"install bubblewrap .* mode 'unsafe'"):
            await Shell(CONFIG, lambda: machine).run(workspace, "touch made")
        assert list(workspace.iterdir()) == []

    async def test_with_a_bubblewrap_that_does_not_work_nothing_is_run(
        self, workspace: Path, tmp_path: Path
    ) -> None:
        broken = tmp_path / "bwrap"
        broken.write_text(
            "#!/bin/sh\necho 'bwrap: No permissions to create new namespace'\nexit 1\n"
        )
        broken.chmod(0o755)
        machine = replace(inspect_machine(), bwrap=str(broken), setpriv="/bin/true")
        with pytest.raises(
            ToolFailure, match=r"does not work here \(bwrap: No permissions"
        ) as caught:
            await Shell(CONFIG, lambda: machine).run(workspace, "touch made")
        assert caught.value.code == "NO_SANDBOX"
        assert list(workspace.iterdir()) == []

    async def test_a_system_folder_is_refused_as_workspace(self) -> None:
        with pytest.raises(ToolFailure, match="part of the system"):
            await Shell(CONFIG).run(Path("/usr"), "true")

    async def test_a_shell_that_is_off_runs_nothing(self, workspace: Path) -> None:
        with pytest.raises(ToolFailure, match="switched off"):
            await Shell(evolve(CONFIG, mode="off")).run(workspace, "touch made")
        assert list(workspace.iterdir()) == []

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ("", "is empty"),
            (" \n", "is empty"),
            ("a\0", "NUL"),
            ("\ud800", "surrogate"),
            (":" * 100_001, "write a script"),
        ],
    )
    async def test_an_invalid_command_is_refused(
        self, workspace: Path, command: str, words: str
    ) -> None:
        with pytest.raises(ToolFailure, match=words):
            await Shell(CONFIG).run(workspace, command)

    @pytest.mark.parametrize("timeout", [0, -1, 30.1, float("nan"), float("inf")])
    async def test_a_time_out_beyond_the_configured_one_is_refused(
        self, workspace: Path, timeout: float
    ) -> None:
        with pytest.raises(ToolFailure, match="at most 30 seconds"):
            await Shell(CONFIG).run(workspace, "true", timeout)

    async def test_a_missing_workspace_is_named(self, shell: Shell, workspace: Path) -> None:
        with pytest.raises(ToolFailure, match="No such file or directory"):
            await shell.run(workspace / "gone", "true")


class TestResults:
    async def test_both_outputs_come_in_order(self, shell: Shell, workspace: Path) -> None:
        assert await shell.run(workspace, "echo 1; echo 2 >&2; echo 3") == "1\n2\n3\n"

    async def test_a_command_without_output_says_so(self, shell: Shell, workspace: Path) -> None:
        assert await shell.run(workspace, "true") == "[no output]"

    async def test_there_is_nothing_to_read(self, shell: Shell, workspace: Path) -> None:
        assert await shell.run(workspace, "cat; echo end") == "end\n"

    async def test_an_exit_code_is_a_failure_with_the_last_lines(
        self, shell: Shell, workspace: Path
    ) -> None:
        with pytest.raises(ToolFailure) as caught:
            await shell.run(workspace, "seq 10; exit 3")
        failure = caught.value
        assert str(failure) == "the command failed with exit code 3\n6\n7\n8\n9\n10"
        assert failure.kind == "exit"
        assert failure.detail is not None
        assert failure.detail["exit_code"] == 3
        assert failure.detail["output"] == "".join(f"{n}\n" for n in range(1, 11))

    async def test_a_signal_is_named(self, shell: Shell, workspace: Path) -> None:
        with pytest.raises(ToolFailure, match="killed by SIGSEGV, exit code 139"):
            await shell.run(workspace, "kill -SEGV $$")

    async def test_a_long_output_keeps_both_ends(self, shell: Shell, workspace: Path) -> None:
        said = await shell.run(workspace, "echo first; yes | head -c 20000000; echo last")
        assert said.startswith("first\ny\n")
        assert said.endswith("y\nlast\n")
        assert "of 20,000,011 bytes left out" in said
        assert len(said) < CONFIG.output_chars + 100

    async def test_invalid_text_is_replaced(self, shell: Shell, workspace: Path) -> None:
        assert await shell.run(workspace, r"printf 'a\377b'") == "a\ufffdb"

    async def test_secrets_of_the_environment_are_not_passed_on(
        self, shell: Shell, workspace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MOTET_TEST_API_KEY", "sk-hidden")
        assert "sk-hidden" not in await shell.run(workspace, "env")

    async def test_many_run_at_once(self, shell: Shell, workspace: Path) -> None:
        said: dict[int, str] = {}

        async def run(number: int) -> None:
            said[number] = await shell.run(workspace, f"echo {number}")

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(run, number)
        assert said == {number: f"{number}\n" for number in range(8)}


async def test_a_workspace_that_only_its_owner_may_enter_is_entered(
    confined: Shell, workspace: Path
) -> None:
    workspace.chmod(0o700)
    assert str(workspace) in await confined.run(workspace, "pwd")


def test_memory_and_core_files_are_limited() -> None:
    given = command_limits(ShellConfig(memory_mb=64), 2)
    assert given["RLIMIT_DATA"] == 64 << 20
    assert given["RLIMIT_FSIZE"] == FILE_MB << 20


SAYS = {
    "a message": ("cat nofile", "exit code 1: cat: nofile: No such file or directory"),
    "any words": ("echo oops >&2; exit 3", "exit code 3: oops"),
    "no words": ("exit 3", "exit code 3"),
    "output before it": ("echo fine; cat nofile", "exit code 1: cat: nofile: No such file"),
    "output behind it": ("cat nofile; echo so; exit 4", "exit code 4: cat: nofile: No such file"),
    "colours": (r"printf '\033[31mno luck\033[0m\n' >&2; exit 2", "exit code 2: no luck"),
    "a progress bar": (r"printf '10%%\r20%%\rfatal: no net\n' >&2; exit 2", "2: fatal: no net"),
    "binary": (r"printf '\001\002\377\376\n' >&2; exit 2", "exit code 2"),
    "one endless line": ("head -c 30000 /dev/zero | tr '\\0' x >&2; exit 2", "exit code 2"),
    "a signal": ("echo last words >&2; kill -9 $$", "exit code 137: last words"),
    "a secret": ("echo 'error: password=hunter2hunter2' >&2; exit 2", "exit code 2: error: "),
}


@pytest.mark.parametrize("case", SAYS)
async def test_a_failure_says_the_last_line_of_the_standard_error(
    workspace: Path, case: str
) -> None:
    command, ends = SAYS[case]
    with pytest.raises(ToolFailure) as caught:
        await Shell(evolve(CONFIG, mode="unsafe")).run(workspace, command)
    first = str(caught.value).partition("\n")[0]
    assert ends in first
    assert first.endswith(ends) or "nofile" in first or case == "a secret"
    assert "hunter2" not in first
    assert len(first) < 300


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("echo fine; cat nofile", ["type: not_found", f"suggestion: {SUGGESTIONS['not_found']}"]),
        ("sleep 60", ["type: timeout", f"suggestion: {SUGGESTIONS['timeout']}"]),
        ("echo 3 failed; exit 1", ["3 failed"]),
    ],
)
async def test_the_kind_of_a_failure_is_told_with_it(
    workspace: Path, command: str, lines: list[str]
) -> None:
    """And a suggestion, before the output: it is not stored, so that nothing else would tell it."""
    with pytest.raises(ToolNegative) as caught:
        await Shell(evolve(CONFIG, mode="unsafe")).run(workspace, command, 0.5)
    told = str(caught.value.value).splitlines()
    assert told[1 : 1 + len(lines)] == lines


async def test_a_command_that_takes_too_long_says_its_last_line(workspace: Path) -> None:
    with pytest.raises(ToolFailure, match=r"ran longer than 0.5 s and was ended: waiting for x"):
        await Shell(evolve(CONFIG, mode="unsafe")).run(
            workspace, "echo waiting for x >&2; sleep 60", 0.5
        )
