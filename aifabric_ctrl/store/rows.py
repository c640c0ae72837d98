"""Rows of the store <-> model values.  Pure text and number conversion; what cannot be read back raises ValueError."""

from __future__ import annotations

import json
from collections.abc import Sequence
from ipaddress import ip_address

from aifabric_ctrl.model.drains import Drain, DrainTarget
from aifabric_ctrl.model.effects import Journal, SaveLink
from aifabric_ctrl.model.fabric import Host, Link, LinkState, PortRole, Reach
from aifabric_ctrl.model.ids import PortRef, dpid_text, is_physical, mac_text, parse_dpid, parse_mac
from aifabric_ctrl.store import JournalRow

Row = Sequence[object]


def host_row(host: Host) -> tuple[object, ...]:
    return (
        str(host.ip),
        mac_text(host.mac),
        dpid_text(host.at.dpid),
        host.at.port,
        int(host.reach),
        host.tenant,
        int(host.verified),
        host.since_s,
        host.seen_s,
    )


def host_of(row: Row) -> Host:
    ip, mac, dpid, port, reach, tenant, verified, since_s, seen_s = row
    return Host(
        ip=ip_address(_text(ip)),
        mac=parse_mac(_text(mac)),
        at=_port_ref(dpid, port),
        reach=Reach(_number(reach)),
        tenant=_number(tenant),
        verified=bool(_number(verified)),
        since_s=_seconds(since_s),
        seen_s=_seconds(seen_s),
    )


def link_row(effect: SaveLink) -> tuple[object, ...]:
    link = effect.link
    return (*link_key(link), link.state.value, int(link.settled), effect.held_until_s)


def link_key(link: Link) -> tuple[str, int, str, int]:
    return dpid_text(link.a.dpid), link.a.port, dpid_text(link.b.dpid), link.b.port


def link_of(row: Row) -> tuple[Link, float]:
    """A link and the monotonic second its hold-down ends (0 for none)."""
    a_dpid, a_port, b_dpid, b_port, state, settled, held_until_s = row
    link = Link(_port_ref(a_dpid, a_port), _port_ref(b_dpid, b_port), LinkState(_text(state)), bool(_number(settled)))
    return link, _seconds(held_until_s)


def drain_key(target: DrainTarget) -> tuple[str, int, str, int]:
    port, far = target.port, target.far
    return dpid_text(target.dpid), port.port if port else 0, dpid_text(far.dpid) if far else "", far.port if far else 0


def drain_row(drain: Drain) -> tuple[object, ...]:
    return (*drain_key(drain.target), _storable(drain.who), _storable(drain.reason), drain.since_wall_s)


def drain_of(row: Row) -> Drain:
    dpid, port, far_dpid, far_port, who, reason, since_wall_s = row
    near = _port_ref(dpid, port) if port else None
    target = DrainTarget(parse_dpid(_text(dpid)), near, _port_ref(far_dpid, far_port) if far_port else None)
    return Drain(target, _text(who), _text(reason), _seconds(since_wall_s))


def role_of(row: Row) -> tuple[PortRef, str]:
    dpid, port, role = row
    number = _number(port)
    if not 0 < number <= 0xFFFFFFFF:
        raise ValueError(f"port {number} does not exist")
    return PortRef(parse_dpid(_text(dpid)), number), PortRole(_text(role)).value


def journal_row(entry: Journal, wall_time_s: float) -> tuple[object, ...]:
    # default=str: a journal line that says too little is better than none, and addresses are the usual case.
    data = json.dumps(dict(entry.data), default=str, sort_keys=True)
    return wall_time_s, _storable(entry.severity), _storable(entry.kind), _storable(entry.text), data


def journal_of(row: Row) -> JournalRow:
    number, wall_time_s, severity, kind, text, data = row
    decoded = json.loads(_text(data))
    if not isinstance(decoded, dict):
        raise ValueError("journal data is not an object")
    return JournalRow(_number(number), _seconds(wall_time_s), _text(severity), _text(kind), _text(text), decoded)


def _storable(text: str) -> str:
    """Text from a switch may hold lone surrogates (undecodable bytes), which SQLite refuses."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _port_ref(dpid: object, port: object) -> PortRef:
    number = _number(port)
    if not is_physical(number):
        raise ValueError(f"port {number} can carry no cable")
    return PortRef(parse_dpid(_text(dpid)), number)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)
