"""The switch that makes adapters refuse to send requests, so that no test costs money by mistake.

It is global to the process and set through ``motet.testing``. It imports nothing, since the pytest
plugin loads it in every project that has motet installed.
"""

from __future__ import annotations

SWITCH = "motet.testing.ALLOW_MODEL_REQUESTS"
_allowed = True


def allowed() -> bool:
    """True: requests are sent."""
    return _allowed


def allow(wanted: bool) -> None:
    """Let requests be sent, or refuse them all."""
    global _allowed
    _allowed = wanted


def require(model: str) -> None:
    """Raises :class:`ModelFailure` ``refused`` when requests are switched off."""
    if not _allowed:
        # Imported here, so that a suite without models does not load these modules.
        from motet.protocols.models import ModelFailure
        from motet.runtime.testing.lines import caller_of_motet

        line = caller_of_motet()
        asked = f"{model} would be asked for real" + (f" by {line}" if line else "")
        raise ModelFailure(
            f"{asked}, which is switched off here ({SWITCH} is False)", kind="refused"
        )
