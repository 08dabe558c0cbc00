"""The models of a host: one provider actor per model, started when first asked for."""

from __future__ import annotations

from motet.actors.models.catalog import ModelCatalog
from motet.actors.models.provider import Provider
from motet.protocols.messages import Request
from motet.protocols.models import Generate
from motet.runtime import Actor, ActorRef, handles


class Provide(Request[ActorRef[Generate]], frozen=True, tag="models.provide"):
    """The actor that speaks to this model. Raises ``UnknownName`` or ``MissingExtra``."""

    model: str


class Models(Actor[Provide]):
    """Parent of the provider actors. A provider that crashes is restarted alone."""

    def __init__(self, catalog: ModelCatalog) -> None:
        self.catalog = catalog

    @handles(Provide)
    async def provide(self, message: Provide) -> ActorRef[Generate]:
        known = self.child(message.model)
        if known is not None and known.is_alive:
            return known
        model = self.catalog.get(message.model)
        return await self.start_child(lambda: Provider(model), name=message.model)

    async def on_stop(self) -> None:
        await self.catalog.aclose()
