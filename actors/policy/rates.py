"""How often a session may call each tool. Pure: the time is an argument, in seconds.

Laws: in any window of an hour no more calls are let through than the limit; a refused call uses
none of it, and one that is tried again, since a person had to be asked, no more; a session that has
not called for an hour takes no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from math import inf

import attrs

from motet.actors.policy.names import names
from motet.protocols.policy import PER_HOUR, ToolFacts

HOUR = 3600.0
KEPT = 10_000
"""Windows that are remembered; beyond that the one that was used least recently is forgotten."""


@attrs.define
class Window:
    """At most ``limit`` calls, above 0, in any ``period``; what is older is forgotten.

    ``idle``: from then on there is none that counts, if none comes.
    """

    limit: int
    period: float = HOUR
    idle: float = attrs.field(default=-inf, init=False)
    _calls: OrderedDict[object, float] = attrs.field(factory=OrderedDict[object, float], init=False)

    def take(self, now: float, call: object = None) -> float:
        """Take one and return 0, or take none and return the seconds until there is one.

        ``call``: one that was let through already is let through again.
        """
        calls, period = self._calls, self.period
        while calls and next(iter(calls.values())) + period <= now:
            calls.popitem(last=False)
        if call is not None and call in calls:
            return 0.0
        if len(calls) < self.limit:
            calls[object() if call is None else call] = now
            self.idle = now + period
            return 0.0
        return next(iter(calls.values())) + period - now


def window(limit: int, period: float = HOUR) -> Window | None:
    """None when there is no limit: 0 or less."""
    return Window(limit, period) if limit > 0 else None


@attrs.define
class CallRates:
    """The windows of all sessions of a host, one for each tool.

    Kept in memory: a session that is passivated keeps its count, a restart forgets it.

    Attributes:
        per_hour: where ``limits`` say nothing.
        limits: of tools, groups and MCP servers by name. A tool's own counts before a group's,
            and of several groups the lowest.
    """

    per_hour: int = PER_HOUR
    limits: Mapping[str, int] = attrs.field(factory=dict[str, int])
    _windows: OrderedDict[tuple[str, str], Window] = attrs.field(
        factory=OrderedDict["tuple[str, str]", Window], init=False
    )

    def __len__(self) -> int:
        return len(self._windows)

    def go_on(self, before: CallRates) -> None:
        """Count on from where another one is."""
        self._windows = before._windows

    def limit(self, tool: ToolFacts) -> int:
        """Calls in an hour; 0: as many as it likes."""
        about = {text: limit for text, limit in self.limits.items() if names(text, tool)}
        exact = [about[name] for name in (tool.name, *tool.aliases) if name in about]
        if exact:
            return max(0, exact[0])
        wide = list(about.values())
        return min((n for n in wide if n > 0), default=0) if wide else max(0, self.per_hour)

    def take(self, session: str, tool: str, limit: int, now: float, call: object = None) -> float:
        """Count a call and return 0, or count none and return the seconds to wait.

        ``limit``: of the tool; ``call``: what tells it from others, so that it is counted once.
        """
        key = (session, tool)
        found = self._windows.get(key) or window(limit)
        if found is None or limit <= 0:
            return 0.0
        found.limit = limit  # which may have been another when the window was made
        self._windows[key] = found
        self._windows.move_to_end(key)
        wait = found.take(now, call)
        self._forget_idle(now)
        return wait

    def _forget_idle(self, now: float) -> None:
        """Whoever was not used for long is in front: looking at the first two is enough."""
        for _ in range(2):
            key, oldest = next(iter(self._windows.items()))
            if now < oldest.idle and len(self._windows) <= KEPT:
                return
            del self._windows[key]
