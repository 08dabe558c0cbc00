"""Whether adapters may reach their providers: a test suite says no, so that no mistake costs money.

The one thing that all hosts of a process share, set through ``motet.testing``.
"""

from __future__ import annotations

from motet.protocols.models import ModelFailure

SWITCH = "motet.testing.ALLOW_MODEL_REQUESTS"
_allowed = True


def allowed() -> bool:
    """Whether requests go out."""
    return _allowed


def allow(wanted: bool) -> None:
    """Let requests go out, or refuse them all."""
    global _allowed
    _allowed = wanted


def require(model: str) -> None:
    """Raises :class:`ModelFailure` ``refused`` when requests are switched off."""
    if not _allowed:
        raise ModelFailure(
            f"{model} would be asked for real, which is switched off here ({SWITCH} is False)",
            kind="refused",
        )
