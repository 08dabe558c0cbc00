"""Where the specification of commands and stops decides otherwise than a vector."""

from __future__ import annotations

from tests.vectors.cases import MAIN, Case, Facts
from tests.vectors.rules import Rule

_BARE = 'agent-loop.md 11: "bare "stop", "abort", "esc" alone mean `/stop`; "don\'t stop" does not"'
_QUEUE = 'agent-loop.md 11: "A message that arrives during a run follows the queue mode"'


def _says_more(case: Case, facts: Facts) -> bool:
    """A text with a word that stops in it, or with another one than ours: it is a message."""
    return case.expect == "cancel" and facts.get(MAIN) is None


def _is_a_question(case: Case, facts: Facts) -> bool:
    """It reaches the agent, and is not answered in its place."""
    return case.expect == "status_query" and facts.get(MAIN) is None


def _has_a_full_stop(case: Case, facts: Facts) -> bool:
    text = str(case.given.value)
    return facts.get(MAIN) is True and text.rstrip(".!") != text


def _own_newest(_: Case, facts: Facts) -> bool:
    return facts.get("cancelled") == [facts.get("by")]


def _ends_children(_: Case, facts: Facts) -> bool:
    return (facts.get("run"), facts.get("subagents")) == ("cancelled", "have ended")


RULES = (
    Rule("intent_quick", _BARE, _says_more),
    Rule("intent_quick", _QUEUE, _is_a_question),
    Rule("intent_exact_cancel_later", _BARE, _has_a_full_stop),
    Rule(
        "stop_commands",
        'agent-loop.md 11: "`/stop` (own newest run; in a group only one\'s own unless operator)"',
        _own_newest,
    ),
    Rule(
        "stop_commands",
        'agent-loop.md 12: "Children are runs under the parent\'s scope and budget"',
        _ends_children,
    ),
)
