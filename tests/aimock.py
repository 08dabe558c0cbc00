"""An independent server of the providers' APIs (npm ``@copilotkit/aimock``) for end-to-end tests.

Use it through a fixture of session scope::

    @pytest.fixture(scope="session")
    def aimock(node: Path) -> Iterator[Aimock]:
        with serving(node, Path(__file__).parent / "fixtures") as server:
            yield server

Its counters (``sequenceIndex``) live as long as the server: give every test its own message.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.request import urlopen

import attrs
import pytest

ROOT = Path(__file__).parent.parent
COMMAND = Path("@copilotkit", "aimock", "dist", "cli.js")
READY = "listening on "
STOP_TIMEOUT = 10.0

SDK_GENERATORS = pytest.mark.filterwarnings(
    r"ignore:Async generator '(openai|google|httpx2|httpcore2)\.:ResourceWarning"
)
"""For what still leaves the generators under a stream to the collector: pydantic-ai in front of
the OpenAI SDK, at the end mark, and the SDK of Google, at an answer that is no JSON."""


@attrs.frozen
class Aimock:
    """A running server. ``url`` has no path; OpenAI clients want ``openai_url``."""

    url: str

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def journal(self, containing: str) -> list[dict[str, object]]:
        """The bodies of the requests so far whose JSON contains that text, the oldest first."""
        with urlopen(f"{self.url}/__aimock/journal", timeout=10) as answer:
            entries: list[dict[str, dict[str, object]]] = json.load(answer)
        bodies = [entry["body"] for entry in entries]
        return [body for body in bodies if containing in json.dumps(body, ensure_ascii=False)]


@contextmanager
def serving(node: Path, fixtures: Path, options: Sequence[str] = ()) -> Generator[Aimock]:
    """The server with the fixtures of a folder or file, on a free port, until the block ends."""
    command = [str(node), str(script()), "-p", "0", "-f", str(fixtures), "--validate-on-load"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        # A pipe that nobody reads fills up and would stop the server.
        drain = threading.Thread(target=deque, args=(process.stdout, 0), daemon=True)
        try:
            url = announced(process.stdout)
            drain.start()
            yield Aimock(url)
        finally:
            stop(process)
            if drain.ident is not None:
                drain.join(STOP_TIMEOUT)


def announced(output: IO[str]) -> str:
    """The address the server says it listens on."""
    said: list[str] = []
    for line in output:
        said.append(line)
        if READY in line:
            return line.partition(READY)[2].strip()
    raise AssertionError("aimock did not start:\n" + "".join(said))


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def script() -> Path:
    """Where the npm package is; the test is skipped without it, but fails in CI."""
    folders = [ROOT / "node_modules", *map(Path, os.environ.get("NODE_PATH", "").split(os.pathsep))]
    found = next((folder / COMMAND for folder in folders if (folder / COMMAND).is_file()), None)
    if found is not None:
        return found
    reason = "no @copilotkit/aimock: make install"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
