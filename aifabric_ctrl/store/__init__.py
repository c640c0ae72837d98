"""What survives a restart, behind one small interface: hosts, links, port roles, drains and the journal.

Knows no switch, no socket and no clock: times and the machine's boot id are passed in.  Tables on the switches are not
stored; they are read back from the switches, which are the only truth about them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aifabric_ctrl.model.effects import Journal, SaveDrain, SaveHost, SaveLink, SavePorts
from aifabric_ctrl.model.events import Remembered

Saveable = SaveHost | SaveLink | SavePorts | SaveDrain


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One journal line as stored.  ``wall_time_s`` is seconds since the Unix epoch; ids rise by one, across restarts."""

    id: int
    wall_time_s: float
    severity: str
    kind: str
    text: str
    data: Mapping[str, object]


class Store(Protocol):
    """One controller's memory.

    ``save`` and ``save_journal`` only note the change; ``flush`` writes what was noted, oldest first, so that a crash
    loses the newest changes and nothing in between.
    """

    @property
    def notices(self) -> Sequence[Journal]:
        """What was odd while opening and loading (a damaged file put aside, a row skipped), for the journal."""

    @property
    def pending(self) -> int:
        """How many changes wait for ``flush``."""

    def load(self, now_monotonic_s: float, boot_id: str) -> Remembered:
        """Everything remembered.  Call it once, before the first ``save``.

        Monotonic times mean nothing after a reboot: with another ``boot_id`` (or none) hold-downs are dropped, and
        hosts count as seen now.

        Raises:
            StoreError: nothing could be read.
        """

    def save(self, effect: Saveable) -> None:
        """Note a change; the last one for the same host, link or switch wins."""

    def save_journal(self, entry: Journal, wall_time_s: float) -> None:
        """Note a journal line (``wall_time_s`` in seconds since the Unix epoch)."""

    def journal(self, limit: int) -> list[JournalRow]:
        """The last ``limit`` lines that were flushed, oldest first.

        Raises:
            StoreError: nothing could be read.
        """

    def flush(self) -> None:
        """Write what was noted as one transaction, but at most so much that it takes about a millisecond; the rest
        (``pending``) waits for the next call.

        Raises:
            StoreError: nothing was written; everything is kept and tried again by the next ``flush``.
        """

    def tidy(self) -> None:
        """Housekeeping that waits for the disk (tens of ms); safe in another thread beside the other methods.

        Raises:
            StoreError: it could not be done; nothing is lost.
        """

    def close(self) -> None:
        """Flush everything, and let another controller have the state.

        Raises:
            StoreError: the last changes could not be written.
        """
