"""Fixtures: a workspace, calls of tools in it, and a check for the sandbox."""

import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool
from motet.protocols.sessions import LOCAL

Call: TypeAlias = Callable[..., Awaitable[str]]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def context(workspace: Path) -> Context[object]:
    return Context(
        deps=None,
        run_id="run_1",
        session="agent:main:main",
        agent="main",
        principal=LOCAL,
        call_id="call_1",
        workspace=workspace,
    )


@pytest.fixture
def call(context: Context[object]) -> Call:
    """Calls a tool like the executor; its result as text."""

    async def call(tool: Tool, **arguments: object) -> str:
        return str(await tool.run(context, tool.accepts.check(dict(arguments))))

    return call


@pytest.fixture(scope="session")
def why_no_sandbox() -> str:
    """Why bubblewrap cannot confine a command on this machine, empty when it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    user = () if os.geteuid() == 0 else ("--unshare-user",)
    words = ["bwrap", *user, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"bubblewrap does not work here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture
def sandbox(why_no_sandbox: str) -> None:
    """For tests that need bubblewrap. Where no test may be skipped, its absence is a failure."""
    if why_no_sandbox:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why_no_sandbox)
