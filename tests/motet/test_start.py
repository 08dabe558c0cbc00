"""The cost of a start for a program that embeds a host: unused modules are not loaded."""

from __future__ import annotations

import subprocess
import sys

_LOADED = """
import sys
{work}
print(*sys.modules)
"""
_STARTED = """
import motet, trio

async def main():
    async with motet.open_host():
        pass

trio.run(main)
"""
EVENT_LOOPS_AND_TERMINALS = {"asyncio", "rich", "structlog", "typer", "click", "pygments"}
SDKS = {"openai", "anthropic", "google.genai", "pydantic_ai", "httpx", "httpx2", "pydantic"}
SERVERS = {"h11", "wsproto", "trio_websocket", "http.server", "opentelemetry", "cattrs"}
PARTS = {
    *("motet.cli", "motet.testing", "motet.client", "motet.actors.gateway"),
    *("motet.actors.gateway.edges", "motet.actors.tools.mcp.server", "motet.actors.models.demo"),
    *(f"motet.actors.models.{name}" for name in ("sdk", "openai", "anthropic", "google", "ollama")),
    *(f"motet.actors.tools.builtin.{name}" for name in ("http", "http_client", "html_text")),
}


def loaded_by(work: str) -> set[str]:
    """The modules that a new process has after this work."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(work=work)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_a_host_starts_without_modules_it_may_never_need() -> None:
    loaded = loaded_by(_STARTED)

    assert "motet.actors.host" in loaded
    assert not loaded & (EVENT_LOOPS_AND_TERMINALS | SDKS | SERVERS | PARTS)


def test_to_import_motet_loads_nothing_but_its_names() -> None:
    own = {name for name in loaded_by("import motet") if name.startswith("motet")}

    assert own == {"motet", "motet.protocols", "motet.protocols.version"}
