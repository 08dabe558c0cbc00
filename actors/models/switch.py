"""The switch that keeps adapters from their providers, so that no test costs money by mistake.

The one thing that all hosts of a process share, set through ``motet.testing``. It imports nothing,
since the pytest plugin loads it in every project that has motet installed.
"""

from __future__ import annotations

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
        # A suite that asks no model need not wait for what describes one.
        from motet.protocols.models import ModelFailure
        from motet.runtime.testing.lines import caller_of_motet

        line = caller_of_motet()
        asked = f"{model} would be asked for real" + (f" by {line}" if line else "")
        raise ModelFailure(
            f"{asked}, which is switched off here ({SWITCH} is False)", kind="refused"
        )
