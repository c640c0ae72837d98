"""Frames written from packets are what tcpdump would expect, and read back as the same packets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.sim.frame import checksum16, frame_of, packet_of
from aifabric_ctrl.verify.packet import FRAG_LATER, Packet, arp_request, icmp4_echo, tcp4, udp4

macs = st.integers(0, (1 << 48) - 1)
ips = st.integers(0, (1 << 32) - 1)
ports = st.integers(0, 65535)


@given(macs, macs, ips, ips, ports, ports, st.integers(0, 255), st.integers(0, 63), st.binary(max_size=40))
def test_udp_round_trip(a: int, b: int, c: int, d: int, e: int, f: int, ttl: int, dscp: int, payload: bytes) -> None:
    packet = Packet(dict(udp4(a, b, c, d, e, f, ttl, dscp)), payload)
    assert packet_of(frame_of(packet)) == packet


@pytest.mark.parametrize(
    "packet",
    [
        tcp4(1, 2, 3, 4, 5, 6, flags=0x12),
        icmp4_echo(1, 2, 3, 4),
        arp_request(0x02AA, 0x0A000001, 0x0A000002),
        udp4(1, 2, 3, 4, 5, 6, frag=FRAG_LATER),
        Packet({"eth_dst": 1, "eth_src": 2, "eth_type": 0x88CC}, b"\x02\x07anything"),
        udp4(1, 2, 3, 4, 5, 6).with_fields(vlan_vid=0x1000 | 77),
    ],
    ids=lambda p: hex(p["eth_type"]),
)
def test_round_trip(packet: Packet) -> None:
    again = packet_of(frame_of(packet))
    assert {n: again[n] for n in packet} == dict(packet)
    assert frame_of(again) == frame_of(packet)


def test_known_bytes() -> None:
    """An ARP request and a UDP packet, byte by byte (checksums worked out by hand)."""
    arp = frame_of(arp_request(0x020000000001, 0x0A000001, 0x0A000002))
    assert arp.hex() == "ffffffffffff020000000001080600010800060400010200000000010a0000010000000000000a000002"
    udp = frame_of(Packet(dict(udp4(0x020000000001, 0x020000000002, 0x0A000001, 0x0A000002, 1, 2)), b"hi"))
    assert udp[14:34].hex() == "4500001e000000004011" + "66cd" + "0a0000010a000002"
    assert checksum16(udp[14:34]) == 0
    pseudo = udp[26:34] + bytes([0, 17]) + udp[38:40]
    assert checksum16(pseudo + udp[34:]) == 0


@pytest.mark.parametrize("size", [0, 10, 13])
def test_runts(size: int) -> None:
    with pytest.raises(WireError):
        packet_of(bytes(size))


@given(st.binary(min_size=14, max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for kind in (b"\x08\x00", b"\x08\x06", b"\x81\x00", data[12:14]):
        try:
            packet_of(data[:12] + kind + data[14:])
        except WireError:
            continue
