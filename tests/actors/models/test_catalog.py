"""Models by name."""

import attrs
import pytest
import trio

from motet.actors.models.anthropic import AnthropicModel
from motet.actors.models.catalog import ModelCatalog, resolve
from motet.actors.models.demo import DemoModel
from motet.actors.models.openai import OpenAIModel
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.models import Model
from tests.actors.models.builders import ScriptedModel


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("openai:gpt-5.2", OpenAIModel),
        ("openai:org/model:free", OpenAIModel),
        ("anthropic:claude-sonnet-4-5", AnthropicModel),
        ("demo", DemoModel),
    ],
)
def test_a_name_leads_to_the_model_of_that_name(name: str, kind: type) -> None:
    model = resolve(name)
    assert isinstance(model, kind)
    assert isinstance(model, Model)
    assert model.name == name


def test_an_unknown_provider_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="unknown model provider 'opanai'") as caught:
        resolve("opanai:gpt")
    assert caught.value.nearest == "openai"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("gpt-5.2", "write 'openai:gpt-5.2'"),
        ("claude-sonnet-4-5", "write 'anthropic:claude-sonnet-4-5'"),
        ("openai", "write openai:<model>"),
        ("llama", "known providers: anthropic, demo, google, ollama, openai, pydantic_ai"),
        ("openai:", "write openai:<model>"),
        ("openai: ", "write openai:<model>"),
    ],
)
def test_a_name_of_the_wrong_form_gets_the_right_spelling(name: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        resolve(name)


def test_a_catalog_makes_one_model_per_name() -> None:
    catalog = ModelCatalog()
    assert catalog.get("openai:a") is catalog.get("openai:a")
    assert catalog.get("openai:a") is not catalog.get("openai:b")


def test_a_model_is_given_back_as_it_is() -> None:
    model = DemoModel()
    assert ModelCatalog().get(model) is model


@attrs.define(eq=False)
class OwnModel(ScriptedModel):
    closed: bool = False

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed = True


async def test_a_catalog_closes_what_it_made_and_nothing_else() -> None:
    made: list[OwnModel] = []

    def make(name: str) -> Model:
        made.append(OwnModel([], name=f"own:{name}"))
        return made[-1]

    catalog = ModelCatalog({"own": make})
    lent = OwnModel([])
    catalog.get("own:x")
    catalog.get("demo")
    catalog.get(lent)
    await catalog.aclose()
    assert ([model.closed for model in made], lent.closed) == ([True], False)
