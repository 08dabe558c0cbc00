"""What a host, and a run of it, can be asked for from outside of the host's loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from motet.actors.agent.definition import AnyAgent
from motet.actors.options import RunOptions
from motet.protocols.mcp import McpServer
from motet.protocols.memory import Memory
from motet.protocols.policy import Policy


class Opening(TypedDict, total=False):
    """As :func:`motet.open_host`."""

    state: str | Path | None
    agents: Sequence[AnyAgent]
    workspace: str | Path | None
    memory: Memory | None
    policy: Policy | None
    mcp: Mapping[str, McpServer] | None


class Asked(RunOptions, total=False):
    """As :meth:`motet.Host.run`.

    check: whether a run that did not complete raises; it does if absent.
    """

    check: bool


class AskedInTime(Asked, total=False):
    """As a call that blocks.

    timeout: seconds after which the run is cancelled; no limit if absent.
    """

    timeout: float | None
