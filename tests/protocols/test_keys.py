"""Session keys: made of their parts, read back, never mixed up."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from motet.protocols.session_keys import (
    Chat,
    chat_user,
    cron_key,
    is_cron,
    is_sub_agent,
    parse_key,
    prompt_mode,
    session_key,
    split_key,
    sub_agent_key,
)

PART = st.text(st.sampled_from("ab:%3a25-é/ \n"), max_size=6)
NAMED = st.text(st.sampled_from("ab:%3a25-é"), min_size=1, max_size=6)
CHATS = st.one_of(
    st.builds(Chat, agent=PART, channel=PART, kind=st.just("group"), chat=PART, topic=PART),
    st.builds(Chat, agent=PART, channel=PART, kind=st.just("direct"), chat=PART, thread=PART),
)


@given(CHATS)
def test_a_key_gives_back_what_it_was_made_of(chat: Chat) -> None:
    """Law: parsing is the inverse of making, whatever the parts hold."""
    key = session_key(chat)
    assert parse_key(key) == chat
    assert split_key(key)[0] == chat.agent


@given(CHATS, CHATS)
def test_different_chats_have_different_keys(one: Chat, other: Chat) -> None:
    """Law: a key is one chat's."""
    assume(one != other)
    assert session_key(one) != session_key(other)


@given(st.builds(Chat, agent=PART, channel=PART, kind=st.just("direct"), chat=PART, account=NAMED))
def test_an_account_is_kept_where_it_matters(chat: Chat) -> None:
    """Law: with accounts apart, a key gives the account back too."""
    assert parse_key(session_key(chat, dm_scope="per-account-channel-peer")) == chat


def test_direct_chats_may_have_a_session_in_common() -> None:
    one = Chat(agent="a", channel="telegram", kind="direct", chat="386", thread="7")
    group = Chat(agent="a", channel="telegram", kind="group", chat="-100", topic="99")
    assert session_key(one) == "agent:a:telegram:direct:386:thread:7"
    assert session_key(one, dm_scope="per-peer") == "agent:a:direct:386:thread:7"
    assert session_key(one, dm_scope="main") == "agent:a:main"
    assert session_key(one, dm_scope="main", main="home") == "agent:a:home"
    assert session_key(one, scope="global") == "global"
    assert session_key(group, dm_scope="main") == "agent:a:telegram:group:-100:topic:99"


@pytest.mark.parametrize(
    "key", ["", "global", "agent:", "agent:a", "alice:notes", "agents:a:t:group:1", "agent:a:main"]
)
def test_nothing_is_read_from_other_keys(key: str) -> None:
    assert parse_key(key) is None
    assert chat_user(key, "ann") == "ann"
    assert prompt_mode(key) == "full"


def test_sub_agents_and_scheduled_runs_are_told_by_their_keys() -> None:
    assert is_sub_agent(sub_agent_key("a", "x"))
    assert is_sub_agent("agent:a:SubAgent:x")
    assert is_cron(cron_key("a", "daily"))
    assert not is_sub_agent("agent:a:telegram:direct:subagent:")
    assert not is_sub_agent("agent:a:subagents")
    assert prompt_mode(cron_key("a", "daily")) == prompt_mode("agent:a:subagent:x") == "minimal"


def test_a_group_is_one_user() -> None:
    group = Chat(agent="a", channel="telegram", kind="group", chat="-100", topic="99")
    direct = Chat(agent="a", channel="telegram", kind="direct", chat="386")
    assert chat_user(session_key(group), "ann") == "group:telegram:-100"
    assert chat_user(session_key(direct), "ann") == "ann"
