"""Growing pauses between tries, in one place so that none of them can overflow."""

from __future__ import annotations


def backoff_s(first_s: float, tries: int, most_s: float) -> float:
    """``first_s`` doubled ``tries`` times, at most ``most_s``; any number of tries (a float ends at 2**1023)."""
    return min(first_s * 2.0 ** min(max(tries, 0), 32), most_s)
