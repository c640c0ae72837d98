"""Builds EngineView values for the northbound's tests: a leaf-spine with compiled tables, no engine and no switch."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from aifabric_ctrl.compile import compile_fabric
from aifabric_ctrl.engine.view import Convergence, EngineView, JournalEntry, SwitchStatus
from aifabric_ctrl.model.fabric import Fabric, Features, Host, Link, LinkState, Port, PortRole, Reach, Switch
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Desired

SPINE_BASE = 0x100
OVS = Features(bundles=True, nicira=True, description="Open vSwitch")


def port(number: int, name: str, role: PortRole, down: bool = False) -> Port:
    return Port(number, name, 0x020000000000 + number, link_down=down, live=not down, ever_live=True, speed_bps=10**10, role=role)


def fabric(leaves: int = 4, spines: int = 2, hosts: int = 2, down: tuple[tuple[int, int], ...] = ()) -> Fabric:
    """Leaf L is dpid L with hosts 10.0.L.1.. at ports 1.. and uplink to spine S at 100+S; ``down``: dead (leaf, spine)."""
    switches: dict[int, Switch] = {}
    links: list[Link] = []
    for leaf in range(1, leaves + 1):
        ports = {n: port(n, f"leaf{leaf}-eth{n}", PortRole.EDGE) for n in range(1, hosts + 1)}
        for spine in range(1, spines + 1):
            up = 100 + spine
            ports[up] = port(up, f"leaf{leaf}-up{spine}", PortRole.FABRIC, (leaf, spine) in down)
            state = LinkState.DOWN if (leaf, spine) in down else LinkState.UP
            links.append(Link(PortRef(leaf, up), PortRef(SPINE_BASE + spine, leaf), state))
        switches[leaf] = Switch(leaf, f"leaf{leaf}", f"10.9.0.{leaf}:4{leaf}", True, True, ports, OVS)
    for spine in range(1, spines + 1):
        ports = {n: port(n, f"spine{spine}-eth{n}", PortRole.FABRIC, (n, spine) in down) for n in range(1, leaves + 1)}
        dpid = SPINE_BASE + spine
        switches[dpid] = Switch(dpid, f"spine{spine}", f"10.9.1.{spine}:4{spine}", True, True, ports, OVS)
    found = {}
    for leaf in range(1, leaves + 1):
        for n in range(1, hosts + 1):
            ip = IPv4Address(f"10.0.{leaf}.{n}")
            found[ip] = Host(ip, 0x020000000000 | leaf << 8 | n, PortRef(leaf, n), Reach.REACHABLE, since_s=10.0, seen_s=95.0)
    return Fabric(switches, tuple(links), found)


def view(of: Fabric | None = None, intent: Intent | None = None, desired: Desired | None = None, **changes: object) -> EngineView:
    """A ready view of ``of`` at second 100, its tables compiled unless given."""
    of = of if of is not None else fabric()
    intent = intent or Intent()
    tables = desired if desired is not None else compile_fabric(of, intent)
    made = EngineView(
        now_s=100.0,
        ready=True,
        not_ready=(),
        fabric=of,
        intent=intent,
        desired=tables,
        switches={
            dpid: SwitchStatus(
                "in_sync", len(tables.tables[dpid].flows) if dpid in tables.tables else 0, fail_mode="secure", connected_at_s=1.0
            )
            for dpid in of.switches
        },
        bfd={end: "up" for link in of.links for end in (link.a, link.b)},
        journal=journal(3),
        counters={"packet_ins": 7, "journal_link_up": 2},
        convergence=(
            Convergence("port down leaf1:101", 50.0, 1.5, 12.5, 4, 3),
            Convergence("port up leaf1:101", 60.0, 2.5, 30.25, 4, 3),
        ),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def journal(count: int, first: int = 1) -> tuple[JournalEntry, ...]:
    return tuple(
        JournalEntry(n, float(n), "alarm" if n % 3 == 0 else "info", "link_up", f"line {n}", {"n": n})
        for n in range(first, first + count)
    )
