"""Runs a stored run once more, beside the session it is of, and tells what is different now."""

from motet.actors.replay.compare import Change, Comparison, near
from motet.actors.replay.journal import RunJournal, read_journal
from motet.actors.replay.record import read_record
from motet.actors.replay.replay import Replay, ToolMode, replay

__all__ = [
    "Change",
    "Comparison",
    "Replay",
    "RunJournal",
    "ToolMode",
    "near",
    "read_journal",
    "read_record",
    "replay",
]
