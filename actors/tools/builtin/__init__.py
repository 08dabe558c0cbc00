"""The tools that come with motet: files, shell, web, and details of stored errors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from motet.actors.tools.builtin.files import file_tools
from motet.actors.tools.builtin.paths import Lookup, error_detail_tools
from motet.actors.tools.builtin.shell import shell_tool
from motet.actors.tools.builtin.web import http_tool
from motet.actors.tools.tool import Tool
from motet.protocols.config import HttpConfig, ShellConfig

__all__ = [
    "GROUPS",
    "Lookup",
    "builtin_tools",
    "error_detail_tools",
    "file_tools",
    "http_tool",
    "shell_tool",
]

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "group:fs": ("read_file", "write_file", "edit_file", "list_files"),
        "group:shell": ("shell",),
        "group:web": ("http_fetch",),
    }
)
"""What a configuration can name all at once."""


def builtin_tools(
    shell: ShellConfig | None = None,
    http: HttpConfig | None = None,
    lookup: Lookup | None = None,
) -> dict[str, Tool]:
    """Every built-in tool by its name, in a stable order.

    A shell that is switched off is there too and says so. ``lookup`` adds the tools that read
    stored errors.
    """
    tools = [*file_tools(), shell_tool(shell or ShellConfig()), http_tool(http or HttpConfig())]
    if lookup is not None:
        tools += error_detail_tools(lookup)
    return {tool.name: tool for tool in tools}
