"""The models of an evaluation: another one for its agents, and recordings of all of them.

Invariant: the agents are as before when the block ends. They are changed in place, since tools and
handoffs refer to the agents themselves; so one program evaluates an agent once at a time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import attrs

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.models.catalog import providers_of, resolve
from motet.actors.tools.tool import Tool
from motet.protocols.config import ModelsConfig
from motet.protocols.errors import ConfigError
from motet.protocols.models import Model
from motet.testing.recorded import RecordedModel

__all__ = ["Cassettes", "prepared"]

Use: TypeAlias = Literal["replay", "record"]
_NO_NAME = re.compile(r"[^\w.-]+")


@attrs.frozen
class Cassettes:
    """A folder with a cassette for each model.

    ``use``: ``replay`` sends no request; ``record`` plays what is recorded, and asks and records
    what is missing.
    """

    folder: Path
    use: Use

    def of(self, model: str | Model, config: ModelsConfig) -> RecordedModel:
        """The recorded model. Raises ``ConfigError`` when ``replay`` has no cassette of it."""
        name = model if isinstance(model, str) else model.name
        file = self.folder / f"{_NO_NAME.sub('_', name)}.jsonl"
        if self.use == "replay":
            if not file.is_file():
                raise ConfigError(f"{self.folder} has no recording of {name}: record it first")
            return RecordedModel(file)
        if isinstance(model, str):
            model = resolve(model, providers_of(config))
        return RecordedModel(file, model, mode="missing")


@contextmanager
def prepared(
    agents: Iterable[AnyAgent],
    judges: Iterable[AnyAgent],
    *,
    model: str | Model | None,
    cassettes: Cassettes | None,
    config: ModelsConfig,
) -> Generator[Collection[RecordedModel]]:
    """Let ``agents`` use ``model`` in the block, and all agents their recorded models.

    Gives the models that were made for that; the caller closes them. Raises ``ConfigError`` for
    a model that has no recording, and for a name that no model can have.
    """
    agents = tuple(agents)
    everybody = list(_reachable([*agents, *judges]))
    before = [(one, one.model) for one in everybody]
    recorded: dict[str, RecordedModel] = {}
    try:
        if model is not None:
            for one in agents:
                one.model = model
        for one in everybody if cassettes is not None else ():
            assert cassettes is not None
            if one.model_name not in recorded:
                recorded[one.model_name] = cassettes.of(one.model, config)
            one.model = recorded[one.model_name]
        yield recorded.values()
    finally:
        for one, own in before:
            one.model = own


def _reachable(agents: Iterable[AnyAgent]) -> Iterator[AnyAgent]:
    """These agents and all that they may hand over to or call, each once."""
    waiting, seen = list(agents), set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        below = [tool.agent for tool in one.tools if isinstance(tool, Tool)]
        waiting += [found for found in below if isinstance(found, AgentSpec)]
