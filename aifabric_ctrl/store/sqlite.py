"""The default store: one SQLite file in the state directory.

Must not decide what is worth remembering (the engine does) and must not be waited for by the failover path: changes
are noted in memory and written by ``flush`` in one transaction without a disk sync (WAL, synchronous=NORMAL).
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from aifabric_ctrl.model.effects import Journal, SaveDrain, SaveHost, SaveLink, SavePorts
from aifabric_ctrl.model.errors import InvalidValue, StoreError
from aifabric_ctrl.model.events import Remembered
from aifabric_ctrl.model.fabric import Host
from aifabric_ctrl.model.ids import Dpid, PortNo, dpid_text
from aifabric_ctrl.store import JournalRow, Saveable, rows
from aifabric_ctrl.store.lock import DirectoryLock
from aifabric_ctrl.store.schema import migrate

FILE_NAME = "state.sqlite3"
JOURNAL_ROWS = 10_000
FLUSH_MOST = 200  # changes, and as many lines, a flush: about a millisecond, for the event loop stands still meanwhile
# A checkpoint syncs the disk (tens of ms on a slow one), so it is left to `tidy`; this bound (32 MB of 4 KB pages) is
# only for a controller that is never quiet.
FORCED_CHECKPOINT_PAGES = 8_000
_TRIM_EVERY = 1_000  # journal lines between two trims in `flush`

T = TypeVar("T")


def open_store(state_dir: Path) -> SqliteStore:
    """Open (or make) the store in ``state_dir``.

    A damaged file is moved to ``state.sqlite3.corrupt-<n>`` and an empty one takes its place; ``notices`` says so.

    Raises:
        StoreError: the directory cannot be used, another controller uses it, or the file is from a newer release.
    """
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = DirectoryLock(state_dir)
    except OSError as error:
        raise _unusable(state_dir, error) from error
    try:
        return SqliteStore(state_dir / FILE_NAME, lock)
    except (OSError, sqlite3.Error) as error:
        lock.release()
        raise _unusable(state_dir, error) from error
    except StoreError:
        lock.release()
        raise


def _unusable(state_dir: Path, error: Exception) -> StoreError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return StoreError(
        f"the state directory cannot be used ({why})",
        "make it writable for this user, or set AIFABRIC_STATE_DIR to another directory",
        str(state_dir),
    )


class SqliteStore:
    """See `aifabric_ctrl.store.Store` for what each method promises."""

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        self._path = path
        self._lock = lock
        self._notices: list[Journal] = []
        self._changes: dict[object, Saveable] = {}  # by what they are about, in the order of the last change
        # As many lines as the file keeps: with a disk that stays full, the oldest unwritten ones go first.
        self._journal: deque[tuple[object, ...]] = deque(maxlen=JOURNAL_ROWS)
        self._since_trim = 0
        self._closed = False
        self._db = self._open_or_replace()

    @property
    def notices(self) -> Sequence[Journal]:
        return tuple(self._notices)

    @property
    def pending(self) -> int:
        return len(self._changes) + len(self._journal)

    def load(self, now_monotonic_s: float, boot_id: str) -> Remembered:
        with self._reading():
            row = self._db.execute("SELECT value FROM meta WHERE key = 'boot_id'").fetchone()
            same_boot = bool(boot_id) and row == (boot_id,)
            switches: dict[Dpid, dict[PortNo, str]] = {}
            for (dpid,) in self._db.execute("SELECT dpid FROM switches ORDER BY dpid"):
                switches[int(dpid, 16)] = {}
            for ref, role in self._read("ports", rows.role_of, "dpid, port, role"):
                switches.setdefault(ref.dpid, {})[ref.port] = role
            links = list(self._read("links", rows.link_of))
            hosts = [_at_most(host, now_monotonic_s, same_boot) for host in self._read("hosts", rows.host_of)]
            drains = tuple(self._read("drains", rows.drain_of))
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('boot_id', ?)", (boot_id,))
            if not same_boot:
                self._db.execute("UPDATE links SET held_until_s = 0")
                self._db.execute("UPDATE hosts SET since_s = ?, seen_s = ?", (now_monotonic_s, now_monotonic_s))
        held: dict[tuple[Dpid, PortNo], float] = {}
        for link, until_s in links:
            if same_boot and until_s > now_monotonic_s:
                held[link.a] = held[link.b] = until_s
        return Remembered(
            at=now_monotonic_s,
            switches=switches,
            links=tuple(link for link, _ in links),
            hosts=tuple(hosts),
            held_until_s=held,
            drains=drains,
        )

    def save(self, effect: Saveable) -> None:
        if isinstance(effect, SaveHost):
            subject: object = effect.host.ip
        elif isinstance(effect, SaveLink):
            subject = (effect.link.a, effect.link.b)
        elif isinstance(effect, SaveDrain):
            subject = effect.drain.target
        else:
            subject = effect.dpid
        self._changes.pop(subject, None)
        self._changes[subject] = effect

    def save_journal(self, entry: Journal, wall_time_s: float) -> None:
        self._journal.append(rows.journal_row(entry, wall_time_s))

    def journal(self, limit: int) -> list[JournalRow]:
        query = "SELECT id, wall_time_s, severity, kind, text, data FROM journal ORDER BY id DESC LIMIT ?"
        with self._reading():
            found = self._db.execute(query, (max(0, limit),)).fetchall()
        return list(self._converted("journal", rows.journal_of, reversed(found)))

    def flush(self) -> None:
        if not self.pending:
            return
        changes = list(islice(self._changes.items(), FLUSH_MOST))
        lines = list(islice(self._journal, FLUSH_MOST))
        with self._writing():
            self._write_hosts([e for _, e in changes if isinstance(e, SaveHost)])
            self._write_links([e for _, e in changes if isinstance(e, SaveLink)])
            self._write_ports([e for _, e in changes if isinstance(e, SavePorts)])
            self._write_drains([e for _, e in changes if isinstance(e, SaveDrain)])
            self._db.executemany("INSERT INTO journal (wall_time_s, severity, kind, text, data) VALUES (?, ?, ?, ?, ?)", lines)
            if self._since_trim + len(lines) >= _TRIM_EVERY:
                self._trim()
        self._since_trim = (self._since_trim + len(lines)) % _TRIM_EVERY
        for subject, _ in changes:
            del self._changes[subject]
        for _ in lines:
            self._journal.popleft()

    def tidy(self) -> None:
        # A connection of its own, because one that syncs the disk keeps other threads off itself; and PASSIVE, because
        # that kind of checkpoint waits for no writer and keeps none waiting.
        with self._reading(), closing(sqlite3.connect(self._path, timeout=0.0, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            while self.pending:
                self.flush()
        finally:
            self._db.close()
            self._lock.release()

    def _write_hosts(self, effects: Sequence[SaveHost]) -> None:
        gone = [rows.host_row(e.host) for e in effects if e.gone]
        kept = [rows.host_row(e.host) for e in effects if not e.gone]
        # Only where it was: an address that was seen to leave one port must not be forgotten at another.
        self._db.executemany("DELETE FROM hosts WHERE ip = ? AND dpid = ? AND port = ?", [(r[0], r[2], r[3]) for r in gone])
        self._db.executemany("INSERT OR REPLACE INTO hosts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", kept)

    def _write_links(self, effects: Sequence[SaveLink]) -> None:
        gone = [rows.link_key(e.link) for e in effects if e.gone]
        kept = [rows.link_row(e) for e in effects if not e.gone]
        self._db.executemany("DELETE FROM links WHERE a_dpid = ? AND a_port = ? AND b_dpid = ? AND b_port = ?", gone)
        self._db.executemany("INSERT OR REPLACE INTO links VALUES (?, ?, ?, ?, ?, ?, ?)", kept)

    def _write_ports(self, effects: Sequence[SavePorts]) -> None:
        for effect in effects:
            dpid = dpid_text(effect.dpid)
            self._db.execute("INSERT OR IGNORE INTO switches VALUES (?)", (dpid,))
            self._db.execute("DELETE FROM ports WHERE dpid = ?", (dpid,))
            self._db.executemany("INSERT INTO ports VALUES (?, ?, ?)", [(dpid, n, role) for n, role in effect.roles.items()])

    def _write_drains(self, effects: Sequence[SaveDrain]) -> None:
        gone = [rows.drain_key(e.drain.target) for e in effects if e.gone]
        kept = [rows.drain_row(e.drain) for e in effects if not e.gone]
        self._db.executemany("DELETE FROM drains WHERE dpid = ? AND port = ? AND far_dpid = ? AND far_port = ?", gone)
        self._db.executemany("INSERT OR REPLACE INTO drains VALUES (?, ?, ?, ?, ?, ?, ?)", kept)

    def _trim(self) -> None:
        self._db.execute("DELETE FROM journal WHERE id <= (SELECT max(id) FROM journal) - ?", (JOURNAL_ROWS,))

    def _read(self, table: str, convert: Callable[[rows.Row], T], columns: str = "*") -> Iterator[T]:
        return self._converted(table, convert, self._db.execute(f"SELECT {columns} FROM {table}"))

    def _converted(self, table: str, convert: Callable[[rows.Row], T], found: Iterable[rows.Row]) -> Iterator[T]:
        """The rows that can be understood; each other one becomes a notice."""
        for row in found:
            try:
                yield convert(row)
            except (ValueError, InvalidValue) as error:
                text = f"{self._path}: a row of {table} was ignored: {error}"
                self._notices.append(Journal("warning", "store_row_ignored", text, {"table": table, "row": list(row)}))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._failed("read", error) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self._failed("written", error) from error
            raise

    def _failed(self, verb: str, error: sqlite3.Error) -> StoreError:
        return StoreError(f"the state could not be {verb} ({error})", "look at the disk's free space and health", str(self._path))

    def _open_or_replace(self) -> sqlite3.Connection:
        try:
            return _connect(self._path)
        except sqlite3.OperationalError:
            raise  # cannot be opened, read-only, full, locked: the contents may be fine
        except sqlite3.DatabaseError as error:
            aside = _move_aside(self._path)
            text = f"{self._path} was damaged ({error}); it is kept as {aside.name}, and hosts and links are learned anew"
            self._notices.append(Journal("alarm", "store_corrupt", text, {"moved_to": str(aside)}))
            return _connect(self._path)


def _connect(path: Path) -> sqlite3.Connection:
    # timeout 0: whoever else holds the file, the event loop does not wait for him; the next flush tries again.
    db = sqlite3.connect(path, timeout=0.0, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {FORCED_CHECKPOINT_PAGES}").fetchall()
        found = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != ("ok",):
            raise sqlite3.DatabaseError(found[0] if found else "quick_check said nothing")
        migrate(db, str(path))
    except BaseException:
        db.close()
        raise
    return db


def _move_aside(path: Path) -> Path:
    """Rename the file and its write-ahead log, which belongs to it and would spoil a new one."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


def _at_most(host: Host, now_s: float, same_boot: bool) -> Host:
    """A host whose times lie in this boot's past."""
    if not same_boot:
        return replace(host, since_s=now_s, seen_s=now_s)
    return replace(host, since_s=min(host.since_s, now_s), seen_s=min(host.seen_s, now_s))
