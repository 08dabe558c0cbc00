"""What a run works with, and keeps as long as it goes on, whatever the configuration becomes.

Invariant: a run looks its tools, servers and model up in its own kit only, so that a change of the
configuration never takes away under it what its model has been told of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from motet.actors.tools.catalog import ToolCatalog
    from motet.actors.tools.mcp.directory import McpDirectory
    from motet.actors.tools.policy.engine import PolicyEngine
    from motet.protocols.config import ShellConfig


class Kit(Protocol):
    """The plain objects behind one configuration.

    ``generation``: which of the configurations of models it is that says how each is reached.
    """

    @property
    def catalog(self) -> ToolCatalog: ...

    @property
    def policy(self) -> PolicyEngine: ...

    @property
    def mcp(self) -> McpDirectory: ...

    @property
    def shell(self) -> ShellConfig | None: ...

    @property
    def generation(self) -> int: ...
