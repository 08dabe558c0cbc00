"""The cost of an answer: known from the list, or unknown, and never zero for lack of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from motet.actors.models import catalog as prices
from motet.actors.models.anthropic import AnthropicModel
from motet.actors.models.catalog import Billed, price, priced
from motet.actors.models.openai import OpenAIModel
from motet.protocols.models import Usage

USED = Usage(1_000_000, 100_000)
CLAUDE = "anthropic:claude-sonnet-4-5"


@pytest.fixture(autouse=True)
def fresh_list() -> Iterator[None]:
    prices._calculation.cache_clear()  # pyright: ignore[reportPrivateUsage]  # what a start does
    yield
    prices._calculation.cache_clear()  # pyright: ignore[reportPrivateUsage]


def test_a_known_model_has_a_price_by_its_tokens() -> None:
    assert price("openai:gpt-4o", USED) == pytest.approx(2.5 + 1.0)
    assert price("openai:gpt-4o-2024-08-06", USED) == pytest.approx(3.5)


def test_cache_reads_are_cheaper_and_cache_writes_dearer() -> None:
    plain = price(CLAUDE, Usage(1000)) or 0.0
    read = price(CLAUDE, Usage(1000, cached_tokens=1000)) or 0.0
    written = price(CLAUDE, Usage(1000, cache_write_tokens=1000)) or 0.0
    assert 0 < read < plain < written


@pytest.mark.parametrize(
    ("name", "base_url"),
    [
        ("openai:a-model-of-tomorrow", None),
        ("nobody:gpt-4o", None),
        ("gpt-4o", None),
        ("", None),
        ("openai:gpt-4o", "http://localhost:11434/v1"),
        ("openai:gpt-4o", "https://models.example/v1"),
        ("openai:gpt-4o", ""),
    ],
)
def test_a_model_outside_of_the_list_has_no_price(name: str, base_url: str | None) -> None:
    assert price(name, USED, base_url) is None


def test_figures_that_contradict_each_other_have_no_price() -> None:
    assert price("openai:gpt-4o", Usage(5, cached_tokens=10)) is None


def test_a_model_of_pydantic_ai_has_the_price_of_its_provider() -> None:
    through = price("pydantic_ai:groq:llama-3.3-70b-versatile", USED)
    assert through
    assert through == price("groq:llama-3.3-70b-versatile", USED)
    assert price("google:gemini-2.5-flash", USED)


def test_a_known_server_behind_the_address_has_its_own_prices() -> None:
    assert price("openai:openai/gpt-oss-120b", USED, "https://api.groq.com/openai/v1")


def test_the_adapters_name_their_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://localhost:1")
    assert OpenAIModel("m").base_url is None
    assert OpenAIModel("m", base_url="http://localhost:2").base_url == "http://localhost:2"
    assert AnthropicModel("m").base_url == "http://localhost:1"
    assert isinstance(OpenAIModel("m"), Billed)
    assert isinstance(AnthropicModel("m"), Billed)


async def test_the_cost_that_a_provider_gave_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    model = OpenAIModel("gpt-4o")
    given = Usage(10, 10, cost=0.25)
    assert await priced(given, model) == given
    found = await priced(USED, model)
    assert found.cost == pytest.approx(3.5)
    assert await priced(Usage(), model) == Usage()


def test_without_the_package_every_price_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert price("openai:gpt-4o", USED) is None


def test_the_list_is_not_loaded_with_motet_and_starts_no_thread() -> None:
    program = """
import sys, threading
import motet.actors.host, motet.actors.models.provider
assert "genai_prices" not in sys.modules
from motet.actors.models.catalog import price
from motet.protocols.models import Usage
import socket
def refuse(*args): raise AssertionError("the price list is asked of the network")
socket.socket.connect = refuse
assert price("openai:gpt-4o", Usage(10)) is not None
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)
