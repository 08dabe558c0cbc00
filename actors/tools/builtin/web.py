"""The web tool as agents are shown it; what fetches is loaded with the first fetch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

from motet.actors.tools.tool import Tool, tool
from motet.protocols.config import HttpConfig

if TYPE_CHECKING:
    from motet.actors.tools.builtin.http import Fetch

MARGIN = 5.0


def http_tool(config: HttpConfig) -> Tool:
    """The ``http_fetch`` tool."""

    @cache
    def fetch() -> Fetch:
        from motet.actors.tools.builtin.http import fetcher

        return fetcher(config)

    async def http_fetch(url: str, method: Literal["GET", "HEAD"] = "GET", offset: int = 0) -> str:
        return await fetch()(url, method, offset)

    return tool(
        http_fetch,
        description="Fetch a web page or file by its http or https address. HTML is given as "
        "readable text with its links, JSON and other text as it is. HEAD gives the headers only. "
        "A long text comes in pages: offset is the character to begin with.",
        timeout=config.timeout + MARGIN,
    )
