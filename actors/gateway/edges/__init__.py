"""Commands in chat text, the same wherever a text comes from: gateway, command line, bridges."""

from __future__ import annotations


# What other clients speak, over the gateway's port: OpenAI's chat completions, and AG-UI.
#
# Reading order: ``exchange`` (one request: who, how much, errors, event streams) and ``watching``
# (the events of one run), which both edges use; then ``openai_wire``, ``openai`` and ``agui_wire``,
# ``agui_events``, ``agui``. Invariant: an edge only converts. It brings inputs to the same sessions
# as ``motet.v1``, under the same tokens and limits, and what a client says of a history counts for
# nothing (G16).
