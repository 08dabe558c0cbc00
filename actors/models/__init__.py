"""Models: adapters for the providers' APIs, and the actor that retries and limits.

Importing this package loads no provider's SDK: an adapter loads its own on first use.
"""

from motet.actors.models.anthropic import AnthropicModel
from motet.actors.models.assemble import Assembler, assemble
from motet.actors.models.catalog import ModelCatalog, resolve
from motet.actors.models.demo import DemoModel
from motet.actors.models.openai import OpenAIModel
from motet.actors.models.provider import Provider

__all__ = [
    "AnthropicModel",
    "Assembler",
    "DemoModel",
    "ModelCatalog",
    "OpenAIModel",
    "Provider",
    "assemble",
    "resolve",
]
