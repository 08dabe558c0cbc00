"""Errors of one user are shown to no other: in lists, groups, counts, pages and details.

Users fail with the same tools in sessions whose names they take from each other by deletion. All
errors that can be equal are equal, so that groups would be joined where they can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import product
from pathlib import Path
from typing import TypeAlias, cast

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.storage.tokens import new_token
from motet.cli.errors import list_errors
from motet.cli.setup import load_setup
from motet.protocols.chat import UserMessage
from motet.protocols.errors import GroupErrors, ListErrors, NotFound
from motet.protocols.models import ModelEvent, ModelRequest
from tests.actors.gateway.fakes import Client, connected
from tests.scripted import Scripted, call, say

USERS = ("ann", "bob", "cy")
WHO = {user: motet.Principal(user) for user in USERS}
KEYS = {user: new_token() for user in USERS}
TOKENS = StaticTokens(tuple(token_entry(KEYS[user], user, "operator") for user in USERS))
SESSIONS, TOOLS = ("x", "y"), ("fetch", "save")

Step: TypeAlias = tuple[str, str, str]
"""A user, a session, and what happens: a call that fails or works, or a deletion."""
STEPS = st.lists(
    st.tuples(
        st.sampled_from(USERS),
        st.sampled_from(SESSIONS),
        st.sampled_from(["fetch", "fetch", "save", "works", "delete"]),
    ),
    min_size=3,
    max_size=12,
)
Own: TypeAlias = dict[str, tuple[str, str, str]]
"""Of each error that is there, by its id: the user, the session and the tool."""


class Obeys(Scripted):
    """Calls the tool that the last input names, then ends."""

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        last = request.messages[-1]
        tool, _, who = str(last.text).partition(" ")
        # A hint of the host, such as of a tool that is taken out, is a user's row, too.
        if isinstance(last, UserMessage) and tool in (*TOOLS, "works"):
            self.then(call((tool, {"who": who})))
        else:
            self.then(say("done"))
        async with super().request(request) as events:
            yield events


def agent_of() -> motet.Agent[None]:
    limits = motet.Limits(tool_errors=None, total_errors=None)
    agent = motet.Agent("a", model=Obeys(), limits=limits)

    @agent.tool
    def fetch(who: str) -> str:
        raise OSError(f"no route for {who!r}")

    @agent.tool
    def save(who: str) -> str:
        raise TimeoutError(f"no shelf for {who!r}")

    @agent.tool
    def works(who: str) -> str:
        return f"done for {who}"

    return agent


async def play(host: motet.Host, steps: list[Step]) -> Own:
    """What the steps leave, as they are told to those who did them."""
    own: Own = {}
    for user, session, what in steps:
        with suppress(NotFound):  # another user has a session of that name
            if what == "delete":
                await host.delete(session, principal=WHO[user])
                own = {made: of for made, of in own.items() if of[1] != session}
                continue
            result = await host.run("a", f"{what} {user}", session=session, principal=WHO[user])
            own |= {str(error.error_id): (user, session, what) for error in result.errors}
    return own


def of_user(own: Own, user: str) -> Own:
    return {made: of for made, of in own.items() if of[0] == user}


@asynccontextmanager
async def client_of(host: motet.Host, user: str) -> AsyncGenerator[Client]:
    async with connected(Context(host, Settings(tokens=TOKENS)), KEYS[user]) as client:
        yield client


async def listed(host: motet.Host, which: ListErrors, user: str) -> list[str]:
    """The ids of all pages."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = await host.error_page(which, cursor=cursor, principal=WHO[user])
        ids += [error.id for error in page.errors]
        assert all(user in error.short_summary for error in page.errors)
        if (cursor := page.cursor) is None:
            return ids


async def listed_by_wire(client: Client, **params: object) -> list[str]:
    ids: list[str] = []
    cursor: object = None
    while True:
        page = await client.result("errors.list", limit=2, cursor=cursor, **params)
        ids += [str(one["id"]) for one in cast("list[dict[str, object]]", page["errors"])]
        if (cursor := page["cursor"]) is None:
            return ids


async def check_lists(host: motet.Host, own: Own, user: str, client: Client) -> None:
    """Every filter, also one that names another user, finds the user's own errors only."""
    for session, tool, owner in product((None, *SESSIONS), (None, *TOOLS), (None, *USERS)):
        mine = {
            made
            for made, (_, of, by) in of_user(own, user).items()
            if session in (None, of) and tool in (None, by)
        }
        which = ListErrors(session, tool, limit=2, owner=owner)
        found = await listed(host, which, user)
        assert len(found) == len(mine)
        assert set(found) == mine
        if owner in (None, USERS[0]):
            params = {"session": session, "tool": tool, "user": owner}
            assert set(await listed_by_wire(client, **params)) == mine


async def check_groups(host: motet.Host, own: Own, user: str, client: Client) -> None:
    counts = Counter(tool for _, _, tool in of_user(own, user).values())
    for owner in (None, *USERS):
        page = await host.error_groups(GroupErrors(owner=owner), principal=WHO[user])
        assert {group.tool_name: group.count for group in page.groups} == counts
        for group in page.groups:
            assert own[group.newest][0] == group.owner == user
            assert user in group.summary
    page_ = await client.result("errors.list", grouped=True)
    groups = cast("list[dict[str, object]]", page_["groups"])
    assert {str(group["tool_name"]): group["count"] for group in groups} == counts
    assert {str(group["owner"]) for group in groups} <= {user}


async def check_details(host: motet.Host, own: Own, user: str, client: Client) -> None:
    counts = Counter(tool for _, _, tool in of_user(own, user).values())
    for made, (owner, session, tool) in own.items():
        if owner == user:
            error = await host.error(made, principal=WHO[user])
            assert (error.session_id, error.count) == (session, counts[tool])
            assert (await client.result("errors.get", id=made))["count"] == counts[tool]
            continue
        with pytest.raises(NotFound):
            await host.error(made, principal=WHO[user])
        for offset in (None, 0, 5):
            assert (await client.error("errors.get", id=made, offset=offset)).code == "not_found"


async def check_cursors(host: motet.Host, user: str, client: Client) -> None:
    """Cursors of another user's pages show the user no row of that user."""
    for other in USERS:
        page = await host.error_page(ListErrors(limit=1), principal=WHO[other])
        if page.cursor is not None:
            after = await host.error_page(ListErrors(), cursor=page.cursor, principal=WHO[user])
            assert {error.user for error in after.errors} <= {user}
            wire = await client.result("errors.list", cursor=page.cursor)
            found = cast("list[dict[str, object]]", wire["errors"])
            assert {one["user"] for one in found} <= {user}


@settings(max_examples=12)
@given(steps=STEPS)
@example([("ann", "x", "fetch")] * 6)
def test_no_view_of_errors_shows_those_of_another_user(steps: list[Step]) -> None:
    """Law: after any failures, deletions and take-overs of names, each sees all of his, no more."""

    async def story() -> None:
        async with motet.open_host(agents=[agent_of()]) as host:
            own = await play(host, steps)
            for user in USERS:
                async with client_of(host, user) as client:
                    await check_lists(host, own, user, client)
                    await check_groups(host, own, user, client)
                    await check_details(host, own, user, client)
                    await check_cursors(host, user, client)
            everyone = await host.errors(limit=1_000)
            assert {error.id: error.user for error in everyone} == {
                made: user for made, (user, _, _) in own.items()
            }

    trio.run(story)


def test_groups_of_the_command_line_join_no_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator sees all users, and each of their groups alone."""

    async def story() -> None:
        async with motet.open_host(agents=[agent_of()], state=tmp_path) as host:
            for user, times in zip(USERS, (2, 1, 3), strict=True):
                await play(host, [(user, f"of-{user}", "fetch")] * times)

    trio.run(story)
    list_errors(load_setup(None, tmp_path), ListErrors(limit=20), each=False, json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[2], line[3]) for line in lines[1:]] == [
        ("3x", "cy"),
        ("1x", "bob"),
        ("2x", "ann"),
    ]
