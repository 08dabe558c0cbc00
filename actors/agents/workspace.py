"""The workspace of a run: its folder, the bootstrap files in it, and the prompt they lead to.

Invariants: two users never get the same folder, on a file system that tells case apart or not,
whatever characters their names hold; no name leads out of its folder; a folder's name gives the
user back. A plain agent without files costs nothing and leaves nothing on disk; a file that cannot
be written or read costs the run a warning, never its answer.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Literal, Protocol, TypeAlias
from urllib.parse import unquote_to_bytes

import attrs
import msgspec
import trio

from motet.actors.agents import bootstrap
from motet.actors.agents.bootstrap import SEEDED, Home, template, wanted, with_team
from motet.actors.agents.prompt import ContextFile, PromptInput, Sandbox, Skill
from motet.actors.agents.skills import FoundSkills, SkillCatalog
from motet.actors.errors.log import logger
from motet.actors.tools.mcp.tool_search import PromptTool, is_small
from motet.protocols.agents import AgentProfile, PromptMode, Sharing, Team, WorkspaceMode
from motet.protocols.config import ShellConfig
from motet.protocols.errors import Internal
from motet.protocols.session_keys import chat_user, parse_key, prompt_mode
from motet.protocols.tools import ToolSpec

Peer: TypeAlias = Literal["direct", "group"]

_log = logger("motet.workspaces")

SHARED = "=shared"
"""The folder of users who share one; no folder of a single user has that character."""
LONGEST = 200
"""Characters of one folder's name; file systems take 255 bytes."""
CONTINUED = "%"
"""At the end of a name: the name goes on in the folder inside."""

_PLAIN = re.compile(r"[^a-z0-9._-]")


def folder_names(text: str) -> tuple[str, ...]:
    """A text as a folder name, or as several nested ones if it is long.

    Small letters, digits and ``-_.`` stay. Other characters, and a dot in front, become ``%`` and
    two hex digits for each byte of their UTF-8.
    """
    escaped = _PLAIN.sub(_escaped, text)
    if escaped.startswith("."):
        escaped = "%2e" + escaped[1:]
    pieces = [escaped[at : at + LONGEST] for at in range(0, len(escaped), LONGEST)]
    if not pieces:
        return (CONTINUED,)
    return (*(piece + CONTINUED for piece in pieces[:-1]), pieces[-1])


def text_of(names: tuple[str, ...]) -> str:
    """The inverse of :func:`folder_names`."""
    whole = "".join([*(name.removesuffix(CONTINUED) for name in names[:-1]), names[-1]])
    return unquote_to_bytes(whole.removesuffix(CONTINUED)).decode("utf-8", "surrogatepass")


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass"))


def shares(sharing: Sharing, user: str, peer: Peer) -> bool:
    """Whether a user of a per-user workspace works in the shared folder all the same."""
    return user in sharing.users or (sharing.group if peer == "group" else sharing.dm)


def user_folder(agent: str, user: str, profile: AgentProfile, peer: Peer) -> tuple[str, ...]:
    """The folder of a user with an agent, below the workspace of the host."""
    own = folder_names(agent)
    if profile.workspace == "per_user" and shares(profile.sharing, user, peer):
        return (*own, SHARED)
    return (*own, *folder_names(user))


SOUL = "SOUL.md"
TEAMS = "teams"


@attrs.frozen
class Workspace:
    """The folder of a run, and the files that its prompt shows.

    Attributes:
        folder: the root of the run's file tools.
        soul: path of the agent's SOUL.md for these tools, if the agent may change it.
        team: the agent's, with its folder for this chat.
        problems: sentences for a warning.
    """

    folder: Path
    files: tuple[ContextFile, ...] = ()
    skills: tuple[Skill, ...] = ()
    soul: str = ""
    team: Team | None = None
    problems: tuple[str, ...] = ()


class TokenHolder(Protocol):
    """A token of a gateway, as far as it is about users."""

    @property
    def user(self) -> str: ...
    @property
    def impersonate(self) -> bool: ...


@attrs.define(eq=False)
class Users:
    """The users whom a host knows by the tokens of its gateway.

    They only become more: a folder of one's own must not be shared again when a token is revoked.
    """

    _known: set[str] = attrs.field(init=False, factory=set[str])
    _earlier: set[str] = attrs.field(init=False, factory=set[str])
    _bridged: bool = attrs.field(init=False, default=False)

    @property
    def several(self) -> bool:
        """Whether there are several; a bridge speaks for any number."""
        return self._bridged or (bool(self._known) and len(self._known | self._earlier) > 1)

    def note(self, tokens: Iterable[TokenHolder], *, late: bool = False) -> None:
        """Note the users of tokens. ``late``: after the start, so that the operator is told."""
        before = self.several
        for token in tokens:
            self._known.add(token.user)
            self._bridged = self._bridged or token.impersonate
        if late and self.several and not before:
            _log.warning(
                "the gateway has tokens of several users now: agents without a workspace mode of "
                "their own give each of them a folder from the next run on"
            )

    def were_here(self, owners: Iterable[str]) -> None:
        """These have sessions from before: they count when the gateway has tokens at all."""
        self._earlier.update(owners)


def _bare(workspaces: Workspaces) -> Workspace:
    return Workspace(workspaces.root)


@attrs.frozen
class Workspaces:
    """The folders of agents and users below the workspace of one host.

    ``write`` makes a new file. ``users`` decide for agents whose mode is ``auto``. ``bare``: the
    workspace of a plain agent without files.
    """

    root: Path
    write: bootstrap.Write = bootstrap.create
    skills: SkillCatalog = attrs.field(factory=SkillCatalog)
    users: Users = attrs.field(factory=Users)
    bare: Workspace = attrs.field(default=attrs.Factory(_bare, takes_self=True), init=False)

    async def prepare(
        self, agent: str, profile: AgentProfile, *, user: str, session: str
    ) -> Workspace:
        """Make the folder, give a new user their files, and read the files of the prompt.

        Returns at once for a plain agent in a shared workspace. Cancellation waits for the disk;
        the next turn finishes a seeding that was cut. Raises ``Internal`` when a workspace of a
        user's own cannot be made.
        """
        profile = self._decided(profile)
        skills = profile.skills or (profile.skills is None and self.skills.host)
        if _is_bare(profile) and not skills:
            if profile.team is None:
                return self.bare
            files = with_team((), profile, mode_of(profile, session))
            return Workspace(self.root, files, team=profile.team)
        place = self._place(agent, profile, user, session)
        return await trio.to_thread.run_sync(lambda: self._prepare(place))

    async def preview(
        self, agent: str, profile: AgentProfile, *, user: str, session: str
    ) -> Workspace:
        """The workspace that :meth:`prepare` would return; nothing is written for a new user."""
        place = self._place(agent, self._decided(profile), user, session)
        return await trio.to_thread.run_sync(
            lambda: self._found(place, self._team(place), preview=True)
        )

    async def count_turn(
        self, agent: str, profile: AgentProfile, *, user: str, session: str
    ) -> str:
        """Count a turn of a user; after the third one their BOOTSTRAP.md is removed.

        Returns the problem, if there is one. Runs in minimal mode do not count.
        """
        if not profile.seeds or prompt_mode(session) == "minimal":
            return ""
        place = self._place(agent, self._decided(profile), user, session)
        try:
            await trio.to_thread.run_sync(lambda: bootstrap.count_turn(self.root, place.parts))
        except OSError as error:
            return f"the turn of the user could not be counted: {error.strerror or error}"
        return ""

    async def forget(self, user: str) -> None:
        """Delete the folders of a user, of all agents and teams. Raises ``Internal``."""
        names = folder_names(user)

        def delete() -> None:
            for place in (self.root, self.root / TEAMS):
                for one in place.iterdir() if place.is_dir() else ():
                    if (mine := one.joinpath(*names)).is_dir() and not mine.is_symlink():
                        shutil.rmtree(mine)

        try:
            await trio.to_thread.run_sync(delete)
        except OSError as error:
            raise Internal(f"files cannot be deleted: {error.strerror or error}") from error

    def notes(self, agents: Iterable[tuple[str, AgentProfile]]) -> tuple[str, ...]:
        """Sentences for the operator: which agents keep users apart, and which do not. Blocks."""
        if not self.users.several:
            return ()
        modes = [(name, profile.workspace) for name, profile in agents]
        found: list[str] = []
        if any(mode == "auto" for _, mode in modes):
            found.append(f"each user has a folder: {self.root}/<agent>/<user>")
            own = {folder_names(name)[0] for name, _ in modes} | {TEAMS}
            names = sorted(one.name for one in self.root.iterdir() if one.name not in own)
            if left := [name for name in names if not name.startswith(".motet-")]:
                some = ", ".join(left[:3]) + (", ..." if len(left) > 3 else "")
                found.append(
                    f"{self.root} has files of no user ({some}), which agents do not show any more:"
                    ' move them into folders of users, or set workspace = "shared" for an agent'
                )
        if shared := [name for name, mode in modes if mode == "shared"]:
            found.append(
                f"all users of {', '.join(shared)} share {self.root}, as is configured: each of "
                "them reads and changes the files of the others"
            )
        return tuple(found)

    def _decided(self, profile: AgentProfile) -> AgentProfile:
        if profile.workspace != "auto":
            return profile
        mode: WorkspaceMode = "per_user" if self.users.several else "shared"
        return msgspec.structs.replace(profile, workspace=mode)

    def _place(self, agent: str, profile: AgentProfile, user: str, session: str) -> _Place:
        chat, whose = parse_key(session), chat_user(session, user)
        peer = chat.kind if chat else "direct"
        parts = user_folder(agent, whose, profile, peer)
        return _Place(profile, whose, parts, mode_of(profile, session))

    def _prepare(self, place: _Place) -> Workspace:
        if place.profile.workspace == "per_user":
            self._make(place.parts)
        team = self._team(place)
        if team is not None and team.workspace:
            self._make(Path(team.workspace).relative_to(self.root).parts)
        problem = self._seed(place) if place.seeds else ""
        found = self._found(place, team)
        return attrs.evolve(found, problems=(problem, *found.problems)) if problem else found

    def _found(self, place: _Place, team: Team | None, *, preview: bool = False) -> Workspace:
        profile, names = place.profile, wanted(place.profile, place.mode)
        by_home: dict[Home, list[str]] = {
            home: [file.name for file in names if file.home == home] for home in ("agent", "user")
        }
        of_user, wrong = bootstrap.user_texts(self.root, place.parts, by_home["user"])
        if preview and place.seeds and not bootstrap.is_seeded(self.root, place.parts):
            of_user = place.texts() | of_user
        of_agent, also_wrong = _agent_texts(profile, by_home["agent"])
        root = self._folder(place, team)
        mine = _inside(self.root.joinpath(*place.parts), root)
        shown = _inside(Path(profile.files), root) if profile.files is not None else None
        found_skills = self.skills.find(profile) if place.mode == "full" else FoundSkills()
        found = _context_files(of_user, mine) | _context_files(of_agent, shown)
        files = tuple(found[file.name] for file in names if file.name in found)
        learns = profile.type == "predefined" and shown is not None and SOUL in of_agent
        return Workspace(
            root,
            with_team(files, profile, place.mode),
            tuple(Skill(skill.name, skill.description) for skill in found_skills.skills),
            f"{shown}{SOUL}" if learns else "",
            team,
            (*wrong, *also_wrong, *found_skills.problems),
        )

    def _folder(self, place: _Place, team: Team | None) -> Path:
        if team is not None and team.workspace and team.role == "lead":
            return Path(team.workspace)
        own = place.profile.workspace == "per_user"
        return self.root.joinpath(*place.parts) if own else self.root

    def _team(self, place: _Place) -> Team | None:
        """The team with its folder for this chat. Raises ``Internal`` for one outside the root."""
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
        """Make a folder for tools. A failure is fatal: they never get another folder instead."""
        try:
            bootstrap.make_folder(self.root, parts)
        except OSError as error:
            raise Internal(
                f"the workspace {'/'.join(parts)!r} cannot be made: {error.strerror or error}"
            ) from error

    def _seed(self, place: _Place) -> str:
        """Give a new user their files; returns the problem, if there is one."""
        try:
            bootstrap.seed(self.root, place.parts, place.texts, self.write)
        except OSError as error:
            why = error.strerror or str(error)
            return f"the user's files could not be made and will be at the next turn: {why}"
        return ""


def mode_of(profile: AgentProfile, session: str) -> PromptMode:
    """Sub-agents and scheduled runs have the minimal prompt, whatever their agent's is."""
    return "minimal" if prompt_mode(session) == "minimal" else profile.prompt_mode


@attrs.frozen
class _Place:
    """The user that a run is for, their folder below the root, and the mode of the prompt."""

    profile: AgentProfile
    whose: str
    parts: tuple[str, ...]
    mode: PromptMode

    @property
    def seeds(self) -> bool:
        return self.profile.seeds and self.mode == "full"

    def texts(self) -> dict[str, str]:
        """The files of a new user: the agent's templates, or the built-in ones."""
        kind = self.profile.acts_as
        own, _ = _agent_texts(self.profile, SEEDED[kind])
        return {name: own.get(name) or template(name, kind) for name in SEEDED[kind]}


def _agent_texts(profile: AgentProfile, names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    if profile.files is None:
        return {}, []
    folder = Path(profile.files)
    if not folder.is_dir():
        return {}, [f"the folder of the agent's files {profile.files!r} is not there"]
    return bootstrap.agent_texts(folder, names)


def _inside(folder: Path, workspace: Path) -> str | None:
    """The path of a folder for the tools, with a slash at the end; None: they cannot open it."""
    folder, root = folder.resolve(), workspace.resolve()
    if not folder.is_relative_to(root):
        return None
    return "".join(f"{part}/" for part in folder.relative_to(root).parts)


def _context_files(texts: Mapping[str, str], folder: str | None) -> dict[str, ContextFile]:
    return {
        name: ContextFile(name, text, "" if folder is None else folder + name)
        for name, text in texts.items()
    }


def _is_bare(profile: AgentProfile) -> bool:
    """Whether nothing has to be made or read for an agent."""
    shared = profile.workspace == "shared" and not (profile.team and profile.team.workspace)
    return shared and not profile.seeds and profile.files is None


# The input of the system prompt


SHELL = "shell"
SPAWN = "spawn"
USE_SKILL = "use_skill"


class PromptRun(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a run that its prompt may mention; see :class:`PromptInput`.

    ``mode`` None: as the session's key and the profile say.
    """

    agent: str
    instructions: str
    profile: AgentProfile
    workspace: Workspace
    today: date
    session: str = ""
    user: str = ""
    model: str = ""
    tools: tuple[ToolSpec, ...] = ()
    memory: bool = False
    recalled: str = ""
    extra: str = ""
    shell: ShellConfig | None = None
    owners: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    mcp: tuple[PromptTool, ...] = ()
    price: str = ""
    mode: PromptMode | None = None


def prompt_input(run: PromptRun) -> PromptInput:
    """The input of the prompt for a run.

    A plain agent's prompt leaves out its tools, which travel beside it anyway, and its session and
    user, so that all its sessions share one prompt.
    """
    profile, chat = run.profile, parse_key(run.session)
    hosted = profile.acts_as != "plain"
    names = {tool.name for tool in run.tools}
    return PromptInput(
        today=run.today,
        instructions=run.instructions,
        agent=run.agent,
        type=profile.acts_as,
        mode=run.mode or mode_of(profile, run.session),
        tools=tuple([PromptTool(one.name, one.description) for one in run.tools]) if hosted else (),
        programs=run.programs,
        skills=run.workspace.skills if USE_SKILL in names else (),
        mcp=run.mcp if hosted or (run.mcp and not is_small(run.mcp)) else (),
        files=run.workspace.files,
        soul=run.workspace.soul,
        workspace=str(run.workspace.folder) if hosted and names else "",
        team=run.workspace.team,
        sandbox=_sandbox(run.shell) if hosted and SHELL in names else None,
        user=run.user if hosted else "",
        owners=run.owners,
        channel=chat.channel if chat else "",
        chat=chat.kind if chat else "",
        extra=run.extra,
        recalled=run.recalled,
        spawn_tool=SPAWN if SPAWN in names else "",
        session=run.session if hosted else "",
        model=run.model if hosted else "",
        price=run.price,
        memory=run.memory,
    )


def _sandbox(shell: ShellConfig | None) -> Sandbox | None:
    if shell is None or shell.mode != "sandbox":
        return None
    return Sandbox(network=shell.network, timeout=shell.timeout)
