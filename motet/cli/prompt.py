"""``motet prompt``: the system prompt of an agent, and the size of each section.

Nothing is changed, and no model is asked: files of a new user are shown as they would be. On a pipe
standard output gets the prompt alone; the table goes to standard error.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import attrs
import msgspec
import trio

from motet.actors.agents.prompt import Prompt, assemble
from motet.actors.agents.skills import SkillCatalog
from motet.actors.agents.workspace import PromptRun, Workspace, Workspaces, mode_of, prompt_input
from motet.actors.hosting.config import DEFAULT_AGENTS
from motet.actors.hosting.tree import open_tree
from motet.cli.exits import OK
from motet.cli.render import in_json, visible
from motet.cli.screen import STYLES, console
from motet.cli.setup import Setup
from motet.cli.stored import reading
from motet.protocols.agents import AgentType, PromptMode
from motet.protocols.config import AgentConfig
from motet.protocols.errors import NotFound
from motet.protocols.policy import Subject
from motet.protocols.sessions import LOCAL
from motet.protocols.tools import ToolSpec

_OWNER = "SELECT owner FROM sessions WHERE session = ?"


class SectionLine(msgspec.Struct, frozen=True):
    """A section as ``--json`` prints it. ``tokens`` are estimated."""

    name: str
    chars: int
    tokens: int
    text: str


class PromptReport(msgspec.Struct, frozen=True):
    """The output of ``--json``. ``problems``: files that could not be read."""

    agent: str
    type: AgentType
    mode: PromptMode
    user: str
    workspace: str
    chars: int
    tokens: int
    sections: tuple[SectionLine, ...]
    text: str
    problems: tuple[str, ...]


def show_prompt(
    setup: Setup, agent: str, session: str | None, mode: str | None, *, json: bool
) -> int:
    """Print the prompt of a configured agent, in a session or in a new one."""
    report = trio.run(_report, setup, agent, session or "", cast("PromptMode | None", mode))
    if json:
        print(in_json(report))
        return OK
    _print_table(report)
    print(visible(report.text))
    return OK


async def _report(setup: Setup, agent: str, session: str, mode: PromptMode | None) -> PromptReport:
    spec = (setup.config.agents or DEFAULT_AGENTS)[agent]
    profile, user = spec.profile(), await _user(setup, session)
    catalog = SkillCatalog(tuple(map(Path, setup.config.skills or ())))
    workspaces = Workspaces(setup.workspace.absolute(), skills=catalog)
    prepared = await workspaces.preview(agent, profile, user=user, session=session)
    occasion = PromptRun(
        agent=agent,
        instructions=spec.instructions,
        profile=profile,
        workspace=prepared,
        today=datetime.now().astimezone().date(),
        session=session,
        user=user,
        model=spec.model,
        tools=await _tools(setup, agent, user, session),
        memory=spec.memory,
        shell=setup.config.tools.shell,
        mode=mode or mode_of(profile, session),
    )
    given = prompt_input(occasion)
    return _reported(assemble(given), spec, occasion, prepared)


def _reported(
    prompt: Prompt, spec: AgentConfig, occasion: PromptRun, prepared: Workspace
) -> PromptReport:
    lines = tuple(SectionLine(s.name, s.chars, s.tokens, s.text) for s in prompt.sections)
    return PromptReport(
        agent=occasion.agent,
        type=spec.profile().acts_as,
        mode=occasion.mode or "full",
        user=occasion.user,
        workspace=str(prepared.folder),
        chars=len(prompt.text),
        tokens=sum(line.tokens for line in lines),
        sections=lines,
        text=prompt.text,
        problems=prepared.problems,
    )


async def _tools(setup: Setup, agent: str, user: str, session: str) -> tuple[ToolSpec, ...]:
    """The agent's tools, from a host in memory, so that they are the same as in a run."""
    with TemporaryDirectory() as folder:
        config = attrs.evolve(setup.config, state=None, hooks=())
        async with open_tree(None, folder, config) as parts:
            for known in setup.agents():
                parts.generations.registry.add(known)
            role = LOCAL.role if user == LOCAL.user else "operator"
            who, toolkit = Subject(agent, user, role, session), parts.generations.current
            return toolkit.policy.offered((who,), toolkit.catalog.specs(agent))


async def _user(setup: Setup, session: str) -> str:
    """The owner of the session; a new one belongs to the user of the command line."""
    if not session:
        return LOCAL.user
    try:
        async with reading(setup.state) as readers:
            rows = await readers.read(_OWNER, (session,))
    except NotFound:
        rows = ()
    return str(rows[0][0]) if rows else LOCAL.user


def _print_table(report: PromptReport) -> None:
    from rich.table import Table

    screen = console(sys.stdout if sys.stdout.isatty() else sys.stderr)
    table = Table(box=None, pad_edge=False)
    table.add_column("section")
    for heading in ("chars", "~tokens"):
        table.add_column(heading, justify="right")
    for line in report.sections:
        table.add_row(line.name, f"{line.chars:,}", f"{line.tokens:,}")
    table.add_row("all", f"{report.chars:,}", f"{report.tokens:,}", style="bold")
    screen.print(table)
    for problem in report.problems:
        screen.print(visible(problem), style=STYLES["warning"], markup=False, soft_wrap=True)
    screen.print()
