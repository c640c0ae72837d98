"""A generous bound on how long a parser may take, so that an endless loop fails a test instead of hanging it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

HANG_S = 5.0


class Hang(BaseException):
    """Not an Exception, so that nothing on the way can swallow it."""


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang(f"still running after {HANG_S} s")


@contextlib.contextmanager
def bounded(seconds: float = HANG_S) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _hang)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
