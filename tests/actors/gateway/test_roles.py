"""Roles of methods: exact names, one least role each, and nothing for what nobody knows."""

from __future__ import annotations

from typing import cast, get_args

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.gateway import methods
from motet.actors.gateway.auth import may
from motet.actors.gateway.method import Caller, Refusal
from motet.actors.gateway.methods import METHODS
from motet.protocols.gateway import RequestFrame
from motet.protocols.sessions import Principal, Role

ROLES: tuple[Role, ...] = get_args(Role)
letters = st.text("abcdelnorstu.", max_size=16)


class Somebody:
    """A caller of whom nothing but the role may be looked at."""

    def __init__(self, role: Role) -> None:
        self.principal = Principal("somebody", role)


def refused(role: Role, method: str) -> str:
    """The code with which a call is refused, before anything of it is done."""
    caller = cast("Caller", Somebody(role))
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
