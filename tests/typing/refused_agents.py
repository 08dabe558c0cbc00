"""Errors of agents that mypy and pyright must find: each line with an ignore comment, and no other.

Read as ``refused.py``, by the same test. Nothing here is ever run.
"""

from __future__ import annotations

import attrs
import msgspec

import motet
from motet import testing as mt


class Ticket(msgspec.Struct):
    title: str


@attrs.frozen
class Deps:
    user: str


plain = motet.Agent("plain")
triage = motet.Agent("triage", output_type=Ticket)
judge = motet.Agent("judge", deps_type=Deps, output_type=Ticket)

wrong_output: motet.Agent[None, int] = triage  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
wrong_deps: motet.Agent[int, Ticket] = judge  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
without: motet.Agent = judge  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
motet.Agent("a", output_type=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def runs(host: motet.Host) -> None:
    right: str = (await host.run(triage, "x")).output.title
    wrong: str = (await host.run(triage, "x")).output  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    number: int = (await host.run(plain, "x")).output  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    await host.run(triage, "x", sesion="s")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    print(right, wrong, number)


async def deps(ctx: motet.Context[Deps], other: motet.Context[int]) -> None:
    await judge.run("x", deps=Deps("a"))
    await judge.run("x", deps=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.run(judge, "x")
    await other.run(judge, "x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    right: str = ctx.deps.user
    wrong: int = ctx.deps.user  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(right, wrong)


async def streams(host: motet.Host) -> None:
    async with host.stream(triage, "x") as run:
        right: str = run.result.output.title
        wrong: str = run.result.output  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        print(right, wrong)


def programs() -> None:
    judge.run_sync("x", deps=Deps("a"))
    judge.run_sync("x", deps=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    judge.run_sync("x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Evaluations: judges are of the agent's output, and tools that want deps get them


def of_text(trial: mt.Trial[str]) -> bool:
    return bool(trial.output)


def of_ticket(trial: mt.Trial[Ticket]) -> float:
    return float(trial.output.title == trial.expected.title)


def gives_text(trial: mt.Trial[str]) -> str:
    return trial.text


cases = [mt.EvalCase("a", "x", Ticket("y"))]
mt.evaluate(triage, cases, [of_text])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType, reportCallIssue]
mt.evaluate(plain, cases, [gives_text])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType, reportCallIssue]
mt.evaluate(judge, cases, [of_ticket])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
