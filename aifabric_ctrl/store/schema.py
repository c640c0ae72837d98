"""The SQLite schema and its migrations.  One entry a version; an entry that was released is never edited.

The whole step to the newest version is one transaction, so that a kill at any moment leaves the old version or the new.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from aifabric_ctrl.model.errors import StoreError

APPLICATION_ID = 0x41494642  # "AIFB", so that `file` and we can tell this file from anybody else's

_V1 = (
    "CREATE TABLE ports (dpid TEXT NOT NULL, port INTEGER NOT NULL, role TEXT NOT NULL, PRIMARY KEY (dpid, port)) WITHOUT ROWID",
    "CREATE TABLE switches (dpid TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE links (a_dpid TEXT NOT NULL, a_port INTEGER NOT NULL, b_dpid TEXT NOT NULL, b_port INTEGER NOT NULL,"
    " state TEXT NOT NULL, settled INTEGER NOT NULL, held_until_s REAL NOT NULL,"
    " PRIMARY KEY (a_dpid, a_port, b_dpid, b_port)) WITHOUT ROWID",
    "CREATE TABLE hosts (ip TEXT NOT NULL PRIMARY KEY, mac TEXT NOT NULL, dpid TEXT NOT NULL, port INTEGER NOT NULL,"
    " reach INTEGER NOT NULL, tenant INTEGER NOT NULL, verified INTEGER NOT NULL, since_s REAL NOT NULL, seen_s REAL NOT NULL)"
    " WITHOUT ROWID",
    "CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, wall_time_s REAL NOT NULL, severity TEXT NOT NULL,"
    " kind TEXT NOT NULL, text TEXT NOT NULL, data TEXT NOT NULL)",
    "CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)

# A target is a switch (port and far_* 0), a host port (far_* 0) or a cable.
_V2 = (
    "CREATE TABLE drains (dpid TEXT NOT NULL, port INTEGER NOT NULL, far_dpid TEXT NOT NULL, far_port INTEGER NOT NULL,"
    " who TEXT NOT NULL, reason TEXT NOT NULL, since_wall_s REAL NOT NULL,"
    " PRIMARY KEY (dpid, port, far_dpid, far_port)) WITHOUT ROWID",
)

MIGRATIONS: tuple[Sequence[str], ...] = (_V1, _V2)


def migrate(db: sqlite3.Connection, path: str, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Bring an opened file to the newest version.

    Raises:
        StoreError: the file is newer than this program, or it is a SQLite file of something else.
        sqlite3.Error: the file cannot be read or written.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db, path)
        if version > len(migrations):
            raise StoreError(
                f"the state was written by a newer release (schema {version}, this one knows {len(migrations)})",
                "run that release, or give this one another AIFABRIC_STATE_DIR",
                path,
            )
        for statements in migrations[version:]:
            for statement in statements:
                db.execute(statement)
        if version < len(migrations):
            db.execute("DELETE FROM schema_version")
            db.execute("INSERT INTO schema_version VALUES (?)", (len(migrations),))
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _version(db: sqlite3.Connection, path: str) -> int:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
        return 0
    (owner,) = db.execute("PRAGMA application_id").fetchone()
    if owner != APPLICATION_ID or "schema_version" not in tables:
        raise StoreError("this SQLite file belongs to another program", "set AIFABRIC_STATE_DIR to a directory of its own", path)
    row = db.execute("SELECT version FROM schema_version").fetchone()
    return int(row[0]) if row else 0
