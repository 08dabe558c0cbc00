"""Secrets in the errors of tools and models are nowhere to be found after a run of a whole host."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import motet
from motet.actors.storage.connection import Connection
from motet.protocols.config import (
    GatewayConfig,
    ModelsConfig,
    ProviderConfig,
    TokenConfig,
    TracingConfig,
)
from motet.protocols.errors import AgentError
from motet.protocols.models import ModelEvent, ModelFailure, ModelRequest
from motet.protocols.redaction.redact import redact_text, registered_secrets
from motet.protocols.tools import ToolFailure
from tests.protocols.redaction.builders import alike
from tests.protocols.redaction.test_redact import SECRETS
from tests.scripted import Scripted, call, say

CONFIGURED = "tulips-and-windmills"
BY_PROVIDER = "local-7f3a-key-of-mine"

# What must not be seen of each secret: its telling part, in whatever the rest is cut or wrapped.
PLANTED = {
    **{name: SECRETS[name] for name in ("openai", "anthropic", "github", "aws", "google", "jwt")},
    "private key": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    "database password": "hunter2-db",
    "password in an address": "hunter3-url",
    "configured key": CONFIGURED,
    "key in the provider's own variable": BY_PROVIDER,
    "gateway token": SECRETS["gateway token"],
}
KEPT = ("1795244701", "row 4155552671", "tulips", "err_20241121_230334_abc123")


def planted_text() -> str:
    keys = "\n".join(PLANTED[name] for name in PLANTED if " " not in name)
    return (
        f"boom {' '.join(KEPT)}\n{keys}\n\x1b[31m{PLANTED['openai']}\x1b[0m {CONFIGURED}\n"
        f"-----BEGIN PRIVATE KEY-----\n{PLANTED['private key']}\n-----END PRIVATE KEY-----\n"
        f"postgres://app:{PLANTED['database password']}@db/x "
        f"https://bob:{PLANTED['password in an address']}@h.org/ "
        f"key={BY_PROVIDER} {PLANTED['gateway token']}"
    )


class Failing:
    """A model that fails at once, with the error it was made with."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        self.error = error

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        raise self.error
        yield


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> motet.HostConfig:
    monkeypatch.setenv("MY_KEY", CONFIGURED)
    monkeypatch.setenv("ANTHROPIC_API_KEY", BY_PROVIDER)
    return motet.HostConfig(
        models=ModelsConfig(openai=ProviderConfig(api_key_env="MY_KEY")),
        tracing=TracingConfig(verbose=True),
        gateway=GatewayConfig(tokens=(TokenConfig(token=PLANTED["gateway token"]),)),
    )


async def test_planted_secrets_are_in_no_table_event_log_or_answer(
    tmp_path: Path, config: motet.HostConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    async def leaks() -> None:
        raise RuntimeError(planted_text())

    async def tells() -> None:
        raise ToolFailure("failed", detail={"body": planted_text(), "n": [planted_text()]})

    async def chains() -> None:
        try:
            raise OSError(planted_text())
        except OSError as error:
            raise ValueError("while reading") from error

    script = Scripted(call(("leaks", {}), ("tells", {}), ("chains", {})), say("done"))
    agents = [
        motet.Agent("tools", model=script, tools=[leaks, tells, chains]),
        motet.Agent("refused", model=Failing(ModelFailure(planted_text(), kind="auth"))),
        motet.Agent("buggy", model=_named("buggy", KeyError(planted_text()))),
    ]
    async with motet.open_host(tmp_path, config=config, agents=agents) as host:
        for agent in agents:
            async with host.stream(agent, "go") as run:
                seen += [repr(event) async for event in run]
            seen.append(repr(run.result.detail))
            seen += [result.text for result in run.result.errors]
            if run.result.error is not None:
                assert isinstance(run.result.error, AgentError)
        stored = await host.errors()
        assert len(stored) == 4, "three of tools, and the bug in the model"
        assert all(kept in repr(stored) for kept in KEPT)
    seen += [repr(request.messages) for request in script.requests]
    formatter = logging.Formatter()
    seen += [formatter.format(record) + repr(vars(record)) for record in caplog.records]
    seen.append(_whole_database(tmp_path / "motet.db"))
    for name, secret in PLANTED.items():
        for text in seen:
            at = text.find(secret)
            assert at < 0, f"{name}: {text[max(0, at - 200) : at + 80]}"


def _named(name: str, error: Exception) -> Failing:
    model = Failing(error)
    model.name = name
    return model


def _whole_database(file: Path) -> str:
    """Every value of every table, and the bytes of the file, deleted rows included."""
    connection = Connection(str(file))
    names = connection.run("SELECT name FROM sqlite_schema WHERE type = 'table'")
    tables = [repr(connection.run(f'SELECT * FROM "{name}"')) for (name,) in names]
    connection.close()
    return "\n".join([*tables, file.read_bytes().decode("latin-1")])


def test_a_value_is_hidden_as_long_as_one_host_has_it() -> None:
    with registered_secrets([CONFIGURED, None, "", "short"]):
        with registered_secrets([CONFIGURED]):
            assert alike(redact_text(f"key {CONFIGURED}!")) == "key [REDACTED]!"
        assert alike(redact_text(f"key {CONFIGURED}!")) == "key [REDACTED]!"
        assert redact_text("a short text, tulips-and-windmillsome") == (
            "a short text, tulips-and-windmillsome"
        )
    assert redact_text(f"key {CONFIGURED}!") == f"key {CONFIGURED}!"


def test_a_long_value_with_digits_is_found_inside_of_words() -> None:
    with registered_secrets([BY_PROVIDER]):
        assert alike(redact_text(f"x{BY_PROVIDER}y")) == "x[REDACTED]y"
