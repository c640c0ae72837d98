"""What survives a restart, and what happens to it when the file, the directory or the process is in trouble."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path

import pytest

from aifabric_ctrl.model.drains import Drain, DrainTarget
from aifabric_ctrl.model.effects import Journal, SaveDrain, SaveHost, SaveLink, SavePorts
from aifabric_ctrl.model.errors import StoreError
from aifabric_ctrl.model.fabric import Host, Link, LinkState, Reach
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.store import Store
from aifabric_ctrl.store.schema import MIGRATIONS, migrate
from aifabric_ctrl.store.sqlite import FILE_NAME, FLUSH_MOST, JOURNAL_ROWS, SqliteStore, open_store

BOOT = "boot-1"
LEAF, SPINE = PortRef(0xA, 1), PortRef(0xFFFF_0000_0000_0001, 2)
V4 = Host(ip_address("10.0.0.1"), 0x0200_0000_00FF, PortRef(0xA, 7), Reach.LOCAL, 3, False, 5.0, 9.0)
V6 = Host(ip_address("2001:db8::1"), 0x0200_0000_00FF, PortRef(0xA, 7), seen_s=8.0)
DRAINS = [
    Drain(DrainTarget(0xA), "ann", "fan", 1.7e9),
    Drain(DrainTarget(0xA, PortRef(0xA, 7)), "", "", 0.0),
    Drain(DrainTarget(LEAF.dpid, LEAF, SPINE), "bob", "optics, \u2028", 5.5),
]
LINK = Link(LEAF, SPINE, LinkState.HELD, settled=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = open_store(tmp_path / "state")
    yield opened
    opened.close()


def reopen(store: SqliteStore, tmp_path: Path) -> SqliteStore:
    store.close()
    return open_store(tmp_path / "state")


def test_everything_saved_is_remembered_after_a_restart(store: SqliteStore, tmp_path: Path) -> None:
    store.load(0.0, BOOT)
    for effect in (
        SaveHost(V4),
        SaveHost(V6),
        SaveLink(LINK, held_until_s=30.0),
        SavePorts(0xA, {1: "fabric", 7: "edge"}),
        SavePorts(0xB, {}),
        *map(SaveDrain, DRAINS),
    ):
        store.save(effect)
    again: Store = reopen(store, tmp_path)
    found = again.load(10.0, BOOT)
    assert set(found.hosts) == {V4, V6}
    assert found.links == (LINK,)
    assert found.held_until_s == {LEAF: 30.0, SPINE: 30.0}
    assert found.switches == {0xA: {1: "fabric", 7: "edge"}, 0xB: {}}
    assert set(found.drains) == set(DRAINS)
    assert found.at == 10.0
    assert not again.notices
    again.close()


def test_the_last_change_wins_and_what_is_gone_is_forgotten(store: SqliteStore, tmp_path: Path) -> None:
    store.save(SaveHost(V4))
    store.save(SaveHost(V6))
    store.save(SaveLink(LINK))
    store.save(SavePorts(0xA, {1: "edge", 2: "edge"}))
    store.flush()
    store.save(SaveHost(V4, gone=True))
    for drain in DRAINS:
        store.save(SaveDrain(drain))
    store.flush()
    store.save(SaveDrain(DRAINS[2], gone=True))
    store.save(SaveLink(Link(LEAF, SPINE, LinkState.DOWN), gone=True))
    store.save(SavePorts(0xA, {1: "fabric"}))
    found = reopen(store, tmp_path).load(10.0, BOOT)
    assert [h.ip for h in found.hosts] == [V6.ip]
    assert found.drains == tuple(DRAINS[:2])
    assert found.links == ()
    assert found.switches == {0xA: {1: "fabric"}}


def test_a_host_that_left_one_port_is_not_forgotten_at_another(store: SqliteStore, tmp_path: Path) -> None:
    moved = Host(V4.ip, V4.mac, PortRef(0xB, 3))
    store.load(0.0, BOOT)
    store.save(SaveHost(moved))
    store.flush()
    store.save(SaveHost(V4, gone=True))
    assert reopen(store, tmp_path).load(10.0, BOOT).hosts == (moved,)


@pytest.mark.parametrize("boot_id", ["boot-2", ""])
def test_after_a_reboot_old_times_mean_nothing(store: SqliteStore, tmp_path: Path, boot_id: str) -> None:
    store.load(0.0, BOOT if boot_id else "")
    store.save(SaveHost(V4))
    store.save(SaveLink(LINK, held_until_s=1e9))
    found = reopen(store, tmp_path).load(2.0, boot_id)
    assert found.held_until_s == {}
    assert (found.hosts[0].since_s, found.hosts[0].seen_s) == (2.0, 2.0)


def test_the_reboot_is_noted_once(store: SqliteStore, tmp_path: Path) -> None:
    store.load(100.0, BOOT)
    store.save(SaveHost(V4))
    store = reopen(store, tmp_path)
    store.load(2.0, "boot-2")
    store = reopen(store, tmp_path)
    assert store.load(50.0, "boot-2").hosts[0].seen_s == 2.0
    store.close()


def test_the_journal_is_bounded_and_its_ids_go_on(store: SqliteStore, tmp_path: Path) -> None:
    for start in range(0, 3 * JOURNAL_ROWS, 1000):
        for n in range(start, start + 1000):
            store.save_journal(Journal("info", "n", f"line {n}", {"at": LEAF, "ip": V4.ip}), 1.5)
        while store.pending:
            store.flush()
    store.save_journal(Journal("alarm", "odd", "bytes \udcff", {}), 2.5)
    store = reopen(store, tmp_path)
    store.tidy()
    last = store.journal(2)
    assert [(r.id, r.severity, r.wall_time_s) for r in last] == [
        (3 * JOURNAL_ROWS, "info", 1.5),
        (3 * JOURNAL_ROWS + 1, "alarm", 2.5),
    ]
    assert last[0].text == f"line {3 * JOURNAL_ROWS - 1}" and last[0].data["ip"] == "10.0.0.1"
    assert len(store.journal(10**6)) <= JOURNAL_ROWS + 1000
    store.close()


def test_nothing_is_written_before_flush_and_all_of_it_at_once(store: SqliteStore, tmp_path: Path) -> None:
    store.save(SaveHost(V4))
    store.save_journal(Journal("info", "k", "t"), 1.0)
    assert store.pending == 2 and store.journal(5) == []
    store.flush()
    assert store.pending == 0 and len(store.journal(5)) == 1


def test_a_flush_is_bounded_and_writes_the_oldest_first(store: SqliteStore, tmp_path: Path) -> None:
    for n in range(3 * FLUSH_MOST):
        store.save(SaveHost(Host(ip_address(n), 1, PortRef(1, 1))))
    store.save(SaveHost(Host(ip_address(0), 2, PortRef(1, 1))))
    store.flush()
    assert store.pending == 2 * FLUSH_MOST
    with closing(sqlite3.connect(tmp_path / "state" / FILE_NAME)) as other:
        assert {int(ip_address(ip)) for (ip,) in other.execute("SELECT ip FROM hosts")} == set(range(1, FLUSH_MOST + 1))
    assert len(reopen(store, tmp_path).load(1.0, BOOT).hosts) == 3 * FLUSH_MOST


def test_tidying_in_another_thread_disturbs_nobody(store: SqliteStore, tmp_path: Path) -> None:
    stop = threading.Event()

    def tidy() -> None:
        while not stop.is_set():
            store.tidy()

    with ThreadPoolExecutor(1) as pool:
        tidying = pool.submit(tidy)
        for n in range(500):
            store.save_journal(Journal("info", "k", str(n)), 1.0)
            store.flush()
        stop.set()
        tidying.result()
    assert [row.text for row in store.journal(1000)] == [str(n) for n in range(500)]


def test_a_full_disk_keeps_everything_for_the_next_flush(store: SqliteStore) -> None:
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    for n in range(150):
        store.save_journal(Journal("info", "k", "x" * 500, {"n": n}), 1.0)
    store.save(SaveHost(V4))
    with pytest.raises(StoreError, match="free space"):
        store.flush()
    assert store.pending == 151 and store.journal(1) == []
    store._db.execute("PRAGMA max_page_count = 100000")
    store.flush()
    assert store.pending == 0 and store.journal(1)[0].data == {"n": 149}


def test_a_held_file_costs_an_error_and_no_wait(store: SqliteStore, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "state" / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.save(SaveHost(V4))
    with pytest.raises(StoreError, match="locked"):
        store.flush()
    other.close()
    store.flush()
    assert store.pending == 0


@pytest.mark.parametrize("damage", ["head", "middle", "text"])
def test_a_damaged_file_is_kept_aside_and_reported(store: SqliteStore, tmp_path: Path, damage: str) -> None:
    for n in range(2000):
        store.save_journal(Journal("info", "k", "x" * 100, {"n": n}), 1.0)
    store.close()
    path = tmp_path / "state" / FILE_NAME
    data = bytearray(path.read_bytes())
    if damage == "text":
        data = bytearray(b"not a database at all\n" * 100)
    else:
        start = 0 if damage == "head" else 4096 * 3
        data[start : start + 8192] = os.urandom(8192)
    for round_number in (1, 2):
        path.write_bytes(data)
        again = open_store(tmp_path / "state")
        assert again.load(1.0, BOOT).hosts == ()
        assert [(n.severity, n.kind) for n in again.notices] == [("alarm", "store_corrupt")]
        aside = path.with_name(f"{FILE_NAME}.corrupt-{round_number}")
        assert aside.read_bytes() == bytes(data)
        again.save(SaveHost(V4))
        again.close()


def test_a_row_nobody_understands_is_skipped_and_reported(store: SqliteStore, tmp_path: Path) -> None:
    store.save(SaveHost(V4))
    store.save(SaveHost(V6))
    store.save(SaveLink(LINK))
    store.save(SavePorts(0xA, {1: "edge", 2: "edge", 3: "edge"}))
    store.close()
    with sqlite3.connect(tmp_path / "state" / FILE_NAME) as db:
        db.execute("UPDATE hosts SET mac = 'nonsense' WHERE ip = '10.0.0.1'")
        db.execute("UPDATE links SET state = 'sideways'")
        db.execute("UPDATE ports SET role = x'00' WHERE port = 1")
        db.execute("UPDATE ports SET role = 'core' WHERE port = 3")
    db.close()
    again = open_store(tmp_path / "state")
    found = again.load(10.0, BOOT)
    assert [h.ip for h in found.hosts] == [V6.ip] and found.links == () and found.switches == {0xA: {2: "edge"}}
    assert [n.kind for n in again.notices] == ["store_row_ignored"] * 4
    again.close()


def test_a_newer_schema_is_refused_and_left_alone(store: SqliteStore, tmp_path: Path) -> None:
    store.save(SaveHost(V4))
    store.close()
    path = tmp_path / "state" / FILE_NAME
    with sqlite3.connect(path) as db:
        db.execute("UPDATE schema_version SET version = 99")
    db.close()
    with pytest.raises(StoreError, match=r"newer release \(schema 99"):
        open_store(tmp_path / "state")
    assert not list(path.parent.glob("*corrupt*"))


def test_an_older_schema_is_brought_forward_in_one_step(store: SqliteStore, tmp_path: Path) -> None:
    store.save(SaveHost(V4))
    store.close()
    newer = (*MIGRATIONS, ("ALTER TABLE hosts ADD COLUMN vni INTEGER NOT NULL DEFAULT 0", "CREATE TABLE extra (x)"))
    broken = (*MIGRATIONS, ("CREATE TABLE extra (x)", "CREATE TABLE extra (x)"))
    db = sqlite3.connect(tmp_path / "state" / FILE_NAME, isolation_level=None)
    with pytest.raises(sqlite3.Error):
        migrate(db, "f", broken)
    assert db.execute("SELECT version FROM schema_version").fetchone() == (len(MIGRATIONS),)
    migrate(db, "f", newer)
    migrate(db, "f", newer)
    assert db.execute("SELECT version FROM schema_version").fetchall() == [(len(MIGRATIONS) + 1,)]
    assert db.execute("SELECT ip, vni FROM hosts").fetchall() == [("10.0.0.1", 0)]
    db.close()


def test_a_file_of_the_first_schema_keeps_its_hosts_and_takes_drains(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with closing(sqlite3.connect(state / FILE_NAME, isolation_level=None)) as db:
        migrate(db, "f", MIGRATIONS[:1])
        db.execute("INSERT INTO hosts VALUES ('10.0.0.1', '02:00:00:00:00:ff', '000000000000000a', 7, 1, 3, 0, 5.0, 9.0)")
    store = open_store(state)
    store.save(SaveDrain(DRAINS[0]))
    found = reopen(store, tmp_path).load(10.0, BOOT)
    assert ([h.ip for h in found.hosts], found.drains) == ([V4.ip], (DRAINS[0],))


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("CREATE TABLE photos (x)")
    db.close()
    with pytest.raises(StoreError, match="another program"):
        open_store(tmp_path)


def test_a_second_controller_is_told_who_has_the_directory(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"process {os.getpid()}\b.*AIFABRIC_STATE_DIR"):
        open_store(tmp_path / "state")
    reopen(store, tmp_path).close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for unusable in (tmp_path / "file" / "state", Path("/proc/aifabric-state")):
        with pytest.raises(StoreError, match="AIFABRIC_STATE_DIR") as caught:
            open_store(unusable)
        assert caught.value.where == str(unusable)


_WRITER = """
import sys
from ipaddress import ip_address
from pathlib import Path
from aifabric_ctrl.model.drains import Drain, DrainTarget
from aifabric_ctrl.model.effects import Journal, SaveDrain, SaveHost
from aifabric_ctrl.model.fabric import Host
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.store.sqlite import open_store
store = open_store(Path(sys.argv[1]))
base = len(store.load(1.0, "b").hosts)
for n in range(base, base + 100000):
    store.save(SaveHost(Host(ip_address(0x0A000000 + n), n + 1, PortRef(1, 1))))
    store.save(SaveDrain(Drain(DrainTarget(n + 1), "ann", "", 1.0)))
    store.save_journal(Journal("info", "n", str(n)), 1.0)
    store.flush()
    if n % 50 == 0:
        store.tidy()
    print(n, flush=True)
"""


def test_kill_9_at_any_moment_leaves_a_consistent_prefix(tmp_path: Path) -> None:
    acknowledged = -1
    for trial in range(20):
        with subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(1 + 7 * trial):
                acknowledged = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        store = open_store(tmp_path)
        found = store.load(1.0, "b")
        hosts = found.hosts
        lines = store.journal(JOURNAL_ROWS)
        store.close()
        assert not store.notices
        assert len(hosts) >= acknowledged + 1
        assert sorted(int(h.ip) - 0x0A000000 for h in hosts) == list(range(len(hosts)))
        assert sorted(d.target.dpid for d in found.drains) == list(range(1, len(hosts) + 1))
        assert [int(line.text) for line in lines] == list(range(len(hosts)))
