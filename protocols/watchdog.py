"""When a run that makes no progress is said to be stalled: how that is configured."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class WatchdogConfig:
    """Nothing is ended for it: a run that may take no longer has a limit, ``wall``.

    Attributes:
        stalled: seconds without any sign of a run, or of its sub-agents, after which its session is
            told what it waits on; 0: never. Waiting for a person is no stall.
    """

    stalled: float = 300.0

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.stalled < float("inf"):
            raise ValueError(f"stalled must be seconds, 0 or more, not {self.stalled!r}")
