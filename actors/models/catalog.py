"""Models by name: ``openai:gpt-5.2``, ``anthropic:claude-sonnet-4-5``, ``demo``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Protocol, TypeAlias, runtime_checkable

import attrs
import trio
from msgspec.structs import replace

from motet.protocols.config import ModelsConfig, ProviderConfig
from motet.protocols.errors import ConfigError, UnknownName, listing
from motet.protocols.models import Model, Usage

# The environment variables that say how providers of models are reached.


OPENAI_KEY = "OPENAI_API_KEY"
OPENAI_URL = "OPENAI_BASE_URL"
ANTHROPIC_KEY = "ANTHROPIC_API_KEY"
ANTHROPIC_URL = "ANTHROPIC_BASE_URL"
GOOGLE_KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
"""The first one that is set is taken."""
GOOGLE_URL = "GOOGLE_GEMINI_BASE_URL"
OLLAMA_KEY = "OLLAMA_API_KEY"
OLLAMA_URL = "OLLAMA_HOST"


# The providers of models by name, and how a configuration says that each is reached.


MakeModel: TypeAlias = Callable[[str], Model]
"""From a provider's own name of a model to the model."""


class Adapter(Protocol):
    """What every class of models takes."""

    def __call__(
        self, name: str, *, base_url: str | None = ..., api_key: str | None = ...
    ) -> Model: ...


@attrs.frozen
class Provider:
    """One provider.

    Attributes:
        home: module and name of its class of models, which is loaded with its first model.
        package: what has to be installed for it.
        keys: the variables that may hold its key.
        url: the variable that names another server of it.
        keyless: it is of use without a key.
    """

    home: str
    package: str
    keys: tuple[str, ...] = ()
    url: str = ""
    keyless: bool = False

    def adapter(
        self, name: str, *, base_url: str | None = None, api_key: str | None = None
    ) -> Model:
        """A model of it, by its own name for that."""
        module, _, adapter = self.home.partition(":")
        make: Adapter = getattr(import_module(f"motet.actors.models.{module}"), adapter)
        return make(name, base_url=base_url, api_key=api_key)


KNOWN: Mapping[str, Provider] = {
    "openai": Provider("openai:OpenAIModel", "openai", (OPENAI_KEY,), OPENAI_URL),
    "anthropic": Provider("anthropic:AnthropicModel", "anthropic", (ANTHROPIC_KEY,), ANTHROPIC_URL),
    "google": Provider("google:GoogleModel", "google.genai", GOOGLE_KEYS, GOOGLE_URL),
    "ollama": Provider("openai:OllamaModel", "openai", (OLLAMA_KEY,), OLLAMA_URL, keyless=True),
    "pydantic_ai": Provider("pydantic_ai:PydanticAIModel", "pydantic_ai", keyless=True),
}
PROVIDERS: Mapping[str, MakeModel] = {name: known.adapter for name, known in KNOWN.items()}


def providers_of(config: ModelsConfig) -> dict[str, MakeModel]:
    """The providers, reached as the configuration says."""
    return {
        name: partial(
            known.adapter, base_url=config_of(config, name).base_url, api_key=key_of(config, name)
        )
        for name, known in KNOWN.items()
    }


def key_of(config: ModelsConfig, name: str) -> str | None:
    """The key from the configured variable; None leaves the choice to the provider's own."""
    variable = config_of(config, name).api_key_env
    return os.environ.get(variable) if variable else None


def keys_of(config: ModelsConfig) -> list[str | None]:
    """The values of all keys that requests may be sent with: nobody may be shown them."""
    own = [value for name, value in os.environ.items() if name.endswith("_API_KEY")]
    return [*(key_of(config, name) for name in KNOWN), *own]


def config_of(config: ModelsConfig, name: str) -> ProviderConfig:
    """What is configured of a known provider."""
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
    """How to write a name that has no provider."""
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
        """``providers`` are added to the known ones, or replace them by name."""
        self._providers = {**PROVIDERS, **(providers or {})}
        self._models: dict[str, Model] = {}

    def get(self, model: str | Model) -> Model:
        """The model of that name; a model is given back as it is and stays its owner's."""
        if not isinstance(model, str):
            return model
        if model not in self._models:
            self._models[model] = resolve(model, self._providers)
        return self._models[model]

    async def aclose(self) -> None:
        """Close the connections of the models made here. Each has its own deadline for it."""
        models, self._models = self._models, {}
        for model in models.values():
            if isinstance(model, Closable):
                await model.aclose()


# What a model's answer costs, from the price list of the package ``genai-prices``.
#
# The list comes with the package: nothing is downloaded and nothing runs in the background. It is
# an extra (``motet[prices]``), since it needs packages that only SDKs need otherwise. Without it,
# and for every model, server or figure that it does not know, the price is unknown: never zero.


Calculate: TypeAlias = Callable[[str, Usage, str | None], float | None]

PROVIDER_IDS = {"bedrock": "aws", "gemini": "google", "moonshot": "moonshotai", "xai": "x-ai"}
"""Providers that the list knows by another name than people write before the colon."""


@runtime_checkable
class Billed(Protocol):
    """A model that says where it is billed. ``base_url`` None: at the provider of its name."""

    @property
    def name(self) -> str: ...

    @property
    def base_url(self) -> str | None: ...


def price(model_name: str, usage: Usage, base_url: str | None = None) -> float | None:
    """US dollars for what one answer of ``provider:model`` used; None when that is unknown.

    ``base_url``: the server that was asked in place of the provider's own; a local one has no
    price. The first use loads the list, which takes a tenth of a second.
    """
    return _calculation()(model_name, usage, base_url)


async def priced(usage: Usage, model: Billed) -> Usage:
    """With the cost that the provider gave, else the list's. Loads the list in a thread.

    Cancelled while that goes on: waits for it, then is cancelled.
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
