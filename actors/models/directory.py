"""The models of a host: one provider actor per model, started when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from motet.actors.models.provider import Provider
from motet.protocols.messages import Request
from motet.protocols.models import Generate, Model
from motet.runtime import Actor, ActorRef, handles


class Provide(Request[ActorRef[Generate]], frozen=True, tag="models.provide"):
    """The actor that speaks to this model. Raises ``UnknownName`` or ``MissingExtra``."""

    model: str


class Models(Actor[Provide]):
    """Parent of the provider actors. A provider that crashes is restarted alone."""

    def __init__(self, find: Callable[[str], Model]) -> None:
        self.find = find

    @handles(Provide)
    async def provide(self, message: Provide) -> ActorRef[Generate]:
        name = quote(message.model, safe=":")
        known = self.child(name)
        if known is not None and known.is_alive:
            return known
        model = self.find(message.model)
        return await self.start_child(lambda: Provider(model), name=name)
