"""The configuration of a host from a TOML file: its references resolved, its agents built.

Every failure is a ``ConfigError`` that names the file and the place in it. Strings may hold
``${NAME}`` (an environment variable; ``$${`` stands for itself) or be ``file:PATH`` (the text of
a file); paths are relative to the file's own directory.

Invariant: agents and servers that the program gives win over configured ones of the same name.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

import attrs

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.agents.teams import link
from motet.actors.tools.tool import Tool, tool
from motet.protocols.chat import JsonObject
from motet.protocols.config import AgentConfig, HostConfig, parse_config
from motet.protocols.errors import ConfigError, nearest
from motet.protocols.mcp import McpServer
from motet.protocols.policy import Policy
from motet.protocols.redaction.own import with_lines

CONFIG_FILE = "motet.toml"

DEFAULT_AGENTS: Mapping[str, AgentConfig] = {
    "helper": AgentConfig(
        model="demo",
        description="reads and writes files, runs commands, fetches pages",
        instructions="You are a helpful assistant. Answer briefly. Use tools when they help.",
        tools=("group:fs", "group:shell", "group:web"),
    )
}
"""The agents of a configuration without any."""

REFERENCE = re.compile(r"(\$?)\$\{([^}]*)\}")


def load_config(path: str | Path, *, env: Mapping[str, str] | None = None) -> HostConfig:
    """The configuration in a TOML file; ``state``, ``workspace``, ``skills``, ``cedar``, the
    files of the gateway and the ``files`` of agents become absolute paths.

    ``env`` None: the environment of the process. Raises ``ConfigError`` naming all problems.
    """
    file = Path(path).absolute()
    references = _References(file.parent, os.environ if env is None else env)
    data = references.resolved(read_data(file), "")
    known = tuple(references.problems)
    try:
        config = parse_config(cast("JsonObject", data), source=file.name, known=known)
    except ConfigError as error:
        raise ConfigError(with_lines(str(error), file.read_text("utf-8"))) from None
    # A program runs in the directory of the file, unless the file says another.
    servers = {
        name: attrs.evolve(one, cwd=str(file.parent / (one.cwd or ""))) if one.command else one
        for name, one in config.mcp.items()
    }
    hooks = [attrs.evolve(h, cwd=str(file.parent / (h.cwd or ""))) for h in config.hooks]
    beside = file.parent / "skills"
    skills = (str(beside),) if beside.is_dir() else ()
    cedar = config.tools.cedar and str(file.parent / config.tools.cedar)
    gateway = attrs.evolve(
        config.gateway,
        certificate=config.gateway.certificate and str(file.parent / config.gateway.certificate),
        private_key=config.gateway.private_key and str(file.parent / config.gateway.private_key),
    )
    return attrs.evolve(
        config,
        gateway=gateway,
        tools=attrs.evolve(config.tools, cedar=cedar),
        skills=skills if config.skills is None else _below(file.parent, config.skills),
        agents={name: _placed(agent, file.parent) for name, agent in config.agents.items()},
        hooks=tuple(hooks),
        mcp=servers,
        state=None if config.state is None else str(file.parent / config.state),
        workspace=None if config.workspace is None else str(file.parent / config.workspace),
    )


def _placed(agent: AgentConfig, root: Path) -> AgentConfig:
    """The agent with its paths relative to the file's folder."""
    files = None if agent.files is None else str(root / agent.files)
    skills = None if agent.skills is None else _below(root, agent.skills)
    return attrs.evolve(agent, files=files, skills=skills)


def _below(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(root / Path(path).expanduser()) for path in paths)


def build_agents(
    config: HostConfig, *, source: str, root: Path, known: Sequence[AnyAgent] = ()
) -> tuple[AnyAgent, ...]:
    """The agents of a configuration, or those of :data:`DEFAULT_AGENTS` when it has none.

    Functions are imported from the installed packages or from below ``root``. ``known``: agents of
    the program, for handoffs and teams. Raises ``ConfigError`` naming all problems.
    """
    built: list[AnyAgent] = []
    problems: list[str] = []
    for name, spec in (config.agents or DEFAULT_AGENTS).items():
        tools, wrong = _tools(spec.tools, root)
        problems += [f"agents.{name}.tools{place}" for place in wrong]
        try:
            built.append(_agent(name, spec, tools))
        except ConfigError as error:
            problems.append(f"agents.{name}: {error}")
    if not problems:
        problems = link(config, {agent.name: agent for agent in (*known, *built)})
    if problems:
        raise ConfigError(_all(f"{source}: an agent cannot be built:", problems))
    return tuple(built)


def _agent(name: str, spec: AgentConfig, tools: list[Tool | str]) -> AnyAgent:
    return AgentSpec(
        name,
        model=spec.model,
        instructions=spec.instructions,
        description=spec.description,
        tools=tools,
        limits=spec.limits,
        memory=spec.memory,
        profile=spec.profile(),
        policy=spec.policy,
    )


def _all(what: str, problems: list[str]) -> str:
    return "\n  ".join([what, *problems])


# Reading


def read_data(file: Path) -> JsonObject:
    """The data of a file, its references unresolved. Raises ``ConfigError``."""
    import tomllib  # a host of a program has no file

    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {file}") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: byte {error.start} is wrong") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


@attrs.frozen
class _References:
    """Resolves the references of a file, and collects the problems of those that cannot be."""

    root: Path
    env: Mapping[str, str]
    problems: list[tuple[str, str]] = attrs.field(factory=list[tuple[str, str]])

    def resolved(self, value: object, path: str) -> object:
        match value:
            case str():
                return self._text(value, path)
            case dict():
                table = cast("dict[str, object]", value).items()
                return {k: self.resolved(v, f"{path}.{k}" if path else k) for k, v in table}
            case list():
                items = enumerate(cast("list[object]", value))
                return [self.resolved(item, f"{path}[{i}]") for i, item in items]
            case _:
                return value

    def _text(self, text: str, path: str) -> str:
        try:
            text = REFERENCE.sub(self._variable, text)
            return _file_text(self.root, text[5:]) if text.startswith("file:") else text
        except ConfigError as error:
            self.problems.append((path, str(error)))
            return text

    def _variable(self, found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        if found[2] not in self.env:
            raise ConfigError(f"the environment variable {found[2]!r} is not set")
        return self.env[found[2]]


def _file_text(root: Path, name: str) -> str:
    file = root / Path(name).expanduser()
    try:
        return file.read_text("utf-8").rstrip("\n")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None


# Importing


def _tools(names: tuple[str, ...], root: Path) -> tuple[list[Tool | str], list[str]]:
    """Each tool imported, or its name if it is built in; and the problems, with their places."""
    tools: list[Tool | str] = []
    problems: list[str] = []
    for index, name in enumerate(names):
        module, colon, attribute = name.partition(":")
        if not colon or module in ("group", "mcp"):
            tools.append(name)
            continue
        try:
            tools.append(_imported(module, attribute, root))
        except ConfigError as error:
            problems.append(f"[{index}]: {error}")
    return tools, problems


def _imported(module: str, attribute: str, root: Path) -> Tool:
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        found = import_module(module)
    except Exception as error:
        raise ConfigError(_import_problem(module, error, root)) from error
    function: object = getattr(found, attribute, None)
    if function is None:
        near = nearest(attribute, [name for name in vars(found) if not name.startswith("_")])
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"the module {module!r} has no {attribute!r}{hint}")
    if isinstance(function, Tool):
        return function
    if not callable(function):
        raise ConfigError(f"{module}:{attribute} is not a function")
    try:
        return tool(function)
    except TypeError as error:
        raise ConfigError(f"{module}:{attribute} cannot be a tool: {error}") from error


def _import_problem(module: str, error: Exception, root: Path) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (module == missing or module.startswith(f"{missing}.")):
        return f"no module {module!r}, neither installed nor in {root}"
    return f"importing {module!r} failed: {type(error).__name__}: {error}"


def _any(file: Path) -> None:
    """A program may use each file that it names."""


@attrs.frozen
class ConfigSource:
    """The source of a host's configuration, which does not change while the host is open.

    Attributes:
        file: None: the program has the configuration.
        mcp: servers of the program, by name.
        engine: a policy of the program, beside the rules of the configuration.
        defaults: whether a configuration without agents has the built-in ones.
        permit: raises ``ConfigError`` for a file that must not be used.
    """

    file: Path | None = None
    mcp: Mapping[str, McpServer] = attrs.field(factory=dict[str, McpServer])
    engine: Policy | None = None
    defaults: bool = False
    permit: Callable[[Path], None] = attrs.field(default=_any, eq=False)

    @classmethod
    def of(
        cls, config: HostConfig | str | Path, mcp: Mapping[str, McpServer], engine: Policy | None
    ) -> tuple[ConfigSource, HostConfig]:
        """The source and the configuration for ``open_host``. Raises ``ConfigError``."""
        if isinstance(config, HostConfig):
            source = cls(None, mcp, engine)
            return source, source.whole(config)
        source = cls(Path(config).absolute(), mcp, engine)
        return source, source.read()

    def read(self) -> HostConfig:
        """The current content of the file. Raises ``ConfigError``."""
        if self.file is None:
            raise ConfigError("this host was not opened with a file: give it a configuration")
        self.permit(self.file)
        return self.whole(load_config(self.file))

    def whole(self, config: HostConfig) -> HostConfig:
        """A configuration with the additions of the program."""
        agents = config.agents or (DEFAULT_AGENTS if self.defaults else {})
        return attrs.evolve(config, agents=agents, mcp={**config.mcp, **self.mcp})

    def agents(self, config: HostConfig, own: Sequence[AnyAgent]) -> tuple[AnyAgent, ...]:
        """The agents that a configuration describes, except those that the program has: ``own``.

        Raises ``ConfigError`` naming all problems.
        """
        known = {agent.name for agent in own}
        rest = {name: spec for name, spec in config.agents.items() if name not in known}
        if not rest:
            return ()
        source, root = "the configuration", Path.cwd()
        if self.file is not None:
            source, root = self.file.name, self.file.parent
        described = attrs.evolve(config, agents=rest)
        return build_agents(described, source=source, root=root, known=own)


def keep_teams(config: HostConfig, before: HostConfig, own: Sequence[AnyAgent]) -> HostConfig:
    """The configuration without the teams that agents of the program have joined already.

    Raises ``ConfigError`` for such a team if it has changed or has other agents, too.
    """
    known, teams = {agent.name for agent in own}, dict(config.teams)
    for name, team in config.teams.items():
        members = {*team.members, team.lead or team.members[0]}
        if members.isdisjoint(known):
            continue
        if not members <= known or before.teams.get(name) != team:
            raise ConfigError(f"teams.{name}: it has agents of the program: start the host anew")
        del teams[name]
    return attrs.evolve(config, teams=teams)
