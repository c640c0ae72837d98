"""Virtual time: things to do, in order of time.  Deterministic: equal times run in order of asking."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    """``now`` moves only when :meth:`run_until` is called."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._todo: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Run ``act`` at that time, or now if it is past."""
        self._asked += 1
        heapq.heappush(self._todo, (max(when, self.now), self._asked, act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def run_until(self, end: float) -> None:
        """Do everything due up to and including ``end``, then be there."""
        while self._todo and self._todo[0][0] <= end:
            when, _, act = heapq.heappop(self._todo)
            self.now = max(self.now, when)
            act()
        self.now = max(self.now, end)
