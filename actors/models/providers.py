"""The providers of models by name, and how a configuration says that each is reached."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Protocol, TypeAlias

import attrs

from motet.actors.models import variables
from motet.protocols.config import ModelsConfig, ProviderConfig
from motet.protocols.models import Model

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
    "openai": Provider(
        "openai:OpenAIModel", "openai", (variables.OPENAI_KEY,), variables.OPENAI_URL
    ),
    "anthropic": Provider(
        "anthropic:AnthropicModel", "anthropic", (variables.ANTHROPIC_KEY,), variables.ANTHROPIC_URL
    ),
    "google": Provider(
        "google:GoogleModel", "google.genai", variables.GOOGLE_KEYS, variables.GOOGLE_URL
    ),
    "ollama": Provider(
        "ollama:OllamaModel", "openai", (variables.OLLAMA_KEY,), variables.OLLAMA_URL, keyless=True
    ),
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
