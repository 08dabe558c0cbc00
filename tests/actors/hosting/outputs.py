"""A type to declare and models that answer in it, for the tests of outputs."""

from __future__ import annotations

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.models import OutputSchema
from tests.scripted import Scripted, Step, call


class Ticket(msgspec.Struct):
    title: str
    severity: int


class Native(Scripted):
    """A model whose provider holds answers to a form; ``beside_tools`` if tools are offered too."""

    def __init__(self, *steps: Step, beside_tools: bool = True) -> None:
        super().__init__(*steps)
        self.beside_tools = beside_tools

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:
        return bool(output.schema) and (self.beside_tools or not tools)


GOOD: JsonObject = {"title": "It crashes", "severity": 2}
GOOD_TEXT = '{"title":"It crashes","severity":2}'
BAD: JsonObject = {"title": "It crashes", "severity": "very"}


def answer(args: JsonObject, text: str = "") -> Step:
    return call(("final_answer", args), text=text)
