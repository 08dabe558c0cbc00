"""The origin of a stored error: whose run it was, and the call with its arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Never

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import motet
from motet.protocols.chat import JsonObject
from motet.protocols.error_records import ARGUMENTS_LIMIT, bounded_arguments
from motet.protocols.errors import Errors
from motet.protocols.hooks import BeforeTool
from motet.protocols.models import ModelRequest
from motet.testing.errors import MemoryErrors
from tests.motet.command import motet as command
from tests.protocols.redaction.test_redact import SECRETS
from tests.scripted import Scripted, call, say

GIVEN: JsonObject = {
    "host": "db1",
    "password": "hunter2-of-a-tool",
    "header": f"Authorization: Bearer {SECRETS['github']}",
    "body": "no secret is here; " * 2_000,
}


@motet.tool
def connect(host: str, password: str, header: str, body: str) -> str:
    """Connect."""
    raise OSError(f"no route to {host}")


async def test_a_stored_error_has_the_agent_the_user_and_the_masked_arguments(
    tmp_path: Path,
) -> None:
    model = Scripted(call(("connect", GIVEN)), say("so"))
    agent = motet.Agent("dialer", model=model, tools=[connect])
    state = tmp_path / "st"
    async with motet.open_host(state) as host:
        ran = await host.run(agent, "go", session="s", principal=motet.Principal("alice"))
        (error,) = await host.errors()
        shown = await trio.to_thread.run_sync(
            lambda: command("errors", "show", error.id, "--state", "st", cwd=tmp_path)
        )
    assert (error.agent, error.user, error.run_id) == ("dialer", "alice", ran.run_id)
    assert error.call_id == ran.errors[0].call_id
    assert error.arguments is not None
    assert error.arguments["host"] == "db1"
    assert str(error.arguments["password"]).startswith("[secret:password:")
    assert len(json.dumps(error.arguments)) < ARGUMENTS_LIMIT
    for text in (str(error), shown.out):
        assert "hunter2" not in text
        assert SECRETS["github"] not in text
    for fact in ("agent    dialer", "user     alice", '"host": "db1"', "[secret:password:"):
        assert fact in shown.out


async def test_the_error_of_a_hook_has_the_call_before_which_it_ran(tmp_path: Path) -> None:
    model = Scripted(call(("connect", GIVEN)), say("so"))
    agent = motet.Agent("dialer", model=model, tools=[connect])
    async with motet.open_host(tmp_path) as host:

        @host.on("before_tool", name="guard")
        async def guard(event: BeforeTool) -> motet.Allow:
            raise OSError("the policy server is gone")

        await host.run(agent, "go", session="s", principal=motet.Principal("alice"))
        (error,) = await host.errors()
    assert (error.tool_name, error.agent, error.user) == ("hook guard", "dialer", "alice")
    assert error.call_id
    assert error.arguments is not None
    assert error.arguments["host"] == "db1"
    assert "hunter2" not in str(error)


class Broken(Scripted):
    """A model whose adapter has a bug."""

    def request(self, request: ModelRequest) -> Never:
        raise RuntimeError("the adapter is broken")


@pytest.mark.parametrize("given", [False, True])
async def test_errors_beside_calls_say_whose_run_it_was(given: bool) -> None:
    """Of a model and of a subscriber; in the database, and in a store that knows no runs."""
    errors: Errors | None = MemoryErrors() if given else None
    agents = [
        motet.Agent("broken", model=Broken(name="bug")),
        motet.Agent("fine", model=Scripted(say("hi"), name="fine")),
    ]

    def forget(event: object) -> None:
        raise LookupError("this subscriber is broken")

    async with motet.open_host(agents=agents, errors=errors) as host:
        host.events.attach("session:s", forget)
        for agent, session in (("broken", "b"), ("fine", "s")):
            of = motet.Principal("alice")
            await host.run(agent, "go", session=session, principal=of, check=False)
        await wait_all_tasks_blocked()
        found = {error.tool_name: error for error in await host.errors()}
    assert set(found) == {"runtime", "subscriber"}
    assert {error.user for error in found.values()} == {"alice"}
    assert found["runtime"].agent == "broken"
    assert found["subscriber"].run_id
    assert found["subscriber"].agent == ("" if given else "fine")


def test_the_arguments_of_a_call_are_cut_before_they_are_redacted() -> None:
    """Also where they are no JSON, and where the cut goes through a secret."""
    for size in (0, 30, 60):
        text = "x " * (32_000 - size) + f" password={SECRETS['github']} " + "y " * 5_000_000
        for given in (text, json.dumps({"text": text}), json.dumps({"a": [{"text": text}] * 3})):
            shown = bounded_arguments(given)
            assert shown is not None
            written = json.dumps(shown)
            assert len(written) <= 2 * ARGUMENTS_LIMIT
            assert SECRETS["github"][:8] not in written
            assert "omitted" in written or "left out" in written
