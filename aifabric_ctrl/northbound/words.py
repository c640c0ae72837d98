"""Rules in words: actions, groups, ports and tables as an operator reads them.  Text only; decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from aifabric_ctrl.compile.tables import BY_NUMBER
from aifabric_ctrl.model import ids
from aifabric_ctrl.model.fabric import Fabric, Switch
from aifabric_ctrl.model.fields import FIELDS
from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef, dpid_text
from aifabric_ctrl.model.rules import (
    ALL,
    FAST_FAILOVER,
    INDIRECT,
    SELECT,
    Action,
    Bucket,
    DecTtl,
    Flow,
    Group,
    Move,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
    ToGroup,
)

GROUP_TYPES = {
    SELECT: "select (one bucket by hash)",
    FAST_FAILOVER: "fast failover (first live bucket)",
    INDIRECT: "indirect (its one bucket)",
    ALL: "all (every bucket)",
}

_RESERVED = {
    ids.PORT_IN_PORT: "the port it came in by",
    ids.PORT_TABLE: "the tables",
    ids.PORT_NORMAL: "normal switching",
    ids.PORT_FLOOD: "flood",
    ids.PORT_ALL: "all ports",
    ids.PORT_CONTROLLER: "the controller",
    ids.PORT_LOCAL: "the switch itself (LOCAL)",
}


def table_name(table: int) -> str:
    """``ROUTE`` for 40; the number as text for a table that is not one of ours."""
    spec = BY_NUMBER.get(table)
    return spec.name if spec is not None else str(table)


def switch_name(fabric: Fabric, dpid: Dpid) -> str:
    """The switch's name, or its datapath id when it has none or is not known."""
    switch = fabric.switches.get(dpid)
    return switch.text if switch is not None else dpid_text(dpid)


def port_name(switch: Switch | None, port: PortNo) -> str:
    """The port's name as the switch gives it, else its number."""
    known = switch.ports.get(port) if switch is not None else None
    return known.name if known is not None and known.name else _RESERVED.get(port, str(port))


def port_words(switch: Switch | None, port: PortNo) -> str:
    """``port 3 (l1-eth3)``, or a reserved port in words."""
    if port in _RESERVED:
        return _RESERVED[port]
    name = port_name(switch, port)
    return f"port {port} ({name})" if name != str(port) else f"port {port}"


def ref_words(fabric: Fabric, ref: PortRef) -> str:
    """``l1 port 3 (l1-eth3)``."""
    return f"{switch_name(fabric, ref.dpid)} {port_words(fabric.switches.get(ref.dpid), ref.port)}"


def action_words(action: Action, switch: Switch | None) -> str:
    """One action."""
    match action:
        case Output(port=port):
            return f"send to {port_words(switch, port)}"
        case ToGroup(group_id=group_id):
            return f"group {group_id:#x}"
        case SetField(field=name, value=value):
            spec = FIELDS.get(name)
            return f"set {spec.text(value, None)}" if spec is not None else f"set {name}={value}"
        case Move():
            return f"copy {move_words(action)}"
        case DecTtl():
            return "TTL - 1"
        case SetQueue(queue_id=queue_id):
            return f"queue {queue_id}"
        case PushVlan():
            return "push VLAN tag"
        case PopVlan():
            return "pop VLAN tag"


def move_words(move: Move) -> str:
    """``eth_src to eth_dst``, with bit ranges only where a part of a field is meant."""

    def side(name: str, offset: int) -> str:
        spec = FIELDS.get(name)
        whole = spec is not None and offset == 0 and move.bits == spec.bits
        return name if whole else f"{name}[{offset}..{offset + move.bits - 1}]"

    return f"{side(move.src, move.src_offset)} to {side(move.dst, move.dst_offset)}"


def actions_words(actions: Iterable[Action], switch: Switch | None) -> list[str]:
    """Actions in order, a run of equal ones as one with a count (the bounce rule repeats dec_ttl 20 times)."""
    words: list[str] = []
    for text, run in groupby(action_words(a, switch) for a in actions):
        times = sum(1 for _ in run)
        words.append(text if times == 1 else f"{text} ({times} times)")
    return words


def flow_words(flow: Flow, switch: Switch | None) -> list[str]:
    """Everything a rule does, in the order the switch does it."""
    words = [f"meter {flow.meter:#x}"] if flow.meter is not None else []
    words += actions_words(flow.actions, switch)
    if flow.metadata is not None:
        words.append(f"metadata {flow.metadata[0]:#x}/{flow.metadata[1]:#x}")
    if flow.goto is not None:
        words.append(f"go to {flow.goto} {table_name(flow.goto)}".rstrip())
    return words or ["drop"]


def bucket_words(bucket: Bucket, switch: Switch | None) -> str:
    """What a bucket does, as one line."""
    return ", ".join(actions_words(bucket.actions, switch)) or "drop"


def shares(buckets: Sequence[Bucket]) -> list[float]:
    """Each bucket's part of the hash space, 0 to 1; all 0 when no bucket has a weight."""
    total = sum(b.weight for b in buckets)
    return [b.weight / total if total else 0.0 for b in buckets]


def group_title(group: Group) -> str:
    """``group 0xa000001, select (one bucket by hash)``."""
    return f"group {group.group_id:#x}, {GROUP_TYPES.get(group.type, group.type)}"
