"""Models by name (``openai:gpt-5.2``, ``demo``), their providers, and the prices of answers.

Prices are those of the package ``genai-prices``, an extra (``motet[prices]``), since it needs
packages that only SDKs need otherwise. Its list comes with the package: nothing is downloaded and
nothing runs in the background. Without the package, and for every model, server or figure that is
not in the list, the price is unknown: never zero.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit

import attrs
import trio
from msgspec.structs import replace

from motet.protocols.admission import host_of, is_loopback
from motet.protocols.config import ModelsConfig, ProviderConfig
from motet.protocols.errors import ConfigError, UnknownName, listing
from motet.protocols.models import Model, Usage

OPENAI_KEY = "OPENAI_API_KEY"
OPENAI_URL = "OPENAI_BASE_URL"
ANTHROPIC_KEY = "ANTHROPIC_API_KEY"
ANTHROPIC_URL = "ANTHROPIC_BASE_URL"
GOOGLE_KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
"""The first one that is set is used."""
GOOGLE_URL = "GOOGLE_GEMINI_BASE_URL"
OLLAMA_KEY = "OLLAMA_API_KEY"
OLLAMA_URL = "OLLAMA_HOST"

MakeModel: TypeAlias = Callable[[str], Model]
"""Makes a model from the provider's own name of it."""


class AdapterClass(Protocol):
    """The part of its constructor that every adapter has."""

    def __call__(
        self, name: str, *, base_url: str | None = ..., api_key: str | None = ...
    ) -> Model: ...


@attrs.frozen
class Provider:
    """One provider.

    Attributes:
        home: module and name of its adapter, which is loaded with its first model.
        package: the package that it needs.
        keys: the environment variables that may hold its key.
        url: the environment variable that names another server.
        keyless: it can be used without a key.
        host: of its own server, if it has one.
    """

    home: str
    package: str
    keys: tuple[str, ...] = ()
    url: str = ""
    keyless: bool = False
    host: str = ""

    def adapter(
        self, name: str, *, base_url: str | None = None, api_key: str | None = None
    ) -> Model:
        """A model, by the provider's own name of it."""
        module, _, adapter = self.home.partition(":")
        make: AdapterClass = getattr(import_module(f"motet.actors.models.{module}"), adapter)
        return make(name, base_url=base_url, api_key=api_key)


KNOWN: Mapping[str, Provider] = {
    "openai": Provider(
        "openai:OpenAIModel", "openai", (OPENAI_KEY,), OPENAI_URL, host="api.openai.com"
    ),
    "anthropic": Provider(
        "anthropic:AnthropicModel",
        "anthropic",
        (ANTHROPIC_KEY,),
        ANTHROPIC_URL,
        host="api.anthropic.com",
    ),
    "google": Provider(
        "google:GoogleModel",
        "google.genai",
        GOOGLE_KEYS,
        GOOGLE_URL,
        host="generativelanguage.googleapis.com",
    ),
    "ollama": Provider("openai:OllamaModel", "openai", (OLLAMA_KEY,), OLLAMA_URL, keyless=True),
    "pydantic_ai": Provider("pydantic_ai:PydanticAIModel", "pydantic_ai", keyless=True),
}
PROVIDERS: Mapping[str, MakeModel] = {name: known.adapter for name, known in KNOWN.items()}


def providers_of(config: ModelsConfig) -> dict[str, MakeModel]:
    """The providers, with the servers and keys of a configuration.

    Raises ``ConfigError`` for a key that would be sent to a server that it is not for.
    """
    for name in KNOWN:
        check_receiver(config, name)
    return {
        name: partial(
            known.adapter, base_url=config_of(config, name).base_url, api_key=key_of(config, name)
        )
        for name, known in KNOWN.items()
    }


def check_receiver(config: ModelsConfig, name: str) -> None:
    """Raise ``ConfigError`` where a provider's section sends a variable that is not the provider's
    own to a server that is not either, unless ``key_host`` names that server: a configuration that
    somebody else wrote could send any secret of the environment anywhere.
    """
    known, chosen = KNOWN[name], config_of(config, name)
    variable, url = chosen.api_key_env, chosen.base_url
    if variable is None or url is None or variable in known.keys:
        return
    # Strictly, since the library that connects may read another host in an odd address.
    host = (host_of(urlsplit(url).netloc) or "").lower()
    allowed = {known.host, (chosen.key_host or "").lower()} - {""}
    if not is_loopback(host) and host not in allowed:
        raise ConfigError(
            f"models.{name}: the key in {variable} would be sent to {host or url!r}, which is not "
            f'{name}\'s own server: key_host = "{host}" beside base_url allows that'
        )


def key_of(config: ModelsConfig, name: str) -> str | None:
    """The key in the configured variable; None: the adapter reads the provider's own variables."""
    variable = config_of(config, name).api_key_env
    return os.environ.get(variable) if variable else None


def keys_of(config: ModelsConfig) -> list[str | None]:
    """The values of all keys that requests may use, to be redacted from all output."""
    own = [value for name, value in os.environ.items() if name.endswith("_API_KEY")]
    return [*(key_of(config, name) for name in KNOWN), *own]


def config_of(config: ModelsConfig, name: str) -> ProviderConfig:
    """The configuration of a known provider."""
    chosen = getattr(config, name)
    assert isinstance(chosen, ProviderConfig), name
    return chosen


DEMO = "demo"


@runtime_checkable
class Closable(Protocol):
    """A model that keeps connections between requests."""

    async def aclose(self) -> None: ...


def resolve(name: str, providers: Mapping[str, MakeModel] = PROVIDERS) -> Model:
    """The model of that name. Connects to nothing and loads no SDK.

    Raises :class:`UnknownName` for an unknown provider and :class:`ConfigError` for a name
    that is not of the form ``provider:model``.
    """
    if name == DEMO:
        from motet.actors.models.demo import DemoModel

        return DemoModel()
    provider, colon, model = name.partition(":")
    if not colon:
        raise ConfigError(f"a model is named provider:model, not {name!r}; {advice(name)}")
    make = providers.get(provider)
    if make is None:
        raise UnknownName("model provider", provider, (*providers, DEMO))
    if not model.strip():
        raise ConfigError(f"{name!r} names no model; write {provider}:<model>")
    return make(model)


def advice(name: str) -> str:
    """Suggest the full name for a name without a provider."""
    if name in PROVIDERS:
        return f"write {name}:<model>"
    if name.startswith("claude"):
        return f"write 'anthropic:{name}'"
    if name.startswith("gemini"):
        return f"write 'google:{name}'"
    if name.startswith(("gpt", "o1", "o3", "o4", "chatgpt")):
        return f"write 'openai:{name}'"
    return f"known providers: {listing((*PROVIDERS, DEMO))}"


class ModelCatalog:
    """A host's models, one per name, so that all its agents share a model's connections."""

    def __init__(self, providers: Mapping[str, MakeModel] | None = None):
        """``providers`` extend the known ones, or replace them by name."""
        self._providers = {**PROVIDERS, **(providers or {})}
        self._models: dict[str, Model] = {}

    def get(self, model: str | Model) -> Model:
        """The model of that name. A model is returned as it is, and its owner must close it."""
        if not isinstance(model, str):
            return model
        if model not in self._models:
            self._models[model] = resolve(model, self._providers)
        return self._models[model]

    async def aclose(self) -> None:
        """Close the connections of the models made here, each within its own deadline."""
        models, self._models = self._models, {}
        for model in models.values():
            if isinstance(model, Closable):
                await model.aclose()


Calculate: TypeAlias = Callable[[str, Usage, str | None], float | None]

PROVIDER_IDS = {"bedrock": "aws", "gemini": "google", "moonshot": "moonshotai", "xai": "x-ai"}
"""Providers whose name in the price list differs from the prefix of the model's name."""


@runtime_checkable
class Billed(Protocol):
    """A model that names its server. ``base_url`` None: the provider's own."""

    @property
    def name(self) -> str: ...

    @property
    def base_url(self) -> str | None: ...


def price(model_name: str, usage: Usage, base_url: str | None = None) -> float | None:
    """US dollars for one answer of ``provider:model``; None when the price is unknown.

    ``base_url``: the server in place of the provider's own; a local one has no price. The first
    call loads the list, which takes 0.1 s.
    """
    return _calculation()(model_name, usage, base_url)


async def priced(usage: Usage, model: Billed) -> Usage:
    """Add the cost of the list, unless the provider gave one. Loads the list in a thread.

    A cancellation takes effect when the list is loaded.
    """
    if not usage.unpriced:
        return usage
    if not _calculation.cache_info().currsize:
        await trio.to_thread.run_sync(_calculation)
    return replace(usage, cost=price(model.name, usage, model.base_url))


@cache
def _calculation() -> Calculate:
    try:
        import genai_prices
    except ModuleNotFoundError:
        return lambda _model, _usage, _url: None

    def calculate(model_name: str, usage: Usage, base_url: str | None) -> float | None:
        provider, _, model = model_name.removeprefix("pydantic_ai:").partition(":")
        used = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        try:
            if base_url is not None:
                found = genai_prices.calc_price(used, model, provider_api_url=base_url)
            else:
                known = PROVIDER_IDS.get(provider, provider)
                found = genai_prices.calc_price(used, model, provider_id=known)
        except (LookupError, ValueError):
            return None  # an unknown server or model, or figures that contradict each other
        return float(found.total_price)

    return calculate
