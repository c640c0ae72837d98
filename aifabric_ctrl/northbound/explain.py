"""Answers "why A B" and "paths A B" from one view: every rule on the way, the reason it exists, every hash choice.

What is explained is what was compiled; a switch that is away or not in sync may hold something else, and the answer
says so.  Pure: it sends nothing and asks no switch.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from itertools import islice, pairwise

import networkx as nx

from aifabric_ctrl.engine.view import EngineView
from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.model.fabric import Address, Host, Reach
from aifabric_ctrl.model.fields import ETH_IP, ETH_IP6, IPPROTO_ICMP, IPPROTO_ICMP6, IPPROTO_TCP, IPPROTO_UDP
from aifabric_ctrl.model.ids import Dpid, PortRef, dpid_text
from aifabric_ctrl.model.rules import SELECT, Why
from aifabric_ctrl.northbound.follow import MAX_WAYS, Choice, Goal, Journey, Visit, choice_share, exit_words, follow, hop_words
from aifabric_ctrl.northbound.names import Endpoint, find_endpoint
from aifabric_ctrl.northbound.views import Json, host_json, no_pause, port_live
from aifabric_ctrl.northbound.words import bucket_words, flow_words, group_title, port_name, switch_name, table_name
from aifabric_ctrl.verify.executor import GroupChoice, Packet, Step

PROTOCOLS = ("icmp", "tcp", "udp")
DEFAULT_SOURCE_PORT = 49_152
DEFAULT_DESTINATION_PORT = {"tcp": 5001, "udp": 4791}  # iperf; RoCE

HASH_NOTE = "which bucket of a select group a flow takes is the switch's hash and cannot be foretold: every choice is shown"


def why(
    view: EngineView,
    source: str,
    destination: str,
    protocol: str = "icmp",
    source_port: int | None = None,
    destination_port: int | None = None,
    pause: Callable[[], None] = no_pause,
) -> Json:
    """Every rule a packet from ``source`` to ``destination`` meets.

    Raises:
        InvalidValue: a name is not known, or the protocol or a port number is wrong.
    """
    goal = _goal(view, source, destination)
    packet = build_packet(view, goal, protocol, source_port, destination_port)
    journey = follow(view, goal, packet, pause)
    return {
        "from": _end(view, goal.source),
        "to": _end(view, goal.host) if goal.host else {"ip": _address(goal), "gateway": goal.own},
        "packet": packet_words(packet),
        "delivered": journey.delivered > 0.999,
        "delivered_share": round(journey.delivered, 4),
        "verdict": verdict(goal, journey),
        "back": _back(view, goal, protocol, source_port, destination_port, pause),
        "notes": _notes(view, goal, journey),
        "hops": [_hop(view, visit) for visit in journey.visits.values()],
    }


def paths(view: EngineView, source: str, destination: str, pause: Callable[[], None] = no_pause) -> Json:
    """Every way a flow may take by the compiled tables, beside the shortest ways over the cables.

    Raises:
        InvalidValue: a name is not known, or the destination is not a known host.
    """
    goal = _goal(view, source, destination)
    if goal.host is None:
        raise InvalidValue(
            f"no host is known to have {_address(goal)}", f"see 'aifabric hosts', or ask 'aifabric why {source} {destination}'"
        )
    journey = follow(view, goal, build_packet(view, goal, "tcp"), pause)
    ways = sorted(journey.ways, key=lambda w: (bool(w.stops), -w.share, w.crossed))
    shortest = _shortest(view, goal.source.at.dpid, goal.host.at.dpid)
    used = {hop_words(view, w.crossed) for w in ways if not w.stops}
    unused = [{"path": text, "why": bad or "the rules do not use it"} for text, bad in shortest.items() if text not in used]
    return {
        "from": _end(view, goal.source),
        "to": _end(view, goal.host),
        "paths": [
            {
                "share": round(w.share, 4),
                "text": hop_words(view, w.crossed),
                "delivered": not w.stops,
                "stops": w.stops,
                "hops": [_crossing(view, into, out) for into, out in w.crossed],
            }
            for w in ways
        ],
        "graph": {"paths": list(shortest), "unused": unused},
        "delivered": journey.delivered > 0.999,
        "text": _paths_words(goal, journey, used, shortest, unused),
    }


def build_packet(
    view: EngineView, goal: Goal, protocol: str, source_port: int | None = None, destination_port: int | None = None
) -> Packet:
    """The packet as the source's machine sends it: to the gateway's MAC, which answers for every address.

    Raises:
        InvalidValue: unknown protocol, or a port number that is out of range or given for ICMP.
    """
    if protocol not in PROTOCOLS:
        raise InvalidValue(f"protocol {protocol[:20]!r} is not known", f"use one of {', '.join(PROTOCOLS)}")
    for port in (source_port, destination_port):
        if port is not None and not 0 <= port <= 65_535:
            raise InvalidValue(f"port {port} is not between 0 and 65535", "use a TCP or UDP port number")
    six = goal.version == 6
    fields = {
        "eth_dst": view.intent.gateway_mac,
        "eth_src": goal.source.mac,
        "eth_type": ETH_IP6 if six else ETH_IP,
        "ip_dscp": 0,
        "nw_ttl": 64,
        "nw_frag": 0,
        "ipv6_src" if six else "ipv4_src": int(goal.source.ip),
        "ipv6_dst" if six else "ipv4_dst": goal.address,
    }
    if protocol == "icmp":
        if source_port is not None or destination_port is not None:
            raise InvalidValue("ICMP has no ports", "add --protocol tcp or udp, or leave the ports out")
        fields |= {"ip_proto": IPPROTO_ICMP6, "icmpv6_type": 128, "icmpv6_code": 0} if six else {}
        fields |= {} if six else {"ip_proto": IPPROTO_ICMP, "icmpv4_type": 8, "icmpv4_code": 0}
    else:
        fields["ip_proto"] = IPPROTO_TCP if protocol == "tcp" else IPPROTO_UDP
        fields[f"{protocol}_src"] = DEFAULT_SOURCE_PORT if source_port is None else source_port
        fields[f"{protocol}_dst"] = DEFAULT_DESTINATION_PORT[protocol] if destination_port is None else destination_port
        fields |= {"tcp_flags": 0x02} if protocol == "tcp" else {}
    return Packet(fields)


def packet_words(packet: Packet) -> str:
    """``udp 10.0.0.1:49152 -> 10.0.0.2:4791``."""
    six = packet.get("eth_type") == ETH_IP6
    make: Callable[[int], Address] = _v6 if six else _v4
    source, destination = (make(packet[n]) for n in (("ipv6_src", "ipv6_dst") if six else ("ipv4_src", "ipv4_dst")))
    for name in ("tcp", "udp"):
        if f"{name}_src" in packet:
            shown = [f"[{a}]" if six else str(a) for a in (source, destination)]
            return f"{name} {shown[0]}:{packet[f'{name}_src']} -> {shown[1]}:{packet[f'{name}_dst']}"
    return f"icmp echo {source} -> {destination}"


def verdict(goal: Goal, journey: Journey) -> str:
    """One sentence: does it get there, and if not, where and why it stops."""
    source, target = goal.source.ip, _address(goal)
    stops = sorted({w.stops for w in journey.ways if w.stops})
    if journey.delivered > 0.999 and not stops:
        if goal.own:
            return f"{target} is the fabric's own address and answers {source}"
        ways = len({w.crossed for w in journey.ways})
        return f"{source} reaches {target} by {ways} way{'s' if ways != 1 else ''}"
    why_not = stops[0] if stops else "nothing comes out of the first switch"
    more = f" (and {len(stops) - 1} other places)" if len(stops) > 1 else ""
    if journey.delivered == 0:
        return f"{source} does not reach {target}: {why_not}{more}"
    return f"{source} reaches {target} for {journey.delivered:.0%} of flows only: else {why_not}{more}"


def _goal(view: EngineView, source: str, destination: str) -> Goal:
    start, end = find_endpoint(view, source), find_endpoint(view, destination)
    if not start.hosts:
        raise InvalidValue(f"no host is known to have {start.text}", "name a host of 'aifabric hosts' as the sender")
    if end.address is not None:
        return _goal_to(view, start, end.address, end.hosts[0] if end.hosts else None)
    for host in end.hosts:
        if start.of_version(host.ip.version) is not None:
            return _goal_to(view, start, host.ip, host)
    raise InvalidValue(f"{start.text} and {end.text} have no IP version in common", "name addresses of one version")


def _goal_to(view: EngineView, start: Endpoint, address: Address, host: Host | None) -> Goal:
    source = start.of_version(address.version)
    if source is None:
        raise InvalidValue(f"{start.text} has no IPv{address.version} address", "name addresses of one version")
    return Goal(source, int(address), address.version, host, own=address in view.intent.gateways)


def _back(
    view: EngineView, goal: Goal, protocol: str, source_port: int | None, destination_port: int | None, pause: Callable[[], None]
) -> Json | None:
    """Whether answers get back; None when the fabric itself or nobody would answer."""
    if goal.host is None or goal.own:
        return None
    other = Goal(goal.host, int(goal.source.ip), goal.version, goal.source)
    ports = (source_port, destination_port)
    if protocol != "icmp":
        ports = (
            DEFAULT_SOURCE_PORT if source_port is None else source_port,
            destination_port or DEFAULT_DESTINATION_PORT[protocol],
        )
    journey = follow(view, other, build_packet(view, other, protocol, ports[1], ports[0]), pause)
    return {"delivered": journey.delivered > 0.999, "verdict": verdict(other, journey)}


def _v4(number: int) -> Address:
    return IPv4Address(number)


def _v6(number: int) -> Address:
    return IPv6Address(number)


def _address(goal: Goal) -> str:
    return str(_v4(goal.address) if goal.version == 4 else _v6(goal.address))


def _end(view: EngineView, host: Host) -> Json:
    return host_json(view, host)


def _notes(view: EngineView, goal: Goal, journey: Journey) -> list[str]:
    notes: list[str] = []
    if any(len(v.choices) > 1 for v in journey.visits.values()):
        notes.append(HASH_NOTE)
    for host in (goal.source, goal.host):
        if host is not None and host.reach is not Reach.REACHABLE:
            notes.append(f"{host.ip} is still being spread through the fabric (now {host.reach.name.lower()})")
    for dpid in dict.fromkeys(v.at.dpid for v in journey.visits.values()):
        state, switch = view.switches.get(dpid), view.fabric.switches.get(dpid)
        name = switch_name(view.fabric, dpid)
        if switch is not None and not switch.connected:
            notes.append(f"{name} is not connected: it keeps forwarding by the rules it has, which may differ from these")
        elif state is not None and state.sync != "in_sync":
            notes.append(f"{name} is not in sync ({state.sync}): the rules it has may differ from these")
    if journey.cut_short:
        notes.append("there are more ways than are followed; the answer is not complete")
    return notes


def _hop(view: EngineView, visit: Visit) -> Json:
    switch = view.fabric.switches.get(visit.at.dpid)
    return {
        "switch": switch_name(view.fabric, visit.at.dpid),
        "dpid": dpid_text(visit.at.dpid),
        "in_port": visit.at.port,
        "in_port_name": port_name(switch, visit.at.port),
        "ttl": visit.packet.get("nw_ttl"),
        "error": visit.error,
        "choices": [_choice(view, visit.at, choice) for choice in visit.choices],
    }


def _choice(view: EngineView, at: PortRef, choice: Choice) -> Json:
    return {
        "share": round(choice.share, 4),
        "variants": choice.variants,
        "tables": [_step(view, at.dpid, step) for step in choice.outcome.trace],
        "outputs": [
            {
                "port": e.sent.port,
                "name": port_name(view.fabric.switches.get(at.dpid), e.sent.port),
                "text": exit_words(view, PortRef(at.dpid, e.sent.port)),
                "queue": e.sent.queue,
                "to": e.to,
                "delivered": e.delivered,
                "stops": e.stops,
            }
            for e in choice.exits
        ],
        "stops": choice.stops,
    }


def _step(view: EngineView, dpid: Dpid, step: Step) -> Json:
    flow = step.flow
    tables = view.desired.tables[dpid]
    answer: Json = {"table": step.table, "name": table_name(step.table), "note": step.text}
    if flow is None:
        return {**answer, "priority": None, "match": "no rule matches", "actions": ["drop"], "why": _why(None), "groups": []}
    return {
        **answer,
        "priority": flow.priority,
        "match": str(flow.match),
        "actions": flow_words(flow, view.fabric.switches.get(dpid)),
        "why": _why(tables.why.get(flow.key)),
        "groups": [_group(view, dpid, choice) for choice in step.groups],
    }


def _group(view: EngineView, dpid: Dpid, choice: GroupChoice) -> Json:
    tables, switch = view.desired.tables[dpid], view.fabric.switches.get(dpid)
    bucket = choice.bucket
    return {
        "id": choice.group.group_id,
        "text": group_title(choice.group),
        "type": choice.group.type,
        "why": _why(tables.group_why.get(choice.group.group_id)),
        "bucket": choice.number,
        "buckets": len(choice.group.buckets),
        "does": "no bucket is live" if bucket is None else bucket_words(bucket, switch),
        "share": round(choice_share(tables, choice, port_live(view, dpid)), 4) if choice.group.type == SELECT else None,
    }


def _why(reason: Why | None) -> Json:
    return (
        {"owner": "", "reason": "", "source": ""}
        if reason is None
        else {
            "owner": reason.owner,
            "reason": reason.reason,
            "source": reason.source,
        }
    )


def _crossing(view: EngineView, into: PortRef, out: PortRef) -> Json:
    switch = view.fabric.switches.get(into.dpid)
    return {
        "switch": switch_name(view.fabric, into.dpid),
        "dpid": dpid_text(into.dpid),
        "in_port": into.port,
        "in_port_name": port_name(switch, into.port),
        "out_port": out.port,
        "out_port_name": port_name(switch, out.port),
    }


def _shortest(view: EngineView, start: Dpid, end: Dpid) -> dict[str, str]:
    """The shortest ways over all known cables, by the switches' names, each with what blocks it (empty: nothing does)."""
    whole = view.fabric.graph
    states: dict[frozenset[Dpid], str] = {}
    for a, b, state in whole.edges(data="state"):
        pair = frozenset((a, b))
        states[pair] = "up" if state == "up" else states.get(pair, state)  # of parallel cables one is enough
    plain = nx.Graph(tuple(pair) for pair in states if len(pair) == 2)
    plain.add_nodes_from(whole.nodes)
    if start not in plain or end not in plain or not nx.has_path(plain, start, end):
        return {}
    ways: dict[str, str] = {}
    for way in islice(nx.all_shortest_paths(plain, start, end), MAX_WAYS):
        names = [switch_name(view.fabric, dpid) for dpid in way]
        bad = (
            f"{names[n]} to {names[n + 1]} is {states[frozenset(pair)]}"
            for n, pair in enumerate(pairwise(way))
            if states[frozenset(pair)] != "up"
        )
        ways[" > ".join(names)] = next(bad, "")
    return dict(sorted(ways.items()))


def _paths_words(goal: Goal, journey: Journey, used: set[str], shortest: dict[str, str], unused: list[Json]) -> str:
    if journey.delivered < 0.999:
        return verdict(goal, journey)
    text = f"{len(shortest) - len(unused)} of {len(shortest)} shortest ways in use"
    detours = len(used - set(shortest))
    if detours:
        text += f", and {detours} detour{'s' if detours != 1 else ''} (switches repair a failure until the controller has)"
    named = ", ".join(f"{way['path']} ({way['why']})" for way in unused[:8])
    return f"{text}; not in use: {named}" if unused else text
