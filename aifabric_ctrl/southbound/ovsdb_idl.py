"""One OVSDB server as the BFD worker sees it: a replica of few columns, and one transaction at a time.

Must only be used in the worker process: the library's loops and time-outs are not made for the controller's event loop.
Decides nothing; `ovsdb_plan` does.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ovs import poller
from ovs.db import idl
from ovsdbapp.backend.ovs_idl import connection

from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.model.ids import is_physical, parse_dpid
from aifabric_ctrl.southbound.ovsdb_plan import MARK, BridgeRow, PortRow, PortWrite

PROBE_MS = 5_000  # an echo when nothing came for this long, and the connection is dropped after as long again
_BFD_KEYS = ("enable", "min_tx", "min_rx", "mult")

_TEXT = {"type": "string"}
_TEXT_OR_NOTHING = {"type": {"key": "string", "min": 0, "max": 1}}
_MAP = {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}


def _references(table: str) -> dict[str, Any]:
    return {"type": {"key": {"type": "uuid", "refTable": table}, "min": 0, "max": "unlimited"}}


# Written here instead of asked from the server (as ovsdbapp does), because asking waits for an answer, and one silent
# server would keep all the others waiting.  Of the real schema this is only what we read; the server checks the rest.
_SCHEMA = {
    "name": "Open_vSwitch",
    "version": "7.0.0",
    "tables": {
        "Bridge": {
            "columns": {
                "name": _TEXT,
                "datapath_id": _TEXT_OR_NOTHING,
                "fail_mode": _TEXT_OR_NOTHING,
                "ports": _references("Port"),
            },
            "isRoot": True,
        },
        "Port": {"columns": {"name": _TEXT, "interfaces": _references("Interface")}, "isRoot": True},
        "Interface": {
            "columns": {
                "name": _TEXT,
                "ofport": {"type": {"key": "integer", "min": 0, "max": 1}},
                "bfd": _MAP,
                "bfd_status": _MAP,
                "external_ids": _MAP,
            },
            "isRoot": True,
        },
    },
}


class SwitchDatabase(connection.OvsdbIdl):  # type: ignore[misc]  # the library is untyped
    """A connection that makes itself again for ever.  ``run`` often, ``wait_on`` before sleeping."""

    def __init__(self, remote: str) -> None:
        helper = idl.SchemaHelper(schema_json=_SCHEMA)
        helper.register_all()
        super().__init__(remote, helper)
        # By itself the library probes no unix socket, and would not notice a server that is stopped or hangs.
        self._session.reconnect.set_probe_interval(PROBE_MS)
        self.remote = remote
        self.refused = ""
        self._transaction: Any = None

    @property
    def usable(self) -> bool:
        """Connected, and the replica is complete."""
        return bool(self._session.is_connected() and self.state == self.IDL_S_MONITORING)

    @property
    def in_flight(self) -> bool:
        return self._transaction is not None

    @property
    def why_not(self) -> str:
        """Why it is not usable, for a person."""
        kind, _, rest = self.remote.partition(":")
        if self._session.is_connected():
            return "it accepts the connection but does not answer as an Open_vSwitch database"
        if kind == "unix" and not Path(rest).exists():
            return f"{rest} does not exist; is ovsdb-server running?"
        return "no connection"

    def turn(self) -> None:
        """Exchange messages without waiting, and settle the transaction under way.  ``refused`` says why one failed."""
        self.run()
        if self._transaction is None:
            return
        status = self._transaction.commit()
        if status == idl.Transaction.INCOMPLETE:
            return
        self.refused = self._transaction.get_error() if status in (idl.Transaction.ERROR, idl.Transaction.NOT_LOCKED) else ""
        # TRY_AGAIN: somebody changed a row meanwhile; the planner looks at the rows anew anyway.
        self._transaction = None

    def wait_on(self, wakeup: poller.Poller) -> None:
        self.wait(wakeup)

    def bridges(self) -> list[BridgeRow]:
        """Every bridge with a datapath id, with its ports by OpenFlow number."""
        found = []
        for row in self.tables["Bridge"].rows.values():
            dpid = _dpid(row.datapath_id)
            if dpid is not None:
                fail_mode = str(_one(row.fail_mode) or "standalone")
                found.append(BridgeRow(str(row.uuid), row.name, dpid, fail_mode, self._ports(row)))
        return found

    def write(self, writes: Sequence[PortWrite]) -> None:
        """Begin one transaction with all the writes; it fails as a whole when somebody else changed one of the rows."""
        transaction = idl.Transaction(self)
        transaction.add_comment("aifabric_ctrl: BFD on fabric links")
        for write in writes:
            row = self.tables["Interface"].rows.get(uuid.UUID(write.uuid))
            if row is not None:
                row.verify("bfd")
                row.verify("external_ids")
                _change(row, write)
        self._transaction = transaction
        transaction.commit()

    def _ports(self, bridge: Any) -> dict[int, PortRow]:
        interfaces = (interface for port in bridge.ports for interface in port.interfaces)
        ports = {}
        for row in interfaces:
            number = _one(row.ofport)
            if isinstance(number, int) and is_physical(number):
                state = str(row.bfd_status.get("state", ""))
                mark = str(row.external_ids.get(MARK, ""))
                ports[number] = PortRow(self.remote, str(row.uuid), row.name, dict(row.bfd), state, mark)
        return ports


def _change(row: Any, write: PortWrite) -> None:
    """Key by key, so that other people's keys in the same columns stay."""
    if not write.mark:
        for key in _BFD_KEYS:
            row.delkey("bfd", key)
        row.delkey("external_ids", MARK)
        return
    for key, value in write.bfd.items():
        row.setkey("bfd", key, value)
    row.setkey("external_ids", MARK, write.mark)


def _one(value: Any) -> Any:
    """The value of an optional column, which the library gives as a list of none or one."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return next(iter(value), None)
    return value


def _dpid(value: Any) -> int | None:
    try:
        return parse_dpid(str(_one(value) or ""))
    except InvalidValue:
        return None  # vswitchd has not given the bridge one yet
