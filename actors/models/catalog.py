"""Models by name: ``openai:gpt-5.2``, ``anthropic:claude-sonnet-4-5``, ``demo``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from motet.actors.models.providers import PROVIDERS, MakeModel
from motet.protocols.errors import ConfigError, UnknownName, listing
from motet.protocols.models import Model

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
        from motet.actors.models.demo import DemoModel  # not for hosts that are in earnest

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
