"""Probe packets: headers, payload, RoCE source ports. Pure; opens no socket.

Layer-4 headers are made by hand and sent through raw sockets, so that one socket a host can carry any number of flows.
TCP segments carry RST and ICMP probes are echo replies nobody asked for: no host answers either, so a flow stays one-way and
costs nothing at the far end.
"""

import random
import socket
import struct

MAGIC = 0xA1FAB41C
PAYLOAD = struct.Struct("!III")  # magic, flow id, sequence number
UDP_HEADER = struct.Struct("!HHHH")
TCP_HEADER = struct.Struct("!HHIIBBHHH")
TCP_RST = 0x04
ICMP_HEADER = struct.Struct("!BBHHH")
ICMP6_ECHO_REPLY = 129
PADDING = b"\0" * 16
ROCE_PORT = 4791

PROTOCOLS = {"udp": socket.IPPROTO_UDP, "tcp": socket.IPPROTO_TCP, "icmp": socket.IPPROTO_ICMP}


CHECKSUM_AT = {"udp": 6, "tcp": 16}  # where the kernel writes it for a raw IPv6 socket


def protocol_number(name: str, six: bool) -> int:
    return socket.IPPROTO_ICMPV6 if six and name == "icmp" else PROTOCOLS[name]


def segment(protocol: int, source_port: int, destination_port: int, flow: int, sequence: int, six: bool = False) -> bytes:
    """Header and payload of one probe. The UDP checksum is 0 (none, RFC 768); nothing here looks at TCP's or ICMP's.

    ICMP has no ports: the source port is its identifier. Over IPv6 the kernel fills the checksums in.
    """
    payload = PAYLOAD.pack(MAGIC, flow, sequence) + PADDING
    if protocol == socket.IPPROTO_UDP:
        return UDP_HEADER.pack(source_port, destination_port, 8 + len(payload), 0) + payload
    if protocol == socket.IPPROTO_ICMP:
        return ICMP_HEADER.pack(ICMP6_ECHO_REPLY if six else 0, 0, 0, source_port, sequence & 0xFFFF) + payload
    return TCP_HEADER.pack(source_port, destination_port, sequence & 0xFFFFFFFF, 0, 5 << 4, TCP_RST, 0, 0, 0) + payload


def parse_ipv4(packet: memoryview) -> tuple[int, int] | None:
    """(flow id, sequence number) of a probe that starts at the IPv4 header; None for any other packet."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return None
    return parse_layer4(packet[9], packet[(packet[0] & 15) * 4 :])


def parse_ip(packet: memoryview) -> tuple[int, int] | None:
    """The same for either version of IP."""
    if len(packet) >= 40 and packet[0] >> 4 == 6:
        return parse_layer4(packet[6], packet[40:])
    return parse_ipv4(packet)


def parse_layer4(protocol: int, packet: memoryview) -> tuple[int, int] | None:
    """The same for what follows the IP header."""
    if protocol in (socket.IPPROTO_UDP, socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6):
        return parse_payload(packet[8:])
    if protocol == socket.IPPROTO_TCP and len(packet) > 12:
        return parse_payload(packet[(packet[12] >> 4) * 4 :])
    return None


def parse_payload(payload: memoryview) -> tuple[int, int] | None:
    if len(payload) < PAYLOAD.size:
        return None
    magic, flow, sequence = PAYLOAD.unpack_from(payload)
    return (flow, sequence) if magic == MAGIC else None


def sequential_ports(queue_pairs: int, seed: int) -> list[int]:
    """Source ports one after the other from a random start in RoCE's range."""
    start = random.Random(seed).randrange(0xC000, 0x10000 - queue_pairs)
    return [start + i for i in range(queue_pairs)]


def derived_ports(queue_pairs: int, seed: int) -> list[int]:
    """Source ports as Linux derives them from the queue pair numbers of both ends when the application sets no flow label.

    The arithmetic is that of rdma_calc_flow_label and rdma_flow_label_to_udp_sport (include/rdma/ib_verbs.h). Queue pairs of
    one job are created in a loop, so the numbers are consecutive at each end, from wherever each adapter's allocator stands.
    """
    rng = random.Random(seed)
    local, remote = rng.randrange(0x100, 0xF00000), rng.randrange(0x100, 0xF00000)
    return [source_port(local + i, remote + i) for i in range(queue_pairs)]


def source_port(local_qpn: int, remote_qpn: int) -> int:
    value = local_qpn * remote_qpn
    value ^= value >> 20
    value ^= value >> 40
    label = value & 0xFFFFF
    return ((label & 0x3FFF) ^ (label >> 14)) | 0xC000
