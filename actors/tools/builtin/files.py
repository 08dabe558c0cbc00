"""The file tools: read, write, edit and list, all inside the workspace.

They are synchronous functions, so that the host runs them in worker threads; a cancelled call
stops at the next chunk or folder and leaves no half-written file.
"""

from __future__ import annotations

from motet.actors.tools.builtin.file_list import list_folder
from motet.actors.tools.builtin.file_read import read_lines
from motet.actors.tools.builtin.file_write import edit_text, write_text
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, tool


def file_tools() -> list[Tool]:
    """``read_file``, ``write_file``, ``edit_file`` and ``list_files``."""
    return [
        tool(read_file, effects="read"),
        tool(write_file, effects="write"),
        tool(edit_file, effects="write"),
        tool(list_files, effects="read"),
    ]


def read_file(ctx: Context[object], path: str, offset: int = 1, limit: int = 2000) -> str:
    """Read a text file of the workspace.

    Args:
        path: relative to the workspace.
        offset: the first line to read, counted from 1.
        limit: how many lines to read.
    """
    return read_lines(ctx.workspace, path, offset, limit)


def write_file(ctx: Context[object], path: str, content: str) -> str:
    """Create a file in the workspace, or replace all of one. Missing folders are created.

    Args:
        path: relative to the workspace.
        content: the whole new content.
    """
    return write_text(ctx.workspace, path, content)


def edit_file(ctx: Context[object], path: str, old: str, new: str, all: bool = False) -> str:
    """Replace a piece of text in a file of the workspace.

    Args:
        path: relative to the workspace.
        old: the exact text to replace; it must occur once, unless all is true.
        new: what to put there.
        all: replace every occurrence.
    """
    return edit_text(ctx.workspace, path, old, new, all)


def list_files(
    ctx: Context[object],
    path: str = ".",
    pattern: str = "*",
    recursive: bool = False,
    limit: int = 500,
) -> str:
    """List a folder of the workspace, sorted; folders end in '/'.

    Args:
        path: the folder, relative to the workspace.
        pattern: only names that match, such as '*.py'.
        recursive: enter folders, but not those like .git and node_modules.
        limit: how many entries to show.
    """
    return list_folder(ctx.workspace, path, pattern, recursive, limit)
