"""What a run can be asked for from outside of the host's loop."""

from __future__ import annotations

from motet.actors.options import RunOptions


class Asked(RunOptions, total=False):
    """As :meth:`motet.Host.run`.

    check: whether a run that did not complete raises; it does if absent.
    """

    check: bool


class AskedInTime(Asked, total=False):
    """As a call that blocks.

    timeout: seconds after which the run is cancelled; no limit if absent.
    """

    timeout: float | None
