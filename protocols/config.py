"""The configuration of a host, and how plain data (a parsed file) becomes one.

Invariants: every section has a default, so an empty file is a valid one; a wrong file gives one
``ConfigError`` that names all its problems, each with its full path; secrets are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs

from motet.protocols.admission import networks_of
from motet.protocols.agents import (
    WINDOW,
    AgentProfile,
    AgentType,
    PromptMode,
    Sharing,
    WorkspaceMode,
)
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.chat import JsonObject
from motet.protocols.errors import ConfigError
from motet.protocols.hooks import OnError, Point
from motet.protocols.limits import Limits, WatchdogConfig
from motet.protocols.mcp import SERVER_NAMES, McpServer, is_server_name
from motet.protocols.policy import PER_HOUR, PolicyRule, Profile, ToolRules
from motet.protocols.queueing import QueueConfig
from motet.protocols.recovery import RecoveryConfig
from motet.protocols.redaction.own import OwnRules
from motet.protocols.room_config import RoomConfig
from motet.protocols.session_keys import is_internal
from motet.protocols.sessions import Role
from motet.protocols.teams import TeamConfig

GuardAction: TypeAlias = Literal["off", "log", "warn", "block"]
ShellMode: TypeAlias = Literal["sandbox", "unsafe", "off"]
LogLevel: TypeAlias = Literal["info", "warning", "error"]
LogFormat: TypeAlias = Literal["auto", "json", "text"]

_LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})")


def split_listen(listen: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPv6]:PORT``; port 0 means any free one.

    Raises ``ConfigError`` for anything else.
    """
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found[3]) > 65_535:
        raise ConfigError(f"cannot listen on {listen!r}: give HOST:PORT, such as 127.0.0.1:7878")
    return found[1] or found[2], int(found[3])


Validator: TypeAlias = Callable[[object, "attrs.Attribute[Any]", Any], None]


def _must(be: str, holds: Callable[[Any], bool], *, secret: bool = False) -> Validator:
    """A validator. Its message begins with the name, for which a reader of files has a path."""

    def check(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not holds(value):
            shown = "" if secret else f", not {value!r}"
            raise ValueError(f"{attribute.name} must be {be}{shown}")

    return check


def _one_of(choices: object) -> Validator:
    """For a ``Literal`` that safety hangs on: a typing error in code must not mean "off"."""
    known = get_args(choices)
    return _must(f"one of {', '.join(map(repr, known))}", lambda value: value in known)


def _is_listen(value: str) -> bool:
    found = _LISTEN.fullmatch(value)
    return found is not None and int(found[3]) <= 65_535


def _is_url(value: str | None) -> bool:
    return value is None or re.fullmatch(r"https?://[^\s/]\S*", value) is not None


def _are_origins(value: tuple[str, ...]) -> bool:
    return all(re.fullmatch(r"https?://[^\s/]+", origin) for origin in value)


def _are_networks(value: tuple[str, ...]) -> bool:
    try:
        return len(networks_of(value)) == len(value)
    except ValueError:
        return False


def _are_server_names(value: Mapping[str, object]) -> bool:
    return all(map(is_server_name, value))


def _is_positive(value: float) -> bool:
    return value > 0


def _is_positive_or_none(value: float | None) -> bool:
    return value is None or value > 0


def _is_two_days(value: float) -> bool:
    return value >= 2


def _is_not_empty(value: str | None) -> bool:
    return value != ""


def _is_token(value: str) -> bool:
    return re.fullmatch(r"mtt_[0-9a-f]{32}", value) is not None


def _is_count(value: int) -> bool:
    return value >= 0


def _are_counts(value: Mapping[str, int]) -> bool:
    return all(number >= 0 for number in value.values())


def _is_room_enough(value: int) -> bool:
    return value >= 64


def _is_crowd_enough(value: object) -> bool:
    """Bubblewrap and a shell take five."""
    return isinstance(value, int) and value >= 16


_NOT_EMPTY = _must("some text", _is_not_empty)
_OF_A_PERSON = _must("a person, not 'host' or 'room:NAME'", lambda user: not is_internal(user))
_POSITIVE = _must("above 0", _is_positive)
_POSITIVE_OR_NONE = _must("above 0", _is_positive_or_none)
_TWO_DAYS = _must("at least 2", _is_two_days)
_TOKEN = _must("'mtt_' and 32 hex digits", _is_token, secret=True)


@attrs.frozen(kw_only=True)
class TokenConfig:
    """A token that the gateway accepts, and whom it stands for.

    Attributes:
        token: ``mtt_`` and 32 hex digits, so that nobody guesses it.
        impersonate: a bridge's, which may act as other users, though never as an admin.
    """

    token: str = attrs.field(repr=False, validator=_TOKEN)
    user: str = attrs.field(default="local", validator=[_NOT_EMPTY, _OF_A_PERSON])
    role: Role = attrs.field(default="operator", validator=_one_of(Role))
    impersonate: bool = False


@attrs.frozen(kw_only=True)
class GatewayConfig:
    """Where the gateway listens and who may talk to it.

    Attributes:
        listen: ``HOST:PORT``. Without a token only a loopback address is accepted.
        sockets: descriptors of sockets that listen already, in place of ``listen``. ``motet serve``
            takes those that systemd has opened for it.
        allowed_origins: pages of other hosts whose browsers may connect.
        tokens: empty means that everybody who reaches the address is the local user, unless
            there are stored ones (``motet token``).
        certificate: file of the certificate chain in PEM: then only TLS is spoken.
        private_key: file of its key; None: it is in the same file.
        connections: WebSockets that may be open at once; more are told to come back later.
        connections_per_user: of them, for one user.
        messages_per_minute: that one user may send.
        frames_per_second: of WebSockets, of any kind, that are read of one user; faster ones wait.
        bytes_per_second: likewise.
        rooms_per_user: rooms that one user may own.
        trusted_proxies: addresses or networks of proxies in front. What they say of a client's
            address, in ``X-Forwarded-For``, is believed; nobody else's word is.
        proxy_protocol: their connections begin with a header of the PROXY protocol, as HAProxy and
            load balancers send it.
    """

    listen: str = attrs.field(
        default="127.0.0.1:7878",
        validator=_must("HOST:PORT, such as 127.0.0.1:7878 or [::1]:7878", _is_listen),
    )
    sockets: tuple[int, ...] = ()
    allowed_origins: tuple[str, ...] = attrs.field(
        default=(), validator=_must("origins such as https://chat.example", _are_origins)
    )
    tokens: tuple[TokenConfig, ...] = ()
    certificate: str | None = attrs.field(default=None, validator=_NOT_EMPTY)
    private_key: str | None = attrs.field(default=None, validator=_NOT_EMPTY)
    connections: int = attrs.field(default=200, validator=_POSITIVE)
    connections_per_user: int = attrs.field(default=20, validator=_POSITIVE)
    messages_per_minute: int = attrs.field(default=60, validator=_POSITIVE)
    frames_per_second: int = attrs.field(default=500, validator=_POSITIVE)
    bytes_per_second: int = attrs.field(default=4_194_304, validator=_POSITIVE)
    rooms_per_user: int = attrs.field(default=1_000, validator=_POSITIVE)
    trusted_proxies: tuple[str, ...] = attrs.field(
        default=(), validator=_must("addresses or networks such as 10.0.0.0/8", _are_networks)
    )
    proxy_protocol: bool = False


@attrs.frozen(kw_only=True)
class ShellConfig:
    """How the ``shell`` tool runs commands.

    Attributes:
        mode: ``sandbox`` needs bubblewrap and refuses without it; ``unsafe`` runs commands with
            all the rights of the host; ``off`` refuses them all.
        timeout: seconds that one command may take.
        memory_mb: memory that each of its processes may allocate.
        total_memory_mb: memory that all of them may have together, None: twice ``memory_mb``;
            ``/tmp`` and ``/dev/shm`` of the sandbox take up to 512 each beside it.
        processes: its processes and threads at one time.
        cpu_seconds: processor time of all of them; None: ``timeout`` on each processor.
        written_mb: what all of them may write to disk.
        output_chars: how much of its output is kept; half of it from the end.
        network: whether the sandbox reaches the network.
    """

    mode: ShellMode = attrs.field(default="sandbox", validator=_one_of(ShellMode))
    timeout: float = attrs.field(default=60.0, validator=_POSITIVE)
    memory_mb: int = attrs.field(default=2048, validator=_must("at least 64", _is_room_enough))
    total_memory_mb: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_must("at least 64", _is_room_enough))
    )
    processes: int = attrs.field(default=512, validator=_must("at least 16", _is_crowd_enough))
    cpu_seconds: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    written_mb: int = attrs.field(default=4096, validator=_POSITIVE)
    output_chars: int = attrs.field(default=15_000, validator=_POSITIVE)
    network: bool = False

    @property
    def memory_of_all(self) -> int:
        """Megabytes that all processes of a command may have together."""
        return self.total_memory_mb if self.total_memory_mb is not None else 2 * self.memory_mb


@attrs.frozen(kw_only=True)
class HttpConfig:
    """The limits of ``http_fetch``.

    Attributes:
        timeout: seconds for one fetch, redirects included.
        max_bytes: size of a body; the rest is not read.
        allow_private: whether private and loopback addresses may be fetched.
    """

    timeout: float = attrs.field(default=20.0, validator=_POSITIVE)
    max_bytes: int = attrs.field(default=2_000_000, validator=_POSITIVE)
    allow_private: bool = False


@attrs.frozen(kw_only=True)
class ToolsConfig:
    """Settings of tools: of the built-in ones, and what all agents may do with theirs.

    Attributes:
        profile: what agents begin with that say nothing else.
        calls_per_hour: of one tool in one session; 0: any number.
        per_hour: the same of single tools, groups (``group:web``) and MCP servers.
        aliases: other names of tools, in calls and in policies, besides the usual ones.
        prefixes: what models put around the names of tools, such as ``proxy_{tool_name}``.
        cedar: file of policies in Cedar that hold beside the rules; needs ``motet[cedar]``.
    """

    shell: ShellConfig = attrs.field(factory=ShellConfig)
    http: HttpConfig = attrs.field(factory=HttpConfig)
    profile: Profile = attrs.field(default="full", validator=_one_of(Profile))
    calls_per_hour: int = attrs.field(default=PER_HOUR, validator=_must("0 or more", _is_count))
    per_hour: Mapping[str, int] = attrs.field(
        factory=dict[str, int], validator=_must("of numbers that are 0 or more", _are_counts)
    )
    aliases: Mapping[str, str] = attrs.field(factory=dict[str, str])
    prefixes: tuple[str, ...] = ()
    cedar: str | None = attrs.field(default=None, validator=_NOT_EMPTY)


@attrs.frozen(kw_only=True)
class ProviderConfig:
    """How one provider is reached. None: as its own environment variables say.

    Attributes:
        base_url: address of the API, for servers that speak it too.
        api_key_env: name of the environment variable that holds the key. One that is not the
            provider's own is sent to the provider's own server and to this machine only.
        key_host: another host that it may be sent to, which is that of ``base_url``.
    """

    base_url: str | None = attrs.field(default=None, validator=_must("a http(s) URL", _is_url))
    api_key_env: str | None = attrs.field(default=None, validator=_NOT_EMPTY)
    key_host: str | None = attrs.field(default=None, validator=_NOT_EMPTY)


@attrs.frozen(kw_only=True)
class ModelsConfig:
    """The providers of models. ``openai`` is any server that speaks its chat protocol.

    ``pydantic_ai`` is for all models named ``pydantic_ai:<provider>:<model>``.

    Attributes:
        offered: what people may choose for a session by ``/model``, beside the models of agents.
        concurrency: requests of one model that may be in flight; users share them fairly, and so
            do the rooms and sessions of a user.
        per_user: of them, for one user; None: all but an eighth, and but one at least where there
            are several. The user ``local``, who is the program itself, may have all.
        per_session: of them, for one room or session; None: as many as the user.
    """

    offered: tuple[str, ...] = ()
    concurrency: int = attrs.field(default=16, validator=_POSITIVE)
    per_user: int | None = attrs.field(default=None, validator=attrs.validators.optional(_POSITIVE))
    per_session: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_POSITIVE)
    )
    openai: ProviderConfig = attrs.field(factory=ProviderConfig)
    anthropic: ProviderConfig = attrs.field(factory=ProviderConfig)
    google: ProviderConfig = attrs.field(factory=ProviderConfig)
    ollama: ProviderConfig = attrs.field(factory=ProviderConfig)
    pydantic_ai: ProviderConfig = attrs.field(factory=ProviderConfig)

    @property
    def most_per_user(self) -> int:
        """Requests of one model that one user may have in flight."""
        if self.per_user is not None:
            return self.per_user
        return max(1, self.concurrency - max(1, self.concurrency // 8))


@attrs.frozen(kw_only=True)
class AgentConfig:
    """An agent as a file describes it.

    Attributes:
        tools: names of built-in tools (``read_file``), of groups (``group:fs``), or functions
            to import (``package.module:function``).
        handoffs: agents that it may hand its conversation to.
        memory: whether it is told what it may remember of the user, and remembers its turns.
        limits: in a file these start from the limits of the host; only what differs is named.
        type: ``plain`` is its instructions; ``open`` and ``predefined`` have bootstrap files.
        prompt_mode: ``minimal`` leaves out what only a talk with a person needs.
        bootstrap: whether each user is given files at the first turn; absent: when the agent is
            not plain and has ``files``.
        files: folder of its bootstrap files (AGENTS.md, SOUL.md, ...) and templates.
        workspace: ``shared``, one folder for all, which shows the folders of all; ``per_user``; or
            ``auto``: per user as soon as the gateway has tokens of several users.
        sharing: who shares a folder all the same.
        window: tokens of the model's context window.
        skills: folders of skills, before those in ``files`` and of the host; empty: no skills.
        policy: which of its tools it may call; those of the host come on top.
    """

    model: str = attrs.field(default="demo", validator=_NOT_EMPTY)
    instructions: str = ""
    description: str = ""
    tools: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()
    limits: Limits = attrs.field(factory=Limits)
    memory: bool = False
    type: AgentType = "plain"
    prompt_mode: PromptMode = "full"
    bootstrap: bool | None = None
    files: str | None = attrs.field(default=None, validator=_NOT_EMPTY)
    workspace: WorkspaceMode = attrs.field(default="auto", validator=_one_of(WorkspaceMode))
    sharing: Sharing = attrs.field(factory=Sharing)
    window: int = attrs.field(default=WINDOW, validator=_POSITIVE)
    skills: tuple[str, ...] | None = None
    policy: ToolRules = attrs.field(factory=ToolRules)

    def profile(self) -> AgentProfile:
        """How it is set up beyond its instructions."""
        return AgentProfile(
            type=self.type,
            prompt_mode=self.prompt_mode,
            bootstrap=self.bootstrap,
            files=self.files,
            workspace=self.workspace,
            sharing=self.sharing,
            window=self.window,
            skills=self.skills,
        )


@attrs.frozen(kw_only=True)
class HookConfig:
    """A program that is asked at a point, with JSON in the field names of Claude Code.

    Attributes:
        point: where it stands, such as ``before_tool``.
        command: the program and its arguments; it runs in the directory of the file.
        match: at the tool points, patterns of tool names with ``|`` between them.
        on_error: whether its failure blocks or lets things continue; the point's default if absent.
        fail_open: the same switch: true is ``continue``, false is ``block``.
        timeout: seconds for one event.
        priority: lower is asked first.
        env: names of the environment variables that it gets to know.
    """

    point: Point = attrs.field(validator=_one_of(Point))
    command: tuple[str, ...] = attrs.field(validator=_must("a program and its arguments", bool))
    match: str = attrs.field(default="*", validator=_NOT_EMPTY)
    on_error: OnError | None = attrs.field(
        default=None, validator=attrs.validators.optional(_one_of(OnError))
    )
    fail_open: bool | None = None
    timeout: float = attrs.field(default=5.0, validator=_POSITIVE)
    priority: int = 100
    env: tuple[str, ...] = ()
    name: str | None = attrs.field(default=None, validator=_NOT_EMPTY)
    cwd: str | None = attrs.field(default=None, validator=_NOT_EMPTY)


@attrs.frozen(kw_only=True)
class ErrorsConfig:
    """The retention of tool errors, which are kept redacted.

    Attributes:
        keep_days: older ones are deleted; ``inf``: none.
        keep_mb: megabytes that they may take; the oldest go first. ``inf``: any number.
        keep_raw: store them with the secrets that are in them.
        spool_mb: megabytes of errors in memory that wait to be stored.
        spill_mb: megabytes of the file that takes errors while the database takes none.
    """

    keep_days: float | None = attrs.field(default=90.0, validator=_POSITIVE_OR_NONE)
    keep_mb: float | None = attrs.field(default=1_000.0, validator=_POSITIVE_OR_NONE)
    keep_raw: bool = False
    spool_mb: float = attrs.field(default=32.0, validator=_POSITIVE)
    spill_mb: float = attrs.field(default=64.0, validator=_POSITIVE)


@attrs.frozen(kw_only=True)
class RetentionConfig:
    """Days for which stored things are kept; ``inf``: for ever. See ``docs/operations.md``.

    What an unfinished run, a pending approval or an open escalation needs stays longer.

    Attributes:
        events_days: events, which a client that was away is sent again.
        runs_days: ended runs with their approvals and escalations. At least 2.
        messages_days: messages that no model is shown any more, as they have a summary or were
            reset; of rooms, all but the newest 1,000. At least 2.
        sessions_days: whole sessions since their last use; what agents remember stays. At least 2.
        rooms_days: whole rooms since their last message. At least 2.
        max_mb: megabytes of the database. In a larger one, all of these are shortened.
    """

    events_days: float = attrs.field(default=30.0, validator=_POSITIVE)
    runs_days: float = attrs.field(default=90.0, validator=_TWO_DAYS)
    messages_days: float = attrs.field(default=365.0, validator=_TWO_DAYS)
    sessions_days: float = attrs.field(default=365.0, validator=_TWO_DAYS)
    rooms_days: float = attrs.field(default=365.0, validator=_TWO_DAYS)
    max_mb: float = attrs.field(default=50_000.0, validator=_POSITIVE)


@attrs.frozen(kw_only=True)
class LogConfig:
    """The log that ``motet serve`` writes to standard error; a program configures its own.

    There is no level below ``info``: the library says no more, and other libraries would say what
    nobody has redacted, such as the headers of requests.

    Attributes:
        level: of the lines that are written, and of all above it.
        format: ``json`` or ``text``; ``auto`` is ``text`` at a terminal.
    """

    level: LogLevel = attrs.field(default="info", validator=_one_of(LogLevel))
    format: LogFormat = attrs.field(default="auto", validator=_one_of(LogFormat))


@attrs.frozen(kw_only=True)
class TracingConfig:
    """The retention of traces, and their export.

    Attributes:
        verbose: keep the whole input of every span, redacted; ``MOTET_TRACE_VERBOSE=1`` does too.
        keep_days: older traces are deleted.
        otlp: address of an OpenTelemetry collector; a base URL gets ``/v1/traces``.
        otlp_headers: sent along, such as ``Authorization``.
    """

    verbose: bool = False
    keep_days: float = attrs.field(default=30.0, validator=_POSITIVE)
    otlp: str | None = attrs.field(default=None, validator=_must("a http(s) URL", _is_url))
    otlp_headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)


@attrs.frozen(kw_only=True)
class HostConfig:
    """Everything about a host that is not code.

    Attributes:
        state: directory of the database; None: in memory.
        workspace: directory that the file and shell tools see; None: ``workspace`` in ``state``,
            or a temporary directory for a host in memory, which is removed when the host closes.
            The state may not be inside it.
        limits: of the agents of a file that do not set their own.
        guard: what happens to an input that looks like an attempt to take the agent over.
        skills: folders of skills for all agents; absent from a file: ``skills`` beside it, if
            there is one.
        policy: who may call which tools.
    """

    state: str | None = attrs.field(default=None, validator=_NOT_EMPTY)
    workspace: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(_NOT_EMPTY)
    )
    limits: Limits = attrs.field(factory=Limits)
    guard: GuardAction = attrs.field(default="warn", validator=_one_of(GuardAction))
    skills: tuple[str, ...] | None = None
    gateway: GatewayConfig = attrs.field(factory=GatewayConfig)
    tools: ToolsConfig = attrs.field(factory=ToolsConfig)
    models: ModelsConfig = attrs.field(factory=ModelsConfig)
    errors: ErrorsConfig = attrs.field(factory=ErrorsConfig)
    tracing: TracingConfig = attrs.field(factory=TracingConfig)
    retention: RetentionConfig = attrs.field(factory=RetentionConfig)
    log: LogConfig = attrs.field(factory=LogConfig)
    redaction: OwnRules = attrs.field(factory=OwnRules)
    approvals: ApprovalsConfig = attrs.field(factory=ApprovalsConfig)
    queue: QueueConfig = attrs.field(factory=QueueConfig)
    recovery: RecoveryConfig = attrs.field(factory=RecoveryConfig)
    watchdog: WatchdogConfig = attrs.field(factory=WatchdogConfig)
    hooks: tuple[HookConfig, ...] = ()
    mcp: Mapping[str, McpServer] = attrs.field(
        factory=dict[str, McpServer], validator=_must(SERVER_NAMES, _are_server_names, secret=True)
    )
    policy: tuple[PolicyRule, ...] = ()
    agents: Mapping[str, AgentConfig] = attrs.field(factory=dict[str, AgentConfig])
    teams: Mapping[str, TeamConfig] = attrs.field(factory=dict[str, TeamConfig])
    rooms: Mapping[str, RoomConfig] = attrs.field(factory=dict[str, RoomConfig])


def parse_config(
    data: JsonObject,
    *,
    source: str = "the configuration",
    known: tuple[tuple[str, str], ...] = (),
) -> HostConfig:
    """The host configuration that plain data describes.

    Raises ``ConfigError`` with all problems at once: unknown keys with the nearest known one,
    values of a wrong type or out of range with what was expected. ``source`` says whose they are,
    ``known`` has those that were found before.
    """
    from motet.protocols.structuring import structured

    structured(data, HostConfig, source=source, known=known)
    return structured(_with_inherited_limits(data), HostConfig, source=source)


def _with_inherited_limits(data: JsonObject) -> JsonObject:
    """The same valid data, where each agent's limits are the host's, overlaid by its own."""
    shared = cast("JsonObject", data.get("limits", {}))
    agents = cast("dict[str, JsonObject]", data.get("agents", {}))
    return data | {
        "agents": {
            name: agent | {"limits": shared | cast("JsonObject", agent.get("limits", {}))}
            for name, agent in agents.items()
        }
    }
