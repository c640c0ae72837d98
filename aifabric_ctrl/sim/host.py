"""A fake host's network stack: ARP and neighbour discovery with a cache, echo, and a record of what arrived.

Pure: packets in, packets out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aifabric_ctrl.model.fields import ETH_ARP, ETH_IP, ETH_IP6, IPPROTO_ICMP
from aifabric_ctrl.model.nd import ADVERT, SOLICIT
from aifabric_ctrl.sim.topology import FakeHost
from aifabric_ctrl.verify.packet import (
    BROADCAST_MAC,
    Packet,
    arp_reply,
    arp_request,
    icmp4_echo,
    icmp6_echo,
    neighbour_advert,
    neighbour_solicit,
    udp4,
)

PENDING_MAX = 3  # packets kept per unresolved neighbour, as Linux does (unres_qlen of old)


@dataclass
class HostStack:
    """One host in one flat subnet: it asks for every destination by ARP."""

    host: FakeHost
    neighbours: dict[int, int] = field(default_factory=dict)
    received: list[Packet] = field(default_factory=list)  # everything addressed to this host that is not ARP
    foreign: list[Packet] = field(default_factory=list)  # unicast frames for others: nobody may flood them here
    unasked_arp: int = 0  # ARP requests for other addresses that reached this host
    _pending: dict[int, list[Packet]] = field(default_factory=dict)

    def receive(self, packet: Packet) -> list[Packet]:
        """A frame arrives; the answers to send."""
        if packet.get("icmpv6_type") in (SOLICIT, ADVERT):
            return self._nd(packet)
        if packet["eth_dst"] not in (self.host.mac, BROADCAST_MAC):
            if not packet["eth_dst"] >> 40 & 1:
                self.foreign.append(packet)
            return []
        if packet["eth_type"] == ETH_ARP:
            return self._arp(packet)
        self.received.append(packet)
        if self.host.answers and packet.get("icmpv6_type") == 128 and packet["ipv6_dst"] == self.host.ip6:
            echo6 = icmp6_echo(self.host.mac, 0, self.host.ip6, packet["ipv6_src"], reply=True)
            return self.send(Packet(dict(echo6), packet.payload))
        if not self.host.answers or packet["eth_type"] != ETH_IP or packet.get("ipv4_dst") != self.host.ip:
            return []
        if packet.get("ip_proto") == IPPROTO_ICMP and packet.get("icmpv4_type") == 8:
            echo = icmp4_echo(self.host.mac, 0, self.host.ip, packet["ipv4_src"], reply=True)
            return self.send(Packet(dict(echo), packet.payload))
        return []

    def _arp(self, packet: Packet) -> list[Packet]:
        if packet["arp_op"] == 2:
            if packet["arp_tpa"] != self.host.ip:
                return []
            self.neighbours[packet["arp_spa"]] = packet["eth_src"]
            waiting = self._pending.pop(packet["arp_spa"], [])
            return [p.with_fields(eth_dst=packet["arp_sha"]) for p in waiting]
        if packet["arp_tpa"] != self.host.ip:
            self.unasked_arp += 1
            return []
        if not self.host.answers or packet["arp_op"] != 1:
            return []
        return [arp_reply(self.host.mac, self.host.ip, packet["arp_sha"], packet["arp_spa"])]

    def _nd(self, packet: Packet) -> list[Packet]:
        if packet["icmpv6_type"] == ADVERT:
            if packet["ipv6_dst"] != self.host.ip6:
                return []
            self.neighbours[packet["nd_target"]] = packet["nd_tll"]
            waiting = self._pending.pop(packet["nd_target"], [])
            return [p.with_fields(eth_dst=packet["nd_tll"]) for p in waiting]
        if packet["nd_target"] != self.host.ip6:
            self.unasked_arp += 1
            return []
        if not self.host.answers:
            return []
        return [neighbour_advert(self.host.mac, self.host.ip6, packet["eth_src"], packet["ipv6_src"])]

    def send(self, packet: Packet) -> list[Packet]:
        """Send an IP packet: at once to a known neighbour, else after asking for it."""
        six = packet["eth_type"] == ETH_IP6
        target = packet["ipv6_dst" if six else "ipv4_dst"]
        known = self.neighbours.get(target)
        if known is not None:
            return [packet.with_fields(eth_src=self.host.mac, eth_dst=known)]
        waiting = self._pending.setdefault(target, [])
        if len(waiting) < PENDING_MAX:
            waiting.append(packet.with_fields(eth_src=self.host.mac))
        if six:
            return [neighbour_solicit(self.host.mac, self.host.ip6, target)]
        return [arp_request(self.host.mac, self.host.ip, target)]

    def ping6(self, ip: int, ident: int) -> list[Packet]:
        """An echo request over IPv6."""
        echo = icmp6_echo(self.host.mac, 0, self.host.ip6, ip)
        return self.send(Packet(dict(echo), ident.to_bytes(4, "big")))

    def ping(self, ip: int, ident: int) -> list[Packet]:
        """An echo request; ``ident`` tells the answer from others."""
        echo = icmp4_echo(self.host.mac, 0, self.host.ip, ip)
        return self.send(Packet(dict(echo), ident.to_bytes(4, "big")))

    def udp(self, ip: int, sport: int, dport: int) -> list[Packet]:
        """One UDP packet."""
        return self.send(udp4(self.host.mac, 0, self.host.ip, ip, sport, dport))

    def answered(self, ip: int, ident: int) -> bool:
        """The answer to that ping has arrived."""
        wanted = ident.to_bytes(4, "big")
        return any(
            (p.get("icmpv4_type"), p.get("ipv4_src")) == (0, ip) or (p.get("icmpv6_type"), p.get("ipv6_src")) == (129, ip)
            for p in self.received
            if p.payload == wanted
        )
