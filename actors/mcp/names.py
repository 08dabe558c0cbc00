"""Names that models can call for the tools of a server: ``mcp__git__status``.

Laws: every name has 1 to 64 letters, digits, ``_`` and ``-``; different tools have different names;
a tool's name does not depend on the order in which tools are listed; tools of different servers
never meet, since no server's name holds ``__``. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

LENGTH = 64
_HASH = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """The name for the model of each tool, by the server's own name for it.

    One that fits stays as it is. Others have ``_`` for what may not stand in a name; where that is
    too long, or is the name of another tool, a hash of the whole name tells them apart.
    """
    prefix = f"mcp__{server}__"
    plain = {tool: prefix + (_OTHER.sub("_", tool) or "_") for tool in tools}
    shared = Counter(plain.values())
    return {
        tool: name if _fits(prefix + tool, name, shared[name]) else _hashed(name, tool)
        for tool, name in plain.items()
    }


def _fits(own: str, name: str, sharers: int) -> bool:
    return len(name) <= LENGTH and (own == name or sharers == 1)


def _hashed(name: str, tool: str) -> str:
    digest = sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    return f"{name[: LENGTH - _HASH - 1]}_{digest}"
