"""Graphs of agents: joins, conditions and cycles, as a pure function and in a room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.protocols.errors import ConfigError
from motet.teams.graph import Edge, ready_nodes
from tests.actors.rooms.talk import agent, model_of, until_idle

NAMES = tuple("abcdef")


@st.composite
def acyclic(draw: st.DrawFn) -> list[Edge]:
    """Edges from earlier nodes to later ones; some of them are joins, some have a condition."""
    edges: list[Edge] = []
    for at, target in enumerate(NAMES[1:], 1):
        for _ in range(draw(st.integers(0, 2))):
            sources = draw(st.sets(st.sampled_from(NAMES[:at]), min_size=1, max_size=3))
            when = draw(st.sampled_from((None, "1", "0")))
            edges.append(Edge(tuple(sorted(sources)), target, when))
    return edges


def walk(
    edges: list[Edge], starts: list[str], text: Callable[[str], str], most: int = 100
) -> list[str]:
    """The nodes in the order in which they speak, when those that are ready speak side by side."""
    said: list[tuple[str, str]] = []
    while (ready := ready_nodes(edges, starts, said)) and len(said) < most:
        said += [(name, text(name)) for name in ready]
    return [name for name, _ in said]


def starts_of(edges: list[Edge]) -> list[str]:
    return [name for name in NAMES if name not in {edge.target for edge in edges}]


@given(acyclic(), st.lists(st.sampled_from("01"), min_size=6, max_size=6))
def test_joins_run_once_and_conditions_decide(edges: list[Edge], texts: list[str]) -> None:
    """Law: a node speaks if and only if an edge leads to it whose sources have all spoken, with
    texts that its condition accepts; and in the same step as often as in one.
    """
    text = dict(zip(NAMES, texts, strict=True))
    spoken = walk(edges, starts_of(edges), lambda name: text[name])
    counts = Counter(spoken)
    for edge in edges:
        open_ = all(counts[one] and edge.accepts(text[one]) for one in edge.sources)
        if open_:
            assert counts[edge.target] >= 1, f"{edge} was not taken"
    for name in NAMES:
        into = [edge for edge in edges if edge.target == name]
        by_edges = sum(
            min(counts[one] for one in edge.sources)
            for edge in into
            if all(edge.accepts(text[one]) for one in edge.sources)
        )
        at_start = 1 if name in starts_of(edges) else 0
        assert counts[name] <= by_edges + at_start, "once for each time that its sources have"
        assert bool(counts[name]) == bool(by_edges + at_start)


@given(acyclic(), st.lists(st.sampled_from("01"), min_size=6, max_size=6), st.integers(0, 20))
def test_a_restart_changes_nothing(edges: list[Edge], texts: list[str], cut: int) -> None:
    """Law: what is ready follows from what was said, also in the middle of a step."""
    text = dict(zip(NAMES, texts, strict=True))
    starts = starts_of(edges)
    spoken = walk(edges, starts, lambda name: text[name])
    said = [(name, text[name]) for name in spoken]
    ready = ready_nodes(edges, starts, said[:cut])
    assert list(ready[: len(spoken) - cut]) == spoken[cut : cut + len(ready)]


def test_a_join_waits_for_all_of_its_sources() -> None:
    edges = [Edge(("a",), "b"), Edge(("a",), "c"), Edge(("b", "c"), "d"), Edge(("d",), "e")]
    assert walk(edges, ["a"], lambda _: "") == ["a", "b", "c", "d", "e"]
    assert ready_nodes(edges, ["a"], [("a", ""), ("b", "")]) == ("c",)


def test_otherwise_is_taken_when_no_condition_is_met() -> None:
    edges = [Edge(("a",), "b", "yes"), Edge(("a",), "c", None, True), Edge(("a",), "d")]
    assert walk(edges, ["a"], lambda _: "yes") == ["a", "b", "d"]
    assert walk(edges, ["a"], lambda _: "no") == ["a", "d", "c"]


def test_a_message_out_of_turn_moves_nothing() -> None:
    edges = [Edge(("a",), "b")]
    assert ready_nodes(edges, ["a"], [("b", ""), ("x", "")]) == ("a",)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(1, 3))
def test_cycles_end_at_the_limit(most: int, length: int) -> None:
    """Law: a cycle that no condition ends takes exactly the turns that its room allows."""
    names = NAMES[:length]
    edges = [Edge((one,), names[(at + 1) % length]) for at, one in enumerate(names)]
    assert len(walk(edges, [names[0]], lambda _: "", most)) == most


def test_a_withdrawn_text_has_led_to_those_who_have_spoken_since() -> None:
    edges = [Edge(("a",), "b", "GO"), Edge(("a",), "d", otherwise=True), Edge(("b",), "c")]
    assert ready_nodes(edges, ["a"], [("a", None), ("b", "yes")]) == ("c",)
    assert ready_nodes(edges, ["a"], [("a", None), ("b", None)]) == ("c",)
    assert ready_nodes(edges, ["a"], [("a", None), ("d", "no")]) == ()
    assert ready_nodes(edges, ["a"], [("a", None)]) == (), "nobody knows"
    again = [Edge(("a",), "b"), Edge(("b",), "a", "NO"), Edge(("b",), "c", otherwise=True)]
    said = [("a", "x"), ("b", None), ("a", "y"), ("b", "YES")]
    assert ready_nodes(again, ["a"], said) == ("c",)
    assert ready_nodes(again, ["a"], said[:3]) == ("b",)


@pytest.mark.parametrize("when", ["GO", None])
async def test_a_graph_that_ends_by_a_withdrawal_says_so(
    when: str | None, autojump_clock: MockClock
) -> None:
    """A moderator withdraws the message of ``a`` before the step is over."""
    slow = motet.Agent("slow", model=mt.ScriptedModel([mt.slow(mt.say("done"), seconds=9)]))
    a, end = agent("a", "GO on"), agent("end", "the end")
    flow = motet.Graph("g")
    flow.edge(a, end, when=when).start(a, slow)
    async with motet.open_host() as host:
        room = await host.open_room(flow.room())
        async with room.subscribe() as events:
            await room.post("go", user="alice")
            await trio.sleep(1)
            await room.delete(2, user="root", role="admin")
            seen = await until_idle(events)
    told = [one.message for one in seen if isinstance(one, motet.Warned)]
    why = "message 2 of a was withdrawn, and who speaks next depends on its text"
    assert told == ([f"the graph has ended: {why}"] if when else [])
    assert len(model_of(end).requests) == (0 if when else 1)


async def test_a_graph_in_a_room() -> None:
    said = iter(("draft", "REVISE", "better", "fine"))
    writer, critic = agent("writer", lambda _: next(said)), agent("critic", lambda _: next(said))
    left, right, editor = (agent(name, f"{name} done") for name in ("left", "right", "editor"))
    flow = motet.Graph("press")
    flow.edge(writer, critic)
    flow.edge(critic, writer, when="REVISE")
    flow.edge(critic, left, otherwise=True).edge(critic, right, otherwise=True)
    flow.edge([left, right], editor)
    flow.start(writer)
    async with motet.open_host() as host:
        room = await host.open_room(flow.room())
        result = await room.run("write", user="alice")
    authors = [one.author for one in result.messages]
    assert authors == ["writer", "critic", "writer", "critic", "left", "right", "editor"]
    assert result.reason == "nobody to speak"
    assert len(model_of(editor).requests) == 1


async def test_a_graph_is_walked_anew_for_each_message_and_cycles_end() -> None:
    ping, pong = agent("ping", "ping"), agent("pong", "pong")
    flow = motet.Graph("match").edge(ping, pong).edge(pong, ping).start(ping)
    async with motet.open_host() as host:
        room = await host.open_room(flow.room(max_turns=5))
        for _ in range(2):
            result = await room.run("go", user="alice")
            assert [one.author for one in result.messages] == [
                "ping",
                "pong",
                "ping",
                "pong",
                "ping",
            ]
            assert result.reason == "max_turns"


async def test_a_graph_is_a_node_of_a_graph() -> None:
    inner = motet.Graph("inner").edge(agent("a", "one"), agent("b", "two")).room()
    outer = motet.Graph("outer").edge(inner, agent("last", "three"))
    async with motet.open_host() as host:
        room = await host.open_room(outer.room())
        result = await room.run("go", user="alice")
    assert [(one.author, one.text) for one in result.messages] == [
        ("inner", "two"),
        ("last", "three"),
    ]


async def test_a_node_that_passes_is_asked_again_and_the_round_ends() -> None:
    mute, other = agent("mute", "PASS"), agent("other", "never")
    flow = motet.Graph("silent").edge(mute, other)
    async with motet.open_host() as host:
        room = await host.open_room(flow.room())
        result = await room.run("go", user="alice")
    assert (result.messages, result.reason) == ((), "all passed")
    assert len(model_of(mute).requests) == 2


def test_mistakes_in_a_graph_are_told_when_it_is_made() -> None:
    one = agent("one", "")
    with pytest.raises(ConfigError, match="name a start"):
        motet.Graph("g").edge(one, one).room()
    with pytest.raises(ConfigError, match="two nodes named 'one'"):
        motet.Graph("g").edge(one, agent("one", ""))
    with pytest.raises(ConfigError, match="not both"):
        motet.Graph("g").edge(one, "two", when="x", otherwise=True)
    with pytest.raises(ConfigError, match="each of them once"):
        motet.Graph("g").edge([one, "one"], "two")
    graph = motet.Graph("g").edge("one", "two").edge(one, "three")
    assert graph.nodes["one"] is one
    assert repr(graph) == "<Graph g nodes=3 edges=2>"
