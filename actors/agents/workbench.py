"""What a run finds when it begins: its folder, and the bootstrap files of its agent and user.

Invariants: a plain agent without files costs nothing and leaves nothing on disk; a file that
cannot be written or read costs the run a warning, never its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import msgspec
import trio

from motet.actors.agent.bootstrap import SEEDED, Home, template, wanted, with_team
from motet.actors.agent.prompt.given import ContextFile, Skill
from motet.actors.agents import seeding
from motet.actors.agents.folders import folder_names, user_folder
from motet.actors.sessions.keys import chat_user, parse_key, prompt_mode
from motet.actors.skills.shelf import Found, Shelf
from motet.protocols.agents import AgentProfile, PromptMode, Team
from motet.protocols.errors import Internal

T = TypeVar("T")
SOUL = "SOUL.md"


@attrs.frozen
class Prepared:
    """What was found.

    Attributes:
        workspace: what the tools of the run see.
        soul: where they find the agent's SOUL.md, if the agent may change it.
        team: the agent's, with the folder that it has for this chat.
        problems: sentences for a warning.
    """

    workspace: Path
    files: tuple[ContextFile, ...] = ()
    skills: tuple[Skill, ...] = ()
    soul: str = ""
    team: Team | None = None
    problems: tuple[str, ...] = ()


def _nothing(workbench: Workbench) -> Prepared:
    return Prepared(workbench.root)


@attrs.frozen
class Workbench:
    """The folders below the workspace of one host, and the skills of its agents.

    ``write`` makes a new file. ``bare`` is what is found where there is nothing.
    """

    root: Path
    write: seeding.Write = seeding.create
    shelf: Shelf = attrs.field(factory=Shelf)
    bare: Prepared = attrs.field(default=attrs.Factory(_nothing, takes_self=True), init=False)

    async def prepare(
        self, agent: str, profile: AgentProfile, *, user: str, session: str
    ) -> Prepared:
        """Make the folder, give a new user their files, and read what the prompt needs.

        Returns at once for a plain agent in a shared workspace. Cancellation waits for the disk;
        a seeding that is cut is finished at the next turn. Raises ``Internal`` when a workspace
        of a user's own cannot be made.
        """
        if _is_bare(profile) and not self.shelf.places(profile):
            if profile.team is None:
                return self.bare
            files = with_team((), profile, mode_of(profile, session))
            return Prepared(self.root, files, team=profile.team)
        place = self._place(agent, profile, user, session)
        return await _in_thread(lambda: self._prepare(place))

    async def preview(
        self, agent: str, profile: AgentProfile, *, user: str, session: str
    ) -> Prepared:
        """What :meth:`prepare` would find, with nothing made: a new user's files are as given."""
        place = self._place(agent, profile, user, session)
        return await _in_thread(lambda: self._found(place, self._team(place), preview=True))

    async def turn_ended(
        self, agent: str, profile: AgentProfile, *, user: str, session: str
    ) -> str:
        """Count a turn of a user; after the third their BOOTSTRAP.md is gone.

        The problem, if there was one. Runs in minimal mode are nobody's turns.
        """
        if not profile.seeds or prompt_mode(session) == "minimal":
            return ""
        place = self._place(agent, profile, user, session)
        try:
            await _in_thread(lambda: seeding.count_turn(self.root, place.parts))
        except OSError as error:
            return f"the turn of the user could not be counted: {error.strerror or error}"
        return ""

    def _place(self, agent: str, profile: AgentProfile, user: str, session: str) -> _Place:
        chat, whose = parse_key(session), chat_user(session, user)
        peer = chat.kind if chat else "direct"
        parts = user_folder(agent, whose, profile, peer)
        return _Place(profile, whose, parts, mode_of(profile, session))

    def _prepare(self, place: _Place) -> Prepared:
        if place.profile.workspace == "per_user":
            self._make(place.parts)
        team = self._team(place)
        if team is not None and team.workspace:
            self._make(Path(team.workspace).relative_to(self.root).parts)
        problem = self._seed(place) if place.seeds else ""
        found = self._found(place, team)
        return attrs.evolve(found, problems=(problem, *found.problems)) if problem else found

    def _found(self, place: _Place, team: Team | None, *, preview: bool = False) -> Prepared:
        profile, names = place.profile, wanted(place.profile, place.mode)
        by_home: dict[Home, list[str]] = {
            home: [file.name for file in names if file.home == home] for home in ("agent", "user")
        }
        of_user, wrong = seeding.user_texts(self.root, place.parts, by_home["user"])
        if preview and place.seeds and not seeding.is_seeded(self.root, place.parts):
            of_user = place.texts() | of_user
        of_agent, also_wrong = _agent_texts(profile, by_home["agent"])
        workspace = self._workspace(place, team)
        mine = _inside(self.root.joinpath(*place.parts), workspace)
        shown = _inside(Path(profile.files), workspace) if profile.files is not None else None
        shelf = self.shelf.find(profile) if place.mode == "full" else Found()
        found = _context_files(of_user, mine) | _context_files(of_agent, shown)
        files = tuple(found[file.name] for file in names if file.name in found)
        learns = profile.type == "predefined" and shown is not None and SOUL in of_agent
        return Prepared(
            workspace,
            with_team(files, profile, place.mode),
            tuple(Skill(skill.name, skill.description) for skill in shelf.skills),
            f"{shown}{SOUL}" if learns else "",
            team,
            (*wrong, *also_wrong, *shelf.problems),
        )

    def _workspace(self, place: _Place, team: Team | None) -> Path:
        if team is not None and team.workspace and team.role == "lead":
            return Path(team.workspace)
        own = place.profile.workspace == "per_user"
        return self.root.joinpath(*place.parts) if own else self.root

    def _team(self, place: _Place) -> Team | None:
        """The team with its folder for this chat. Raises ``Internal`` for one out of reach."""
        team = place.profile.team
        if team is None or not team.workspace:
            return team
        root = self.root.resolve()
        folder = (root / team.workspace).resolve()
        if not folder.is_relative_to(root) or folder == root:
            raise Internal(
                f"the workspace {team.workspace!r} of team {team.name!r} is not a folder inside of "
                f"the host's workspace {str(root)!r}"
            )
        own = self.root / folder.relative_to(root)
        mine = own if team.shared else own.joinpath(*folder_names(place.whose))
        return msgspec.structs.replace(team, workspace=str(mine))

    def _make(self, parts: tuple[str, ...]) -> None:
        """A folder for tools. They never get another one instead: a failure is fatal."""
        try:
            seeding.make_folder(self.root, parts)
        except OSError as error:
            raise Internal(
                f"the workspace {'/'.join(parts)!r} cannot be made: {error.strerror or error}"
            ) from error

    def _seed(self, place: _Place) -> str:
        """Give a new user their files; what kept us from it, if something did."""
        try:
            seeding.seed(self.root, place.parts, place.texts, self.write)
        except OSError as error:
            why = error.strerror or str(error)
            return f"the user's files could not be made and will be at the next turn: {why}"
        return ""


def mode_of(profile: AgentProfile, session: str) -> PromptMode:
    """Sub-agents and scheduled runs have the minimal prompt, whatever their agent's is."""
    return "minimal" if prompt_mode(session) == "minimal" else profile.prompt_mode


@attrs.frozen
class _Place:
    """Whose run it is: the folder of its user below the root, and how much of a prompt it has."""

    profile: AgentProfile
    whose: str
    parts: tuple[str, ...]
    mode: PromptMode

    @property
    def seeds(self) -> bool:
        return self.profile.seeds and self.mode == "full"

    def texts(self) -> dict[str, str]:
        """What a new user is given: the agent's templates, or the built-in ones."""
        kind = self.profile.acts_as
        own, _ = _agent_texts(self.profile, SEEDED[kind])
        return {name: own.get(name) or template(name, kind) for name in SEEDED[kind]}


def _agent_texts(profile: AgentProfile, names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    if profile.files is None:
        return {}, []
    folder = Path(profile.files)
    if not folder.is_dir():
        return {}, [f"the folder of the agent's files {profile.files!r} is not there"]
    return seeding.agent_texts(folder, names)


def _inside(folder: Path, workspace: Path) -> str | None:
    """How tools name a folder, with a slash at the end; None: they cannot open it."""
    folder, root = folder.resolve(), workspace.resolve()
    if not folder.is_relative_to(root):
        return None
    return "".join(f"{part}/" for part in folder.relative_to(root).parts)


def _context_files(texts: Mapping[str, str], place: str | None) -> dict[str, ContextFile]:
    return {
        name: ContextFile(name, text, "" if place is None else place + name)
        for name, text in texts.items()
    }


def _is_bare(profile: AgentProfile) -> bool:
    """Whether nothing has to be made or read for an agent."""
    shared = profile.workspace == "shared" and not (profile.team and profile.team.workspace)
    return shared and not profile.seeds and profile.files is None


async def _in_thread(job: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(job)
