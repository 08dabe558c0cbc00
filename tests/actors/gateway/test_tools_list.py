"""``tools.list``: everybody is told what they may call themselves; an admin, of anybody."""

from __future__ import annotations

import pytest

from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Settings
from motet.actors.storage.tokens import new_token
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import connected, context_of

VERA, ROOT = new_token(), new_token()
TOKENS = StaticTokens((token_entry(VERA, "vera", "viewer"), token_entry(ROOT, "root", "admin")))
SETTINGS = Settings(tokens=TOKENS)


async def test_a_user_sees_the_tools_that_they_may_call() -> None:
    async with connected(context_of(FakeHost(), SETTINGS), VERA) as client:
        for said in ({}, {"as": "vera"}, {"as": "vera", "role": "viewer"}):
            found = await client.result("tools.list", agent="echo", **said)
            assert (found["user"], found["role"]) == ("vera", "viewer")
            assert found["tools"] == [
                {
                    "name": "clock",
                    "groups": ["group:own"],
                    "effect": "deny",
                    "rule": "of vera",
                    "reason": "",
                    "per_hour": 0,
                }
            ]
        assert (await client.error("tools.list", agent="ech")).code == "unknown_agent"
        assert (await client.error("tools.list")).code == "invalid_params"


@pytest.mark.parametrize("said", [{"as": "root"}, {"role": "admin"}])
async def test_only_an_admin_sees_the_tools_of_others(said: dict[str, str]) -> None:
    async with connected(context_of(FakeHost(), SETTINGS), VERA) as client:
        assert (await client.error("tools.list", agent="echo", **said)).code == "forbidden"
    async with connected(context_of(FakeHost(), SETTINGS), ROOT) as client:
        found = await client.result("tools.list", agent="echo", **{"as": "vera", "role": "viewer"})
        assert (found["user"], found["role"]) == ("vera", "viewer")
        found = await client.result("tools.list", agent="echo", **{"as": "bob"})
        assert (found["user"], found["role"]) == ("bob", "operator")
