"""The table of methods: exact names, least roles, and ``tools.list`` for users and admins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast, get_args

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.gateway import methods
from motet.actors.gateway.auth import StaticTokens, may, token_entry
from motet.actors.gateway.context import Settings
from motet.actors.gateway.method import Refusal
from motet.actors.gateway.methods import METHODS, Caller
from motet.actors.storage.tokens import new_token
from motet.protocols.gateway import RequestFrame
from motet.protocols.sessions import Principal, Role
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import connected, context_of

ROLES: tuple[Role, ...] = get_args(Role)
letters = st.text("abcdelnorstu.", max_size=16)


class RoleOnly:
    """A caller that has nothing but a role."""

    def __init__(self, role: Role) -> None:
        self.principal = Principal("somebody", role)


def refused(role: Role, method: str) -> str:
    """The code with which a call is refused, before anything of it is done."""
    caller = cast("Caller", RoleOnly(role))
    with pytest.raises(Refusal) as raised:
        trio.run(methods.call, caller, RequestFrame("1", method))
    return raised.value.code


@given(st.sampled_from(sorted(METHODS)), letters, letters, st.sampled_from(ROLES))
def test_a_method_is_found_by_its_exact_name_only(
    known: str, before: str, after: str, role: Role
) -> None:
    """No method is reached by a name that only begins, ends or looks like its own."""
    name = f"{before}{known[len(before) % len(known) :]}{after}"
    if name not in METHODS:
        assert refused(role, name) == "unknown_method"


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_lower_role_is_refused(method: str) -> None:
    least = METHODS[method].role
    lower = ROLES[: ROLES.index(least)]
    assert [refused(role, method) for role in lower] == ["forbidden"] * len(lower)
    assert [method in methods.allowed(role) for role in ROLES] == [may(r, least) for r in ROLES]


def test_an_unknown_role_may_do_nothing() -> None:
    owner = cast("Role", "owner")
    assert methods.allowed(owner) == ()
    assert refused(owner, "ping") == "forbidden"


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


# Compared in Python and stored within JSON only, where whole numbers have no bound.
_UNBOUNDED = ("Allowance", "Limits", "ProtocolRange")


def _whole_numbers(schema: object) -> Iterator[dict[str, object]]:
    """The parts of a JSON schema that let an integer pass which may become a parameter of SQL."""
    if isinstance(schema, dict):
        part = cast("dict[str, object]", schema)
        if part.get("type") == "integer":
            yield part
        for name, one in part.items():
            if name not in _UNBOUNDED:
                yield from _whole_numbers(one)
    elif isinstance(schema, list):
        for one in cast("list[object]", schema):
            yield from _whole_numbers(one)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_whole_number_of_a_request_is_beyond_those_of_the_database(method: str) -> None:
    numbers = _whole_numbers(msgspec.json.schema(METHODS[method].params))
    assert [one for one in numbers if not cast("int", one.get("maximum", 2**63)) < 2**63] == []
