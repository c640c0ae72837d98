"""Frames that switches hand up: sorted into discovery, host learning, answers and holding.

Parses ARP, LLDP, neighbour discovery and the IP header and nothing above it (case FUZZ-03).  A frame that does not
parse is counted, dropped and noted at its port.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.discovery import Discovery
from aifabric_ctrl.engine.holding import Holding
from aifabric_ctrl.engine.hosts import Hosts
from aifabric_ctrl.engine.neighbours import Neighbours
from aifabric_ctrl.engine.switches import Switches
from aifabric_ctrl.model import frames, nd
from aifabric_ctrl.model.effects import PacketOut
from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.events import FrameIn
from aifabric_ctrl.model.fabric import Address, PortRole, Reach
from aifabric_ctrl.model.ids import PORT_TABLE, PortRef, is_physical, mac_text
from aifabric_ctrl.model.rules import Output

IpFrame = frames.Ip4Frame | frames.Ip6Frame
REASON_INVALID_TTL = 2  # OFPR_INVALID_TTL


class Intake:
    """Routes each frame to the part of the engine it concerns."""

    def __init__(
        self,
        context: Context,
        switches: Switches,
        discovery: Discovery,
        hosts: Hosts,
        holding: Holding,
        neighbours: Neighbours,
    ) -> None:
        self._context = context
        self._switches = switches
        self._discovery = discovery
        self._hosts = hosts
        self._holding = holding
        self._neighbours = neighbours

    def frame(self, event: FrameIn) -> None:
        """One PACKET_IN."""
        self._context.count("packet_ins")
        record = self._switches.of_session(event.session)
        if record is None or not is_physical(event.port) or event.port not in record.ports:
            self._context.count("frames_from_unknown_ports")
            return
        at = PortRef(record.dpid, event.port)
        try:
            frame = frames.parse_frame(event.data)
        except WireError as problem:
            self._context.count("frames_malformed")
            text = f"{self._switches.text(at)}: {problem.what}"
            self._context.note_quietly(at, "warning", "frame_malformed", text, {"port": str(at)})
            return
        if isinstance(frame, frames.LldpFrame):
            self._discovery.received(at, frame)
        elif record.ports[event.port].role is not PortRole.EDGE:
            self._context.count("frames_before_role_known")
        elif isinstance(frame, frames.ArpFrame):
            self._arp(at, frame)
        elif isinstance(frame, nd.NdFrame):
            self._neighbours.frame(at, frame, self._answerable(frame.target))
        elif isinstance(frame, frames.Ip4Frame | frames.Ip6Frame):
            self._ip(at, frame, event)
        else:
            self._context.count("frames_ignored")

    def _arp(self, at: PortRef, frame: frames.ArpFrame) -> None:
        if frame.src == self._context.intent.gateway_mac:
            # Our own probe, or our own answer, brought back by a cable between two edge ports: nobody there said it.
            self._context.count("arp_own_echo")
            return
        if frame.sender_mac != frame.src:
            self._context.count("arp_sender_differs")
            text = (
                f"{self._switches.text(at)}: {mac_text(frame.src)} sends ARP in the name of {mac_text(frame.sender_mac)}; ignored"
            )
            self._context.note_quietly(at, "warning", "arp_spoofed", text, {"port": str(at)})
            return
        if frame.op == frames.ARP_REPLY:
            self._hosts.answered(frame.sender_ip, frame.sender_mac, at)
            return
        if frame.op != frames.ARP_REQUEST:
            self._context.count("frames_ignored")
            return
        announcement = frame.sender_ip == frame.target_ip
        if frame.sender_ip == IPv4Address(0) or announcement:
            self._defend(at, frame)
        if frame.sender_ip == IPv4Address(0):
            return
        self._hosts.claimed(frame.sender_ip, frame.sender_mac, at)
        if not announcement and self._answerable(frame.target_ip):
            self._reply(at, self._context.intent.gateway_mac, frame)

    def _defend(self, at: PortRef, frame: frames.ArpFrame) -> None:
        """RFC 5227: a probe or announcement is answered only when another live host owns the address."""
        owner = self._hosts.by_ip.get(frame.target_ip)
        gateway = frame.target_ip in self._context.intent.gateways
        if gateway:
            self._reply(at, self._context.intent.gateway_mac, frame)
        elif owner is not None and owner.mac != frame.sender_mac:
            self._reply(at, owner.mac, frame)

    def _reply(self, at: PortRef, mac: int, frame: frames.ArpFrame) -> None:
        record = self._switches.by_dpid[at.dpid]
        if record.session is not None:
            data = frames.arp_reply(mac, frame.target_ip, frame.sender_mac, frame.sender_ip)
            self._context.emit(PacketOut(record.session, (Output(at.port),), data))
            self._context.count("arp_answered")

    def _answerable(self, ip: Address) -> bool:
        """Any unicast address of the fabric's prefixes; with none declared, any but link-local."""
        prefixes = [p for p in self._context.intent.prefixes if p.version == ip.version]
        if ip.is_multicast or ip.is_unspecified or ip.is_loopback or ip.is_link_local or ip.is_reserved:
            return False
        return not self._context.intent.prefixes or any(ip in p for p in prefixes)

    def _ip(self, at: PortRef, frame: IpFrame, event: FrameIn) -> None:
        if frame.src_ip.version == 6 and (frame.src_ip.is_link_local or frame.dst_ip.is_multicast):
            self._context.count("frames_ignored")  # multicast listener reports and the like: every host sends them
            return
        host = self._hosts.by_ip.get(frame.src_ip)
        if self._hosts.known(frame.src_ip, frame.src, at):
            self._from_host(at, frame, event)
            return
        neighbours = self._hosts.at(at)
        # Every IPv6 host has several addresses, some of them new each day (RFC 8981).
        own = frame.src_ip.version == 6 and host is None and any(h.mac == frame.src for h in neighbours)
        if host is not None or (neighbours and not own):
            # Somebody uses an address that is another's, or this port's host uses one that is not its own.
            self._context.count("frames_spoofed")
            text = f"{self._switches.text(at)}: {frame.src_ip} from {mac_text(frame.src)} is not a host of this port"
            self._context.note_quietly(at, "warning", "source_guard", text, {"port": str(at), "ip": str(frame.src_ip)})
        if self._plausible_destination(frame.dst_ip):
            self._hosts.claimed(frame.src_ip, frame.src, at)
            if host is None:
                self._holding.hold(frame.src_ip, at, event.data)

    def _from_host(self, at: PortRef, frame: IpFrame, event: FrameIn) -> None:
        """A frame of a known host that the tables did not carry: its own rules, or its destination, are not there yet."""
        source = self._hosts.by_ip[frame.src_ip]
        if source.reach is not Reach.REACHABLE:
            self._holding.hold(frame.src_ip, at, event.data)
            return
        if not self._plausible_destination(frame.dst_ip) or frame.dst_ip in self._context.intent.gateways:
            self._context.count("frames_ignored")
            return
        destination: Address = frame.dst_ip
        there = self._hosts.by_ip.get(destination)
        if there is not None and there.reach is Reach.REACHABLE:
            self._reinject(at, event, destination)
            return
        self._holding.hold(destination, at, event.data)
        if there is None:
            self._holding.search(destination)

    def _reinject(self, at: PortRef, event: FrameIn, destination: Address) -> None:
        """The rule went in while the frame was on its way up; a frame that keeps coming has another reason."""
        record = self._switches.by_dpid[at.dpid]
        if event.reason == REASON_INVALID_TTL or not self._hosts.fresh(destination):
            self._context.count("frames_unexplained")
        elif record.session is not None:
            self._context.emit(PacketOut(record.session, (Output(PORT_TABLE),), event.data, at.port))
            self._context.count("frames_reinjected")

    def _plausible_destination(self, ip: Address) -> bool:
        return self._answerable(ip) and ip != IPv4Address(0xFFFFFFFF)
