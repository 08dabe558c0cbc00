"""The powers of a configuration file: the parts by which a stranger's file could do harm.

A file is shown to a person and trusted by its powers: the modules that it imports, the programs
that it starts, the servers that it sends to, and so on. Whatever this module does not know to be
harmless is a power, so that a new key of the configuration is one until it is listed here.

Invariants: nothing of the file is used to find its powers: no variable of the environment is read,
no file outside of its folder, no module. A reference stands for anything: ``${NAME}`` is compared
as it is written, and the text of a file of the folder as it is now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Final, Literal, Protocol, TypeAlias, cast

import msgspec

from motet.protocols.chat import JsonObject

PowerKind: TypeAlias = Literal["import", "start", "send", "read", "use", "listen", "set"]
KINDS: Final[Mapping[PowerKind, str]] = {
    "import": "import",
    "start": "start",
    "send": "send to",
    "read": "read",
    "use": "use",
    "listen": "listen on",
    "set": "set",
}
"""Each kind, as a verb for people; in the order in which they are shown."""


MOST = 10
"""Lines that are shown of each kind."""


class Power(msgspec.Struct, frozen=True, order=True):
    """One thing that a file could do harm with.

    Attributes:
        what: for people; printable, and shortened.
        identity: digest of the whole; a consent is to identities.
    """

    kind: PowerKind
    what: str
    identity: str


class Folder(Protocol):
    """The facts about the folder of the file that decide what is harmless."""

    def inside(self, path: str) -> bool:
        """Whether a path, links followed, is the folder or lies in it."""
        ...

    def resolved(self, path: str) -> str:
        """The path where links end."""
        ...

    def text(self, path: str) -> str | None:
        """The text of a file that lies in the folder; None: it is elsewhere or no such file."""
        ...

    def has_module(self, name: str) -> bool:
        """Whether an import would find the module in the folder."""
        ...


def powers_of(data: JsonObject, folder: Folder) -> tuple[Power, ...]:
    """The powers of a file's data with unresolved references, sorted and each once."""
    found: set[Power] = set()
    pinned = cast("JsonObject", _pinned(data, folder, found))
    for key, value in pinned.items():
        found.update(_of_key(key, value, folder))
    order = list(KINDS)
    return tuple(sorted(found, key=lambda one: (order.index(one.kind), one.what, one.identity)))


def shown(powers: tuple[Power, ...]) -> str:
    """The powers for people, a line each. No kind can push another one off the screen."""
    width = max(len(verb) for verb in KINDS.values())
    lines: list[str] = []
    for kind, verb in KINDS.items():
        said = [one.what for one in powers if one.kind == kind]
        if len(said) > MOST:
            said = [*said[: MOST - 1], f"… and {len(said) - MOST + 1:,} more: read the file"]
        lines += [f"  {verb:<{width}}  {what}" for what in said]
    return "\n".join(lines)


def printable(text: str, most: int = 200) -> str:
    """The text for a terminal: nothing in it controls one, and it has ``most`` characters."""
    cut = text if len(text) <= most else f"{text[:most]}…"
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in cut)


def _power(kind: PowerKind, what: str, whole: object = None) -> Power:
    """``whole``: compared in place of ``what``, where people are shown less."""
    text = json.dumps([kind, what if whole is None else whole], sort_keys=True, default=str)
    return Power(kind, printable(what), sha256(text.encode("utf-8", "surrogatepass")).hexdigest())


# References

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_FILE = "file:"


def _pinned(value: object, folder: Folder, found: set[Power]) -> object:
    """The value with the texts of files of the folder, which may change without the file."""
    match value:
        case str():
            for variable in _VARIABLE.finditer(value):
                found.add(_power("read", f"the environment variable {variable[1]}"))
            if not value.startswith(_FILE):
                return value
            text = None if "${" in value else folder.text(value[len(_FILE) :])
            if text is None:
                found.add(_power("read", f"the file {value[len(_FILE) :]}"))
                return value
            return text.rstrip("\n")
        case dict():
            table = cast("dict[str, object]", value)
            return {key: _pinned(one, folder, found) for key, one in table.items()}
        case list():
            return [_pinned(one, folder, found) for one in cast("list[object]", value)]
        case _:
            return value


# Keys

Rule: TypeAlias = Callable[[str, object, Folder], Iterator[Power]]
"""The powers of a value; the text is its place in the file."""


_SECRET = re.compile(r"token|header|key", re.IGNORECASE)
"""Places whose values are not shown."""


def _harmless(place: str, value: object, folder: Folder) -> Iterator[Power]:
    del place, value, folder
    yield from ()


def _set(place: str, value: object, folder: Folder) -> Iterator[Power]:
    """What is not known: each of its values, so that each change is seen by itself."""
    if isinstance(value, dict) and value:
        for key, one in cast("dict[str, object]", value).items():
            yield from _set(f"{place}.{key}", one, folder)
        return
    text = json.dumps(value, default=str)
    if _SECRET.search(place):
        yield _power("set", place, [place, text])
    else:
        yield _power("set", f"{place} = {text}")


def _path(place: str, value: object, folder: Folder) -> Iterator[Power]:
    """A path, which is harmless in the folder."""
    if not isinstance(value, str):
        yield from _set(place, value, folder)
    elif not folder.inside(value):
        where = folder.resolved(value)
        yield _power("use", f"{where} ({place})", [place, where])


def _paths(place: str, value: object, folder: Folder) -> Iterator[Power]:
    for one in cast("list[object]", value) if isinstance(value, list) else [value]:
        yield from _path(place, one, folder)


def _state(place: str, value: object, folder: Folder) -> Iterator[Power]:
    """A state may bring inputs, approvals and agents that go on by themselves."""
    del folder
    yield _power("use", f"what is stored in {value}, and resume its runs", [place, value])


def _model(place: str, value: object, folder: Folder) -> Iterator[Power]:
    """The provider is compared, not the model."""
    if not isinstance(value, str):
        yield from _set(place, value, folder)
    elif value != "demo":
        provider = value.rpartition(":")[0] or value
        yield _power("send", f"the models of {provider}")


def _models(place: str, value: object, folder: Folder) -> Iterator[Power]:
    for one in cast("list[object]", value) if isinstance(value, list) else [value]:
        yield from _model(place, one, folder)


def _provider(place: str, value: object, folder: Folder) -> Iterator[Power]:
    """An address, and whose key it gets."""
    if not isinstance(value, dict):
        yield from _set(place, value, folder)
        return
    table = cast("dict[str, object]", value)
    if not table:
        return
    told = [f"{table.get('base_url', 'its own server')} ({place})"]
    told += [f"{key} {table[key]}" for key in ("api_key_env", "key_host") if key in table]
    yield _power("send", ", ".join(told), [place, table])


def _tools(place: str, value: object, folder: Folder) -> Iterator[Power]:
    """Names of tools; ``module:function`` is imported."""
    if not isinstance(value, list):
        yield from _set(place, value, folder)
        return
    for name in cast("list[object]", value):
        if not isinstance(name, str):
            yield from _set(place, name, folder)
            continue
        module, colon, _ = name.partition(":")
        if not colon or module in ("group", "mcp"):
            continue
        if folder.has_module(module):  # one consent is to all code of the folder
            yield _power("import", f"{module}, with the code of this folder", "this folder")
        else:
            yield _power("import", name)


def _programs(place: str, value: object, folder: Folder) -> Iterator[Power]:
    """Tables with a command or an address: hooks in a list, MCP servers by name."""
    if isinstance(value, dict):
        rows = [(f"{place}.{k}", one) for k, one in cast("dict[str, object]", value).items()]
    elif isinstance(value, list):
        rows = [(place, one) for one in cast("list[object]", value)]
    else:
        rows = [(place, value)]
    for where, row in rows:
        if not isinstance(row, dict):
            yield from _set(where, row, folder)
            continue
        table = cast("dict[str, object]", row)
        if "command" in table:
            yield _power("start", f"{_words(table)} ({where})", [where, table])
        else:
            yield _power("send", f"{table.get('url', '?')} ({where})", [where, table])


def _words(table: Mapping[str, object]) -> str:
    """A command with its arguments, as one reads it."""
    words: list[object] = []
    for part in (table.get("command"), table.get("args", [])):
        words += cast("list[object]", part) if isinstance(part, list) else [part]
    return " ".join(str(word) for word in words)


_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\]):\d+")


def _listen(place: str, value: object, folder: Folder) -> Iterator[Power]:
    del folder
    if not isinstance(value, str) or not _LOOPBACK.fullmatch(value):
        yield _power("listen", f"{value} ({place})")


def _otlp(place: str, value: object, folder: Folder) -> Iterator[Power]:
    del folder
    yield _power("send", f"{value} ({place}): all traces")


def _rooms(place: str, value: object, folder: Folder) -> Iterator[Power]:
    """Rooms are harmless, unless a model of theirs picks the speaker."""
    if not isinstance(value, dict):
        yield from _set(place, value, folder)
        return
    for name, room in cast("dict[str, object]", value).items():
        asked = cast("dict[str, object]", room).get("speakers") if isinstance(room, dict) else None
        for one in cast("list[object]", asked) if isinstance(asked, list) else [asked]:
            if isinstance(one, str) and ":" in one:
                yield from _model(f"{place}.{name}.speakers", one.partition(":")[2], folder)


def _shell_mode(place: str, value: object, folder: Folder) -> Iterator[Power]:
    if value not in ("sandbox", "off"):
        yield from _set(place, value, folder)


_AGENT: Final[Mapping[str, Rule]] = {
    "model": _model,
    "tools": _tools,
    "files": _path,
    "skills": _paths,
    **dict.fromkeys(
        ("instructions", "description", "handoffs", "limits", "type", "prompt_mode"), _harmless
    ),
    **dict.fromkeys(("bootstrap", "window", "policy"), _harmless),
}
_RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("limits", "queue", "log", "teams"), _harmless),
    "rooms": _rooms,
    "state": _state,
    "workspace": _path,
    "skills": _paths,
    "hooks": _programs,
    "mcp": _programs,
    "gateway.listen": _listen,
    "tracing.otlp": _otlp,
    **dict.fromkeys(
        (f"models.{name}" for name in ("openai", "anthropic", "google", "ollama", "pydantic_ai")),
        _provider,
    ),
    "models.offered": _models,
    **dict.fromkeys(
        (f"models.{name}" for name in ("concurrency", "per_user", "per_session")), _harmless
    ),
    "tools.shell.mode": _shell_mode,
    **dict.fromkeys(
        (f"tools.shell.{name}" for name in ("timeout", "memory_mb", "total_memory_mb")), _harmless
    ),
    **dict.fromkeys(
        (f"tools.shell.{name}" for name in ("processes", "cpu_seconds", "written_mb")), _harmless
    ),
    "tools.shell.output_chars": _harmless,
    **dict.fromkeys((f"tools.http.{name}" for name in ("timeout", "max_bytes")), _harmless),
    **dict.fromkeys(
        (f"tools.{name}" for name in ("profile", "calls_per_hour", "per_hour", "aliases")),
        _harmless,
    ),
}
"""The rule of each place, with those below it; places that are not here are shown as they are."""


def _table(value: object) -> dict[str, object] | None:
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _of_key(place: str, value: object, folder: Folder) -> Iterator[Power]:
    rule = _RULES.get(place)
    table = _table(value)
    if rule is not None:
        yield from rule(place, value, folder)
    elif place == "agents" and table is not None:
        for name, spec in table.items():
            yield from _agent(f"agents.{name}", spec, folder)
    elif table is not None and any(one.startswith(f"{place}.") for one in _RULES):
        for key, one in table.items():
            yield from _of_key(f"{place}.{key}", one, folder)
    else:
        yield from _set(place, value, folder)


def _agent(place: str, spec: object, folder: Folder) -> Iterator[Power]:
    if not isinstance(spec, dict):
        yield from _set(place, spec, folder)
        return
    for key, value in cast("dict[str, object]", spec).items():
        yield from _AGENT.get(key, _set)(f"{place}.{key}", value, folder)
