"""What the host says to the model between its requests: short, in brackets, never stored.

Every text is one that a model can act on: what is the matter, and what to do now.
"""

from __future__ import annotations

from motet.actors.agent.loops import Finding

CONTINUE = (
    "[System: your answer was cut off at its greatest length. Go on exactly where it ends, without "
    "repeating anything and without a word about the cut.]"
)
BEGIN_AGAIN = (
    "[System: your answer was cut off at its greatest length before anything of it was said. "
    "Give a shorter one.]"
)
CUT_CALL = (
    "[Not run: your answer was cut off at its greatest length inside this call. "
    "Make the call again with shorter arguments, or split the work into several calls.]"
)


def before_request(
    iteration: int, turns: int, closing: str, finding: Finding | None = None, first: str = ""
) -> str:
    """All that is said before a request: ``first``, then a loop that was found, then the limits.

    ``closing``: the limit for which tools are withdrawn.
    """
    circle = loop_warning(finding, closing=bool(closing)) if finding else ""
    limit = closing_hint(closing) if closing and not first else left_hint(iteration, turns)
    return "\n".join(filter(None, (first, circle, limit)))


def left_hint(iteration: int, turns: int) -> str:
    """Said at the first request after 70 % and after 90 % of all are used, else empty."""
    used = iteration - 1
    if used < 2 or used not in (turns * 7 // 10, turns * 9 // 10):
        return ""
    return f"[System: {turns - used} of {turns} model requests are left in this run.]"


def closing_hint(limit: str) -> str:
    """For the last request, which offers no tools."""
    return (
        f"[System: the limit of this run is reached ({limit}). "
        "No tools are available any more: give your final answer now, with what you have.]"
    )


def not_run(limit: str) -> str:
    """The result of a call that a limit forbids."""
    return f"[Not run: the limit of this run is reached ({limit})]"


def loop_warning(finding: Finding, *, closing: bool = False) -> str:
    """What goes in circles; and, unless it is too late for that, what to do instead."""
    way = (
        " This does not lead on. Try another way, other arguments or another tool; "
        "or answer with what you have, and say what is missing."
    )
    return f"[System: {_circle(finding)}{'' if closing else way}]"


def _circle(finding: Finding) -> str:
    tool, count = finding.tool, finding.count
    match finding.detector:
        case "same_call":
            return f"{tool} was called {count} times with the same arguments and the same result."
        case "same_result":
            return f"{tool} gave the same result {count} times, whatever its arguments were."
        case "reads":
            return (
                f"the last {count} calls only looked ({finding.distinct} different ones, "
                f"{tool} the last of them)."
            )
