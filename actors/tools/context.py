"""What a tool is told about the call it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import attrs

from motet.protocols.sessions import Principal

D = TypeVar("D", covariant=True)


@attrs.frozen(kw_only=True)
class Context(Generic[D]):
    """Given to a tool whose first parameter is annotated with it; never shown to the model.

    Attributes:
        deps: what the embedding program gave the agent; ``Context[D]`` names its type.
        principal: for whom the run acts. A tool that reads foreign data checks it (G16).
        call_id: the id the model gave this call.
        workspace: the folder this session may work in.
    """

    deps: D
    run_id: str
    session: str
    agent: str
    principal: Principal
    call_id: str
    workspace: Path
