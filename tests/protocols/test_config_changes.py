"""The plan of a changed configuration, against every key that there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_type_hints

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.protocols.config import AgentConfig, GatewayConfig, HostConfig, ToolsConfig
from motet.protocols.config_changes import PLANS, changes, how, in_force
from motet.protocols.limits import Limits
from motet.protocols.reload import Change


def keys(cls: type, at: str = "") -> Iterator[str]:
    """Every key of a configuration class, those of tables inside of it included."""
    kinds = get_type_hints(cls)
    for name in [field.name for field in attrs.fields(cls)]:
        kind, key = kinds[name], f"{at}.{name}" if at else name
        yield key
        if isinstance(kind, type) and attrs.has(kind):
            yield from keys(kind, key)


EVERY_KEY = tuple(keys(HostConfig))


def test_every_key_has_one_plan() -> None:
    for key in EVERY_KEY:
        above = [known for known in PLANS if key == known or key.startswith(f"{known}.")]
        below = [known for known in PLANS if known.startswith(f"{key}.")]
        assert len(above) == 1 or (not above and below), key
    assert set(PLANS) <= set(EVERY_KEY)


def configs() -> st.SearchStrategy[HostConfig]:
    agent = st.builds(AgentConfig, instructions=st.sampled_from(["a", "b"]))
    listens = st.sampled_from(["127.0.0.1:1", "127.0.0.1:2"])
    return st.builds(
        HostConfig,
        state=st.sampled_from([None, "here", "there"]),
        guard=st.sampled_from(["off", "warn"]),
        limits=st.builds(Limits, turns=st.integers(1, 2)),
        agents=st.dictionaries(st.sampled_from(["x", "y"]), agent),
        gateway=st.builds(GatewayConfig, listen=listens),
        tools=st.builds(ToolsConfig, profile=st.sampled_from(["full", "minimal"])),
    )


@given(configs(), configs())
@settings(max_examples=200, deadline=None)
def test_all_new_values_are_in_force_except_those_that_need_a_restart(
    old: HostConfig, new: HostConfig
) -> None:
    """Law: what is still different afterwards needs a restart; what is in force is the rest."""
    force = in_force(old, new)
    told = changes(old, new)
    assert changes(new, new) == ()
    assert {change.how for change in changes(force, new)} <= {"restart"}
    assert changes(old, force) == tuple(change for change in told if change.how != "restart")
    assert in_force(force, new) == force


def test_a_change_is_named_by_its_key() -> None:
    old = HostConfig(agents={"x": AgentConfig()})
    new = HostConfig(
        state="there",
        agents={"x": AgentConfig(instructions="b"), "y": AgentConfig()},
        gateway=GatewayConfig(listen="127.0.0.1:1", allowed_origins=("https://a.example",)),
    )
    assert changes(old, new) == (
        Change("state", "restart"),
        Change("gateway.listen", "restart"),
        Change("gateway.allowed_origins", "hot"),
        Change("agents.x", "drain"),
        Change("agents.y", "drain"),
    )
    assert how("agents.x") == "drain"
