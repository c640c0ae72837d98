"""The engine's view as JSON-able values: what the API answers and the CLI prints.

Pure functions of one EngineView; nothing here asks the engine, a switch or a clock.  ``wall_s`` is what to add to the
view's monotonic seconds to get seconds since 1970.  The ``*_parts`` functions give iterators for long lists, so that a
large fabric's topology is made and written bit by bit and never holds up the event loop (DESIGN invariant 12).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aifabric_ctrl.engine.view import EngineView, JournalEntry, SwitchStatus
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.fabric import Host, Link, LinkState, Port, Switch
from aifabric_ctrl.model.ids import GROUP_ANY, PORT_ANY, Dpid, PortRef, dpid_text, mac_text
from aifabric_ctrl.model.rules import Bucket, Group, Tables, ToGroup
from aifabric_ctrl.northbound.words import bucket_words, port_name, shares, switch_name
from aifabric_ctrl.settings import TABLE, Settings, display, display_text
from aifabric_ctrl.verify.executor import bucket_alive

Json = dict[str, Any]
MAX_EVENTS = 1000
_MAX_DEPTH = 8  # of an event's data; deeper is shown as text


def no_pause() -> None:
    """For callers with nothing to hold up."""


def health(view: EngineView) -> Json:
    """``ready`` and why not."""
    return {"ready": view.ready, "switches": _switch_counts(view), "reasons": list(view.not_ready)}


def topology(view: EngineView) -> Json:
    """Switches with their ports, links and hosts, each in a stable order."""
    return whole(topology_parts(view))


def topology_parts(view: EngineView) -> Json:
    """The same with iterators for lists, for who writes a large answer bit by bit."""
    switches, links = view.fabric.switches, sorted(view.fabric.links, key=lambda link: (link.a, link.b))
    return {
        "switches": (_switch(view, switches[dpid]) for dpid in sorted(switches)),
        "links": (_link(view, link) for link in links),
        "hosts": hosts_parts(view)["hosts"],
        "cabling": "unverified",
    }


def hosts(view: EngineView) -> Json:
    """Hosts in address order."""
    return whole(hosts_parts(view))


def hosts_parts(view: EngineView) -> Json:
    """The same with an iterator for the list."""
    ordered = sorted(view.fabric.hosts, key=lambda ip: (ip.version, int(ip)))
    return {"hosts": (host_json(view, view.fabric.hosts[ip]) for ip in ordered)}


def whole(parts: Json) -> Json:
    """Lists in the place of iterators."""
    return {key: list(value) if isinstance(value, Iterator) else value for key, value in parts.items()}


def host_json(view: EngineView, host: Host) -> Json:
    """One address of one machine."""
    return {
        "ip": str(host.ip),
        "mac": mac_text(host.mac),
        "dpid": dpid_text(host.at.dpid),
        "port": host.at.port,
        "switch": switch_name(view.fabric, host.at.dpid),
        "port_name": port_name(view.fabric.switches.get(host.at.dpid), host.at.port),
        "tenant": host.tenant,
        "reach": host.reach.name.lower(),
        "verified": host.verified,
        "seen_s_ago": _round(max(0.0, view.now_s - view.seen_s.get(host.ip, host.seen_s or host.since_s))),
    }


def status(view: EngineView, wall_s: float = 0.0) -> Json:
    """A summary: what an operator looks at first."""
    links = Counter(link.state.value for link in view.fabric.links)
    alarms = [e for e in view.journal if e.severity == "alarm"][-5:]
    return {
        **health(view),
        **drains(view),
        "links": {"total": len(view.fabric.links), **{state.value: links[state.value] for state in LinkState}},
        "hosts": {
            "total": len(view.fabric.hosts),
            "reachable": sum(h.reach.name == "REACHABLE" for h in view.fabric.hosts.values()),
        },
        "objects": {
            "flows": sum(s.flows for s in view.switches.values()),
            "groups": sum(s.groups for s in view.switches.values()),
            "meters": sum(s.meters for s in view.switches.values()),
            "pending": sum(s.pending for s in view.switches.values()),
        },
        "problems": _problems(view),
        "convergence": _convergence_summary(view),
        "alarms": [event_json(e, wall_s) for e in alarms],
        "cabling": "unverified",
    }


def groups(view: EngineView, switch: Dpid | None = None) -> Json:
    """Every group that should be on each switch (or one switch), with what its buckets do and whether they are live."""
    return whole(groups_parts(view, switch))


def groups_parts(view: EngineView, switch: Dpid | None = None) -> Json:
    """The same with an iterator for the list."""
    return {"groups": _groups(view, [d for d in sorted(view.desired.tables) if switch is None or d == switch])}


def _groups(view: EngineView, dpids: Sequence[Dpid]) -> Iterator[Json]:
    for dpid in dpids:
        tables = view.desired.tables[dpid]
        users = _users(tables)
        for group_id in sorted(tables.groups):
            yield _group(view, dpid, tables, tables.groups[group_id], users[group_id])


def events(view: EngineView, since: int = 0, limit: int = MAX_EVENTS, wall_s: float = 0.0) -> Json:
    """Journal lines after ``since``, oldest first, at most ``limit``; with ``since`` 0 the newest ones.

    Ids start again when the controller does.  A reader who is ahead of us saw an earlier controller: it gets everything
    and ``restarted``.
    """
    last = view.journal[-1].id if view.journal else 0
    restarted = since > last
    chosen = [e for e in view.journal if restarted or e.id > since]
    chosen = chosen[-limit:] if since <= 0 or restarted else chosen[:limit]
    through = chosen[-1].id if chosen else last
    answer: Json = {"events": [event_json(e, wall_s) for e in chosen], "last": through}
    return {**answer, "restarted": True} if restarted else answer


def event_json(entry: JournalEntry, wall_s: float) -> Json:
    """One journal line; its data is made JSON-able whatever it is."""
    return {
        "id": entry.id,
        "time": iso_time(entry.at_s + wall_s),
        "severity": entry.severity,
        "kind": entry.kind,
        "text": entry.text,
        "data": jsonable(entry.data),
    }


def drains(view: EngineView) -> Json:
    """What operators keep traffic off, and why."""
    return {
        "drains": [
            {"target": name, "who": d.who, "reason": d.reason, "since": iso_time(d.since_wall_s), "key": str(d.target)}
            for d, name in view.drains
        ]
    }


def convergence(view: EngineView) -> Json:
    """From a cause to the last barrier of the repair, oldest first.  ``at_s`` is monotonic seconds."""
    return {
        "samples": [
            {
                "cause": c.cause,
                "at_s": _round(c.at_s),
                "planned_ms": _round(c.planned_ms),
                "duration_ms": _round(c.duration_ms),
                "messages": c.messages,
                "switches": c.switches,
            }
            for c in view.convergence
        ],
        "now_s": _round(view.now_s),
    }


def counters(view: EngineView) -> Json:
    """Counters that only rise, by name.  The ones readers rely on are there from the start."""
    base = dict.fromkeys(("flow_mods_sent", "group_mods_sent", "meter_mods_sent"), 0)
    base["packet_ins"] = int(view.counters.get("packet_ins_received", 0))
    return dict(sorted({**base, **{str(k): int(v) for k, v in view.counters.items()}}.items()))


def settings(values: Settings) -> Json:
    """The table of settings with values and where each came from."""
    rows = []
    for row in TABLE:
        value = values.value(row.name)
        default = values.state_dir if row.name == "state_dir" and values.sources[row.name] == "default" else row.default
        rows.append(
            {
                "name": row.name,
                "value": display(row.name, value),
                "text": display_text(row.name, value),
                "default": display(row.name, default),
                "default_text": display_text(row.name, default),
                "unit": row.unit,
                "source": values.sources[row.name],
                "variable": row.variable,
                "expects": row.kind.words,
                "reason": row.reason,
                "used": row.used,
            }
        )
    return {"settings": rows}


def iso_time(epoch_s: float) -> str:
    """ISO 8601 in UTC with milliseconds; a time no calendar holds is shown as the epoch."""
    try:
        return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return "1970-01-01T00:00:00.000Z"


def jsonable(value: object, depth: int = 0) -> Any:
    """The same value with only JSON's types: NaN and infinity become null, anything else unknown its text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= _MAX_DEPTH:
        return str(value)[:200]
    if isinstance(value, Mapping):
        return {str(k): jsonable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [jsonable(v, depth + 1) for v in items]
    return str(value)


def port_live(view: EngineView, dpid: Dpid) -> Callable[[int], bool]:
    """Whether a port of that switch is live, as a watch port sees it."""
    switch = view.fabric.switches.get(dpid)

    def live(port: int) -> bool:
        known = switch.ports.get(port) if switch is not None else None
        return known is not None and known.usable

    return live


def _round(number: float) -> float | None:
    return round(number, 3) if math.isfinite(number) else None


def _switch_counts(view: EngineView) -> Json:
    known = view.fabric.switches
    return {
        "total": len(known),
        "connected": sum(s.connected for s in known.values()),
        "in_sync": sum(s.sync == "in_sync" for s in view.switches.values()),
    }


def _switch(view: EngineView, switch: Switch) -> Json:
    state = view.switches.get(switch.dpid) or SwitchStatus("away")
    return {
        "dpid": dpid_text(switch.dpid),
        "name": switch.text,
        "role": view.fabric.roles[switch.dpid].value,
        "address": switch.address,
        "connected": switch.connected,
        "sync": state.sync,
        "drained": switch.drained,
        "audit": _audit(view, switch.dpid),
        "flows": state.flows,
        "groups": state.groups,
        "meters": state.meters,
        "pending": state.pending,
        "failed": len(state.failed),
        "foreign": len(state.foreign),
        "fail_mode": state.fail_mode,
        "ports": [_port(view, switch, switch.ports[n]) for n in sorted(switch.ports)],
    }


def _audit(view: EngineView, dpid: Dpid) -> Json | None:
    """When its tables were last compared, and how many entries were not as they should be."""
    result = view.audits.get(dpid)
    return None if result is None else {"s_ago": _round(max(0.0, view.now_s - result.at_s)), "differences": result.differences}


def _port(view: EngineView, switch: Switch, port: Port) -> Json:
    return {
        "port": port.number,
        "name": port.name or str(port.number),
        "role": port.role.value,
        "up": not port.admin_down and not port.link_down,
        "live": port.usable,
        "drained": port.drained,
        "speed_bps": port.speed_bps,
        "bfd": view.bfd.get(PortRef(switch.dpid, port.number), "off"),
    }


def _link(view: EngineView, link: Link) -> Json:
    held = max(view.held_until_s.get(link.a, 0.0), view.held_until_s.get(link.b, 0.0)) - view.now_s
    return {
        "a": end_json(view, link.a),
        "b": end_json(view, link.b),
        "state": link.state.value,
        "settled": link.settled,
        "bfd": {"a": view.bfd.get(link.a, "off"), "b": view.bfd.get(link.b, "off")},
        "held_for_s": _round(max(0.0, held)) if link.state is LinkState.HELD else 0.0,
    }


def end_json(view: EngineView, end: PortRef) -> Json:
    """One end of a cable."""
    switch = view.fabric.switches.get(end.dpid)
    return {
        "dpid": dpid_text(end.dpid),
        "switch": switch_name(view.fabric, end.dpid),
        "port": end.port,
        "name": port_name(switch, end.port),
    }


def _problems(view: EngineView) -> list[Json]:
    """What the switches hold against us: objects they refused, objects that are not ours, a fail mode that floods."""
    found: list[Json] = []
    for dpid in sorted(view.switches):
        state, name = view.switches[dpid], switch_name(view.fabric, dpid)
        for failed in state.failed[:20]:
            found.append(
                {
                    "switch": name,
                    "kind": "refused",
                    "text": f"{failed.object}: {failed.error}",
                    "why": failed.why,
                    "retries": failed.retries,
                    "retry_in_s": _round(max(0.0, failed.retry_at_s - view.now_s)),
                }
            )
        if state.foreign:
            shown = "; ".join(state.foreign[:3])
            found.append({"switch": name, "kind": "foreign", "text": f"{len(state.foreign)} objects are not ours: {shown}"})
        if state.fail_mode == "standalone":
            found.append(
                {"switch": name, "kind": "fail_mode", "text": "fail mode standalone: it would flood without a controller"}
            )
    return found


def _convergence_summary(view: EngineView) -> Json:
    times = sorted(c.duration_ms for c in view.convergence if math.isfinite(c.duration_ms))
    if not times:
        return {"samples": 0, "median_ms": None, "p99_ms": None}
    rank = min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)
    return {"samples": len(times), "median_ms": _round(statistics.median(times)), "p99_ms": _round(times[rank])}


def _users(tables: Tables) -> Counter[int]:
    """How many rules and other groups send to each group."""
    users: Counter[int] = Counter()
    for flow in tables.flows.values():
        users.update({a.group_id for a in flow.actions if isinstance(a, ToGroup)})
    for group in tables.groups.values():
        users.update(group.references())
    return users


def _group(view: EngineView, dpid: Dpid, tables: Tables, group: Group, used_by: int) -> Json:
    why = tables.group_why.get(group.group_id)
    live = port_live(view, dpid)
    parts = shares(group.buckets)
    return {
        "switch": switch_name(view.fabric, dpid),
        "dpid": dpid_text(dpid),
        "id": group.group_id,
        "id_text": f"{group.group_id:#x}",
        "type": group.type,
        "reason": why.reason if why else "",
        "owner": why.owner if why else "",
        "source": why.source if why else "",
        "used_by": used_by,
        "buckets": [
            _bucket(view.fabric.switches.get(dpid), n, bucket, parts[n], _alive(tables, bucket, live))
            for n, bucket in enumerate(group.buckets)
        ],
    }


def _alive(tables: Tables, bucket: Bucket, live: Callable[[int], bool]) -> bool:
    try:
        return bucket_alive(tables, bucket, live)
    except ContractError:  # groups that watch each other in a circle
        return False


def _bucket(switch: Switch | None, number: int, bucket: Bucket, share: float, live: bool) -> Json:
    return {
        "bucket": number,
        "does": bucket_words(bucket, switch),
        "weight": bucket.weight,
        "share": round(share, 6),
        "watch_port": None if bucket.watch_port == PORT_ANY else bucket.watch_port,
        "watch_port_name": "" if bucket.watch_port == PORT_ANY else port_name(switch, bucket.watch_port),
        "watch_group": None if bucket.watch_group == GROUP_ANY else f"{bucket.watch_group:#x}",
        "live": live,
    }
