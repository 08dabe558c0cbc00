"""What a model wrote, made fit for the person who reads it: eight steps and a trim. Pure.

Laws: sanitizing twice changes nothing more; the time is linear; code that stands outside of the
model's reasoning is left as it is; a text without artefacts is only trimmed.
Source: agent loop specification, section 3.
"""

from __future__ import annotations

import re
from typing import Final

from motet.actors.agent.sanitize.masks import masked, unmasked
from motet.actors.agent.sanitize.pieces import runs
from motet.actors.agent.sanitize.steps import STEPS

_SUSPECT: Final = re.compile(r"[<\[]|\n\s*\n|MEDIA:|invfunction_calls|functioninvoke")
_ROUNDS: Final = 10


def sanitize(text: str) -> str:
    """The answer as it is stored and shown.

    What a step takes out may bring something together that an earlier step looks for, so the
    steps are repeated until they find nothing more. A text that goes on giving them work was made
    to do so: only its code blocks are left.
    """
    if not _SUSPECT.search(text):
        return text.strip()
    for _ in range(_ROUNDS):
        clean = _sanitized_once(text)
        if clean == text:
            return clean
        text = clean
    return _fences(text)


def sanitize_step(name: str, text: str) -> str:
    """One step alone, by its name in :data:`STEPS`."""
    bare, hidden = masked(text)
    return unmasked(STEPS[name](bare), hidden)


def _sanitized_once(text: str) -> str:
    bare, hidden = masked(text)
    for step in STEPS.values():
        bare = step(bare)
    return unmasked(bare, hidden).strip()


def _fences(text: str) -> str:
    return "\n".join(run.text for run in runs(text) if run.kind == "fence")
