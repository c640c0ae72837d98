"""IPv6 neighbour and router discovery that the switches hand up: learning, answers, duplicates, router advertisements.

The counterpart of ARP in ``intake``.  A message is believed to come from the MAC of its Ethernet header only; a
link-layer option that says otherwise is refused as ARP's sender is.
"""

from __future__ import annotations

import heapq
from ipaddress import IPv6Address, IPv6Network

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.hosts import Hosts
from aifabric_ctrl.engine.switches import Switches
from aifabric_ctrl.model import nd
from aifabric_ctrl.model.effects import PacketOut
from aifabric_ctrl.model.fabric import PortRole
from aifabric_ctrl.model.ids import PortRef, mac_text
from aifabric_ctrl.model.rules import Output

RA_LIFETIME_S = 9000  # the longest a router may announce (RFC 4861, 6.2.1): hosts outlive a controller that is away
RA_EVERY_S = 1800.0  # MaxRtrAdvInterval's upper bound; several are lost before a host forgets us
RA_ANSWER_S = 1.0  # a port's solicitations are answered at most this often; a host asks three times, 4 s apart
SLAAC_BITS = 64  # the only prefix length from which hosts make addresses (RFC 4862)


class Neighbours:
    """Neighbour discovery of all edge ports."""

    def __init__(self, context: Context, switches: Switches, hosts: Hosts) -> None:
        self._context = context
        self._switches = switches
        self._hosts = hosts
        self._told: dict[PortRef, float] = {}  # when a port last got an advertisement of ours
        self._due: list[tuple[float, PortRef]] = []

    def frame(self, at: PortRef, frame: nd.NdFrame, answerable: bool) -> None:
        """One message from an edge port; ``answerable``: its target lies in the fabric's prefixes."""
        if frame.src == self._context.intent.gateway_mac:
            self._context.count("nd_own_echo")
            return
        if frame.link_mac not in (None, frame.src):
            self._context.count("nd_sender_differs")
            text = (
                f"{self._switches.text(at)}: {mac_text(frame.src)} speaks in the name of {mac_text(frame.link_mac or 0)}; ignored"
            )
            self._context.note_quietly(at, "warning", "nd_spoofed", text, {"port": str(at)})
            return
        match frame.kind:
            case nd.SOLICIT:
                self._solicit(at, frame, answerable)
            case nd.ADVERT:
                self._hosts.answered(frame.target, frame.src, at)
            case nd.ROUTER_SOLICIT:
                self._router_wanted(at, frame)
            case nd.ROUTER_ADVERT:
                self._router_spoke(at, frame)
            case _:
                self._context.count("frames_ignored")

    def _solicit(self, at: PortRef, frame: nd.NdFrame, answerable: bool) -> None:
        intent = self._context.intent
        if frame.src_ip == nd.UNSPECIFIED:
            self._defend(at, frame)
            return
        if not frame.src_ip.is_link_local:
            self._hosts.claimed(frame.src_ip, frame.src, at)
        if answerable or frame.target in intent.gateways or frame.target == nd.link_local(intent.gateway_mac):
            flags = nd.FLAG_ROUTER | nd.FLAG_SOLICITED | nd.FLAG_OVERRIDE
            gateway = intent.gateway_mac
            self._send(at, nd.advert(gateway, frame.target, gateway, frame.src, frame.src_ip, flags))
            self._context.count("nd_answered")

    def _defend(self, at: PortRef, frame: nd.NdFrame) -> None:
        """A probe for duplicates is answered only when somebody else has the address (RFC 4862, 5.4.3)."""
        intent = self._context.intent
        owner = self._hosts.by_ip.get(frame.target)
        mac: int | None = None
        if frame.target in intent.gateways or frame.target == nd.link_local(intent.gateway_mac):
            mac = intent.gateway_mac
        elif owner is not None and owner.mac != frame.src:
            mac = owner.mac
        if mac is not None:
            self._send(at, nd.advert(mac, frame.target, mac, nd.ALL_NODES_MAC, nd.ALL_NODES, nd.FLAG_OVERRIDE))
            self._context.count("nd_defended")

    # -- routers -----------------------------------------------------------------------------------------------------

    def _router_wanted(self, at: PortRef, frame: nd.NdFrame) -> None:
        if self._told.get(at, -RA_ANSWER_S) + RA_ANSWER_S > self._context.now:
            self._context.count("router_solicitations_throttled")
            return
        lone = frame.src_ip != nd.UNSPECIFIED
        self._advertise(at, frame.src if lone else nd.ALL_NODES_MAC, frame.src_ip if lone else nd.ALL_NODES)

    def _advertise(self, at: PortRef, dst_mac: int = nd.ALL_NODES_MAC, dst_ip: IPv6Address = nd.ALL_NODES) -> None:
        intent, blueprint = self._context.intent, self._context.blueprint
        slaac = [p for p in intent.prefixes if isinstance(p, IPv6Network) and p.prefixlen == SLAAC_BITS]
        managed = any(a.version == 6 for a in blueprint.dhcp_servers)
        if at not in self._told:
            heapq.heappush(self._due, (self._context.now + RA_EVERY_S, at))
        self._told[at] = self._context.now
        self._send(at, nd.router_advert(intent.gateway_mac, RA_LIFETIME_S, slaac, dst_mac, dst_ip, managed))
        self._context.count("router_advertisements_sent")

    def _router_spoke(self, at: PortRef, frame: nd.NdFrame) -> None:
        """Advertisements reach nobody (the rule that brought this up drops them); a declared router's port may send them."""
        port = self._switches.port(at)
        names = {at.port, port.name if port else ""}
        if any(rule.router and rule.port.dpid == at.dpid and rule.port.port in names for rule in self._context.blueprint.ports):
            self._context.count("router_advertisements_ignored")
            return
        text = (
            f"{self._switches.text(at)}: {mac_text(frame.src)} advertises itself as a router and is not declared as one; "
            "dropped, no host has seen it"
        )
        self._context.note_quietly(at, "alarm", "rogue_router", text, {"port": str(at), "mac": mac_text(frame.src)})

    def next_deadline(self) -> float | None:
        return self._due[0][0] if self._due else None

    def tick(self) -> None:
        """Advertise again where somebody once asked, while a port is still for hosts."""
        now = self._context.now
        while self._due and self._due[0][0] <= now:
            _, at = heapq.heappop(self._due)
            port = self._switches.port(at)
            if port is None or port.role is not PortRole.EDGE:
                self._told.pop(at, None)
                continue
            heapq.heappush(self._due, (now + RA_EVERY_S, at))
            if port.usable:
                self._advertise(at)

    def _send(self, at: PortRef, data: bytes) -> None:
        record = self._switches.by_dpid.get(at.dpid)
        if record is not None and record.session is not None:
            self._context.emit(PacketOut(record.session, (Output(at.port),), data))
