"""Runs a stored run once more, beside the session it is of, and tells what is different now."""

from motet.actors.replay.compare import Change, Comparison
from motet.actors.replay.journal import RunJournal, read_journal
from motet.actors.replay.replay import Replay, ToolMode, replay

__all__ = [
    "Change",
    "Comparison",
    "Replay",
    "RunJournal",
    "ToolMode",
    "read_journal",
    "replay",
]
