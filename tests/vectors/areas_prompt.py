"""Areas of what a run begins with: its agent, its user's files and folder, its session's key."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar, cast

import msgspec
import trio
from trio.testing import MockClock

from motet.actors.agents.bootstrap import create
from motet.actors.agents.prompt import cut
from motet.actors.agents.registry import AgentRegistry, Resolver
from motet.actors.agents.workspace import Peer, Workspaces, folder_names, shares, text_of
from motet.actors.models.catalog import ModelCatalog
from motet.actors.tools.catalog import ToolCatalog
from motet.protocols import session_keys as keys
from motet.protocols.agents import AgentProfile, AgentRecord, AgentType, Sharing
from motet.protocols.errors import ConfigError
from motet.runtime.sandbox import Owner
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood

T = TypeVar("T")
AGENT = "a1"


# Files of a user


def seeding(given: Given) -> Facts:
    if "chars" in given:
        return _cut(given.number("chars"), given.number("max", 20_000))
    if "first" not in given and "profile" not in given:
        raise NotUnderstood(str(given))
    kind = cast("AgentType", given.text("agent_type", given.text("type", "open")))
    profile = AgentProfile(type=kind, bootstrap=True)
    if "first" in given:
        again = _made(profile, (_failing_at(2), create))[-1]
        return {"files": again, "good": "retried" if again else "never seeded again"}
    known = given.text("profile") == "exists"
    return {"files": _made(profile, (create, create) if known else (create,))[-1]}


def _made(
    profile: AgentProfile, writers: tuple[Callable[[int, str, bytes, Owner | None], bool], ...]
) -> list[list[str]]:
    """The files that appeared with each of several turns of one user, in the order of writing."""
    turns: list[list[str]] = []
    with TemporaryDirectory() as folder:
        for write in writers:
            names: list[str] = []

            def note(
                at: int,
                name: str,
                data: bytes,
                owner: Owner | None,
                write: Callable[[int, str, bytes, Owner | None], bool] = write,
                names: list[str] = names,
            ) -> bool:
                made = write(at, name, data, owner)
                if made and name.endswith(".md"):
                    names.append(name)
                return made

            bench = Workspaces(Path(folder), note)
            trio.run(partial(bench.prepare, AGENT, profile, user="u", session="s"))
            turns.append(names)
    return turns


def _failing_at(number: int) -> Callable[[int, str, bytes, Owner | None], bool]:
    left = iter(range(number))

    def write(folder: int, name: str, data: bytes, owner: Owner | None) -> bool:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        return create(folder, name, data, owner)

    return write


def _cut(chars: int, limit: int) -> Facts:
    text = "".join(chr(0x4E00 + n % 20_000) for n in range(chars))
    kept = cut(text, limit)
    head = _common(text, kept)
    tail = _common(text[::-1], kept[::-1]) if kept != text else 0
    return {"head": head, "tail": tail, "notice": len(kept) > head + tail, "length": len(kept)}


def _common(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(left), len(right)))


# Folders


def sharing(given: Given) -> Facts:
    if "peer_kind" not in given:
        raise NotUnderstood(str(given))
    config = given.sub("config")
    rules = Sharing(
        dm=config.get("shared_dm") is True,
        group=config.get("shared_group") is True,
        users=tuple(config.texts("shared_users")),
    )
    return {MAIN: shares(rules, given.text("user"), cast("Peer", given.text("peer_kind")))}


def segment(given: Given) -> Facts:
    text = given.value
    if not isinstance(text, str):
        raise NotUnderstood(str(given))
    names = folder_names(text)
    inside = os.path.normpath(os.path.join("/base", *names))
    return {
        MAIN: "/".join(names),
        "reads_back": text_of(names),
        "contained": inside.startswith("/base/") and inside.count("/") == 1 + len(names),
    }


# Agents by name


def router(given: Given) -> Facts:
    known = {"age_s", "status", "provider", "context_window", "max_iterations", "model"}
    if not known & given.fields.keys():
        raise NotUnderstood(str(given))
    record = AgentRecord(
        AGENT,
        provider=given.text("provider"),
        model=given.text("model", "m"),
        iterations=given.number("max_iterations"),
        profile=AgentProfile(window=given.number("context_window")),
        status="active" if given.text("status", "active") == "active" else "inactive",
    )
    return _timed(lambda clock: _resolved(record, given.seconds("age_s"), clock))


async def _resolved(record: AgentRecord, age: float | None, clock: MockClock) -> Facts:
    source = _Source(record)
    resolver = Resolver(_registry(), source)
    try:
        agent = await resolver.resolve(AGENT)
    except ConfigError as error:
        return {"error": True, "message": str(error)}
    facts: dict[str, object] = {
        "error": False,
        "provider": agent.model_name.partition(":")[0],
        "context_window": agent.profile.window,
        "max_iterations": agent.limits.turns,
    }
    if age is not None:
        clock.jump(age)
        later = await resolver.resolve(AGENT)
        looked = "resolve again" if source.asked == 2 else "cached"
        facts["action"] = f"{looked}, new loop object" if later is not agent else looked
    return facts


class _Source:
    """A store with one agent, which counts how often it is asked for."""

    def __init__(self, record: AgentRecord) -> None:
        self.record = record
        self.asked = 0

    async def get(self, name: str) -> AgentRecord | None:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        return self.record if name == self.record.name else None

    async def records(self) -> tuple[AgentRecord, ...]:
        return (self.record,)

    async def put(self, record: AgentRecord) -> None:
        self.record = record

    async def remove(self, name: str) -> bool:
        return False


def _registry() -> AgentRegistry:
    return AgentRegistry(ToolCatalog(), ModelCatalog(), {}, {})


def _timed(scenario: Callable[[MockClock], Awaitable[T]]) -> T:
    async def main() -> T:
        return await scenario(clock)

    clock = MockClock()
    return trio.run(main, clock=clock)


# Keys


def session_keys(given: Given) -> Facts:
    if "parse" in given:
        return {MAIN: list(keys.split_key(given.text("parse")))}
    if "is_subagent" in given:
        return {MAIN: keys.is_sub_agent(given.text("is_subagent"))}
    if "is_cron" in given:
        return {MAIN: keys.is_cron(given.text("is_cron"))}
    if "cron" in given:
        return {MAIN: keys.cron_key(given.text("cron"), given.text("job"))}
    if "subagent" in given:
        return {MAIN: keys.sub_agent_key(given.text("subagent"), given.text("label"))}
    if "chat" not in given:
        raise NotUnderstood(str(given))
    names = ("agent", "channel", "kind", "chat", "topic", "thread", "account")
    named = {name: str(given.get(name)) for name in names if name in given}
    return {
        MAIN: keys.session_key(
            msgspec.convert(named, keys.Chat),
            scope=cast("keys.Scope", given.text("scope", "per-sender")),
            dm_scope=cast("keys.DmScope", given.text("dm_scope", "per-channel-peer")),
            main=given.text("main_key") or keys.MAIN,
        )
    }
