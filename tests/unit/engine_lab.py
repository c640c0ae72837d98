"""A settled in-memory fabric for engine tests, and the few questions they all ask of it."""

from __future__ import annotations

from aifabric_ctrl.engine.engine import Engine
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Tables
from aifabric_ctrl.sim.memnet import MemNet
from aifabric_ctrl.sim.topology import Topology, leaf_spine

LEAF1, LEAF2, LEAF3, SPINE1, SPINE2 = 0x11, 0x12, 0x13, 0x21, 0x22
UPLINK1, UPLINK2 = 101, 102


def engine(**intent: object) -> Engine:
    return Engine(Intent(**intent), b"entropy for tests, 32 bytes long!")  # type: ignore[arg-type]


def fabric(
    topology: Topology | None = None, seed: int = 1, *, learn: bool = True, unordered: bool = False, **intent: object
) -> MemNet:
    """LS-2x3 of the field cases unless told otherwise: connected, settled, and (with ``learn``) every host known."""
    net = MemNet(topology or leaf_spine(3, 2, 2), engine(**intent), seed, unordered=unordered)
    net.connect_all()
    net.settle()
    if learn:
        missing = net.ping_all(2.0)
        net.settle()
        if missing:
            raise RuntimeError(f"the fabric did not come up: {missing}")
    return net


def kinds(net: MemNet, since: float = 0.0) -> list[str]:
    """Journal kinds since a moment of virtual time."""
    return [entry.kind for at, entry in net.journal if at >= since]


def sent(net: MemNet) -> dict[str, int]:
    """Flow, group and meter messages so far."""
    return {k: v for k, v in net.engine.view().counters.items() if k.endswith("_mods_sent")}


def all_tables(net: MemNet) -> dict[int, Tables]:
    return {dpid: net.tables(dpid) for dpid in sorted(net.switches)}


def same_tables(a: Tables, b: Tables) -> bool:
    return dict(a.flows) == dict(b.flows) and dict(a.groups) == dict(b.groups) and dict(a.meters) == dict(b.meters)


def wanted_and_there_agree(net: MemNet) -> bool:
    """Every switch holds exactly what was compiled for it."""
    desired = net.engine.view().desired.tables
    return all(same_tables(desired[d], net.tables(d)) for d in net.switches if d not in net.dead)
