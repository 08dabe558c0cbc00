"""Types that mypy and pyright infer of agents: every line states one.

Both checkers pass this file only while each knows exactly these types. Nothing here is ever run.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict, assert_type

import attrs
import msgspec

import motet
from motet import testing as mt
from motet.actors.tools.tool import Tool


class Ticket(msgspec.Struct):
    title: str
    severity: int


@attrs.frozen
class Deps:
    user: str


class Row(TypedDict):
    id: int


class Point(NamedTuple):
    x: int


class Color(Enum):
    RED = "red"


plain = motet.Agent("plain")
triage = motet.Agent("triage", output_type=Ticket)
clerk = motet.Agent("clerk", deps_type=Deps)
judge = motet.Agent("judge", deps_type=Deps, output_type=Ticket)
maybe = motet.Agent("maybe", deps_type=Deps | None)
named = motet.Agent("named", deps_type=dict[str, int])

assert_type(plain, motet.Agent[None, str])
assert_type(triage, motet.Agent[None, Ticket])
assert_type(clerk, motet.Agent[Deps, str])
assert_type(judge, motet.Agent[Deps, Ticket])
assert_type(named, motet.Agent[dict[str, int], str])
assert_type(motet.Agent("a", output_type=Row), motet.Agent[None, Row])
assert_type(motet.Agent("a", output_type=Point), motet.Agent[None, Point])
assert_type(motet.Agent("a", output_type=Color), motet.Agent[None, Color])
assert_type(motet.Agent("a", output_type=list[Ticket]), motet.Agent[None, list[Ticket]])
assert_type(motet.Agent("a", output_type=Ticket | int), motet.Agent[None, Ticket | int])
assert_type(motet.Agent("a", output_type=Literal["y", "n"]), motet.Agent[None, Literal["y", "n"]])


def of_an_annotation(agent: motet.Agent, judging: motet.Agent[Deps, Ticket]) -> None:
    assert_type(agent, motet.Agent[None, str])
    assert_type(judging.run_sync("x", deps=Deps("a")).output, Ticket)


# What tools are given, and what is left of them


@judge.tool
async def look(ctx: motet.Context[Deps], unit: str) -> list[str]:
    assert_type(ctx.deps, Deps)
    assert_type(await ctx.run(triage, "x"), motet.RunResult[Ticket])
    assert_type((await ctx.run(judge, "x")).output, Ticket)
    return [unit]


@judge.tool(timeout=5, effects="write")
def restart(ctx: motet.Context[Deps], unit: str, *, reason: str) -> str:
    assert_type(ctx.deps.user, str)
    return f"{unit}: {reason}"


@judge.tool
def plain_function(n: int) -> int:
    return n


async def tools_stay_what_they_were(ctx: motet.Context[Deps]) -> None:
    assert_type(await look(ctx, "a"), list[str])
    assert_type(restart(ctx, "a", reason="b"), str)
    assert_type(plain_function(1), int)
    assert_type(triage.as_tool(name="classify", description="Classify."), Tool)


# What runs give


async def of_a_host(host: motet.Host) -> None:
    assert_type(await host.run(plain, "x"), motet.RunResult[str])
    assert_type((await host.run(plain, "x")).output, str)
    result = await host.run(triage, "x", session="s", max_turns=3)
    assert_type(result, motet.RunResult[Ticket])
    assert_type(result.output.severity, int)
    assert_type(result.final_output, Ticket)
    assert_type(result.text, str)
    assert_type(result.check().output, Ticket)
    assert_type((await host.run(judge, "x", deps=Deps("a"), check=False)).output, Ticket)
    assert_type((await host.run(maybe, "x")).output, str)
    assert_type((await host.run(maybe, "x", deps=Deps("a"))).output, str)
    assert_type((await host.run("judge", "x", deps=Deps("a"))), motet.RunResult[Any])


async def of_a_stream(host: motet.Host) -> None:
    async with host.stream(judge, "x", deps=Deps("a")) as run:
        assert_type(run, motet.RunStream[Ticket])
        assert_type((await run.wait()).output, Ticket)
        assert_type(run.result.output, Ticket)
        async for event in run:
            assert_type(event, motet.AnyEvent)
    async with triage.stream("x") as own:
        assert_type(own.result.output, Ticket)
    async with host.stream("judge", "x") as unknown:
        assert_type(unknown, motet.RunStream[Any])


async def of_an_agent() -> None:
    assert_type((await triage.run("x")).output, Ticket)
    assert_type((await judge.run("x", deps=Deps("a"))).output, Ticket)


def of_a_program() -> None:
    assert_type(plain.run_sync("x").output, str)
    assert_type(triage.run_sync("x", check=False).output, Ticket)
    assert_type(judge.run_sync("x", deps=Deps("a")).output, Ticket)


def of_a_thread(host: motet.HostThread) -> None:
    assert_type(host.run(plain, "x"), motet.RunResult[str])
    assert_type(host.run(judge, "x", deps=Deps("a"), timeout=5).output, Ticket)
    assert_type(host.run("judge", "x"), motet.RunResult[Any])
    assert_type(host.start(triage, "x", check=False), motet.StartedRun[Ticket])
    with host.stream(triage, "x") as run:
        assert_type(run.result.output, Ticket)
        for event in run:
            assert_type(event, motet.AnyEvent)
    assert_type(host.call(motet.Host.stop, session="s"), motet.StopReport)


async def of_asyncio(host: motet.AsyncioHost) -> None:
    assert_type(await host.run(triage, "x"), motet.RunResult[Ticket])
    async with host.stream(judge, "x", deps=Deps("a")) as run:
        assert_type((await run.wait()).output, Ticket)
        async for event in run:
            assert_type(event, motet.AnyEvent)
    assert_type(await host.call(motet.Host.stop, session="s"), motet.StopReport)


# Where one agent may stand for another


def covariant(agent: motet.Agent[Deps, Ticket]) -> motet.Agent[Deps, Ticket | None]:
    return agent


def contravariant(agent: motet.Agent[Deps | None, Ticket]) -> motet.Agent[None, Ticket]:
    return agent


async def by_name_or_itself(host: motet.Host, agent: motet.Agent[None, Ticket] | str) -> None:
    assert_type((await host.run(agent, "x")).run_id, str)


# Evaluations


def right(trial: mt.Trial[Ticket]) -> bool:
    assert_type(trial.output, Ticket)
    assert_type(trial.expected, Ticket)
    return trial.output == trial.expected


async def right_later(trial: mt.Trial[Ticket]) -> mt.Score:
    return mt.Score(trial.output.title == "", reason="empty")


def of_evaluations(cases: list[mt.EvalCase]) -> None:
    judges: list[mt.Judge[Ticket]] = [
        right,
        right_later,
        mt.judges.equals(),
        mt.judges.rubric("Good.", "demo"),
    ]
    assert_type(mt.evaluate(triage, cases, judges), mt.EvalReport)
    mt.evaluate(judge, cases, [right], deps=lambda case: Deps(case.name))
    mt.Evaluation("all", judge, cases, judges, deps=lambda case: Deps(case.name), repeats=3)
