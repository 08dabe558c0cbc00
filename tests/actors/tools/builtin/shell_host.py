"""A small host, for a test to kill: runs one command by the shell tool."""

import sys
from pathlib import Path

import trio
from attrs import evolve

from motet.actors.tools.builtin.shell import Shell
from motet.protocols.config import ShellConfig, ShellMode


async def run(mode: ShellMode, workspace: str, command: str) -> None:
    await Shell(evolve(ShellConfig(), mode=mode)).run(Path(workspace), command)


if __name__ == "__main__":
    _, mode, workspace, command = sys.argv
    trio.run(run, "unsafe" if mode == "unsafe" else "sandbox", workspace, command)
