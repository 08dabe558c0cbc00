"""The origin of a stored error: whose run it was, and the call with its arguments."""

from __future__ import annotations

import json
from pathlib import Path

import trio

import motet
from motet.protocols.chat import JsonObject
from motet.protocols.error_records import ARGUMENTS_LIMIT, bounded_arguments
from motet.protocols.hooks import BeforeTool
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
