"""Taking up what the end of the last host cut off: what goes on, what does not, and why."""

from __future__ import annotations


# Sessions: a transcript and the actor that owns its order.


# Runs under runs: sub-agents that are called, that work beside their caller, or take over.
