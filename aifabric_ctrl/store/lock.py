"""One controller a state directory: a lock file that the kernel releases however its owner ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from aifabric_ctrl.model.errors import StoreError


class DirectoryLock:
    """Holds ``state.lock`` in a directory.  flock, not a pid file: a kill -9 or a reused pid leaves nothing stale.

    Raises:
        StoreError: another process holds it (names its pid), or the directory cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "state.lock"
        # Close-on-exec is Python's default, so a child process never keeps the lock alive after us.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._fd, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreError(
                f"another controller (process {owner}) uses this state directory",
                f"stop it (kill {owner}), or set AIFABRIC_STATE_DIR to another directory",
                str(directory),
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Give the directory free; a second call does nothing.  The file stays: unlinking it would race a newcomer."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
