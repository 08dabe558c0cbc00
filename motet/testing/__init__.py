"""What tests of agents use: models that follow a script or a recording, and the safety switch.

``ALLOW_MODEL_REQUESTS = False`` makes every adapter refuse to reach its provider: set it on this
module, once for a whole suite. Models that reach nobody are never refused.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from motet.actors.models import switch
from motet.actors.models.recorded import RecordedModel
from motet.testing.scripted import Answer, Failure, ScriptedModel, call, fail, say

if TYPE_CHECKING:
    ALLOW_MODEL_REQUESTS: bool

__all__ = [
    "ALLOW_MODEL_REQUESTS",
    "Answer",
    "Failure",
    "RecordedModel",
    "ScriptedModel",
    "call",
    "fail",
    "say",
]


class _Testing(ModuleType):
    """This module: setting its switch reaches the adapters, which do not know of it."""

    @property
    def ALLOW_MODEL_REQUESTS(self) -> bool:
        return switch.allowed()

    @ALLOW_MODEL_REQUESTS.setter
    def ALLOW_MODEL_REQUESTS(self, wanted: bool) -> None:
        switch.allow(wanted)


sys.modules[__name__].__class__ = _Testing
