"""Frames: what we build parses back and is what os-ken builds; anything short or odd is a WireError (case TOPO-06)."""

from __future__ import annotations

import contextlib
import struct
from ipaddress import IPv4Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.lib.packet import arp, ethernet
from os_ken.lib.packet import lldp as oracle_lldp
from os_ken.lib.packet.packet import Packet

from aifabric_ctrl.model import frames
from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.ids import mac_text
from tests.wire.bound import bounded

MAC_A, MAC_B = 0x02AA00000001, 0x02BB00000002
IP_A, IP_B = IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")
ETH = bytes.fromhex("ffffffffffff02aa00000001")
LLDP_ETH = bytes.fromhex("0180c200000e02aa0000000188cc")
TOKEN = bytes(range(32))
OURS = frames.lldp(0x00AABBCCDDEEFF01, 7, MAC_A, 120, TOKEN)


def test_arp_is_what_os_ken_builds() -> None:
    packet = Packet()
    packet.add_protocol(ethernet.ethernet(mac_text(MAC_B), mac_text(MAC_A), 0x0806))
    packet.add_protocol(arp.arp(opcode=2, src_mac=mac_text(MAC_A), src_ip=str(IP_A), dst_mac=mac_text(MAC_B), dst_ip=str(IP_B)))
    packet.serialize()
    assert frames.arp_reply(MAC_A, IP_A, MAC_B, IP_B) == bytes(packet.data).ljust(60, b"\0")


def test_arp_parses_back() -> None:
    request = frames.parse_frame(frames.arp_request(MAC_A, IP_A, IP_B))
    assert request == frames.ArpFrame(frames.BROADCAST, MAC_A, frames.ARP_REQUEST, MAC_A, IP_A, 0, IP_B)
    probe = frames.parse_frame(frames.arp_request(MAC_A, IPv4Address(0), IP_B, dst_mac=MAC_B, target_mac=MAC_B))
    assert probe == frames.ArpFrame(MAC_B, MAC_A, frames.ARP_REQUEST, MAC_A, IPv4Address(0), MAC_B, IP_B)
    reply = frames.parse_frame(frames.arp_reply(MAC_A, IP_A, MAC_B, IP_B))
    assert reply == frames.ArpFrame(MAC_B, MAC_A, frames.ARP_REPLY, MAC_A, IP_A, MAC_B, IP_B)


def test_lldp_is_readable_by_os_ken() -> None:
    (packet,) = [p for p in Packet(OURS).protocols if isinstance(p, oracle_lldp.lldp)]
    chassis, port, ttl, organisation, end = packet.tlvs
    assert (chassis.subtype, chassis.chassis_id) == (7, b"dpid:00aabbccddeeff01")
    assert (port.subtype, port.port_id) == (7, b"\0\0\0\7")
    assert ttl.ttl == 120
    assert organisation.info == TOKEN
    assert isinstance(end, oracle_lldp.End)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 0xFFFFFFFF), st.binary(max_size=400))
def test_lldp_parses_back(dpid: int, port: int, token: bytes) -> None:
    raw = frames.lldp(dpid, port, MAC_A, 120, token)
    assert len(raw) >= 60
    frame = frames.parse_frame(raw)
    assert isinstance(frame, frames.LldpFrame)
    assert (frame.src, frame.dst, frame.dpid, frame.port, frame.token) == (MAC_A, 0x0180C200000E, dpid, port, token)


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value


CHASSIS, PORT, TTL, END = tlv(1, b"\7dpid:00000000000000ff"), tlv(2, b"\7\0\0\0\1"), tlv(3, b"\0\x78"), tlv(0, b"")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        ETH[:10],
        ETH,
        LLDP_ETH,
        LLDP_ETH + bytes(46),
        LLDP_ETH + CHASSIS,
        LLDP_ETH + CHASSIS + PORT + TTL,
        LLDP_ETH + b"\x02\xff" + b"short",
        ETH + b"\x81\x00",
        ETH + b"\x81\x00\x00\x05",
        ETH + b"\x08\x06" + bytes(27),
        ETH + b"\x08\x06" + struct.pack("!HHBBH20x", 6, 0x0800, 6, 4, 1),
        ETH + b"\x08\x06" + struct.pack("!HHBBH20x", 1, 0x86DD, 6, 16, 1),
        ETH + b"\x08\x00",
        ETH + b"\x08\x00" + b"\x45" + bytes(18),
        ETH + b"\x08\x00" + b"\x40" + bytes(30),
        ETH + b"\x08\x00" + b"\x44" + bytes(30),
        ETH + b"\x08\x00" + b"\x65" + bytes(30),
        ETH + b"\x08\x00" + b"\x4f" + bytes(30),
        ETH + b"\x86\xdd" + b"\x60" + bytes(38),
        ETH + b"\x86\xdd" + b"\x45" + bytes(40),
    ],
    ids=lambda raw: raw.hex() or "empty",
)
def test_short_and_odd_frames_are_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        frames.parse_frame(raw)


@pytest.mark.parametrize(
    ("chassis", "port", "expected"),
    [
        (CHASSIS, PORT, (0xFF, 1)),
        (tlv(1, b"\7dpid:00000000000000fg"), PORT, (None, 1)),
        (tlv(1, b"\7dpid:00000000000000FF"), PORT, (None, 1)),
        (tlv(1, b"\7dpid:+0000000000000ff"), PORT, (None, 1)),
        (tlv(1, b"\7dpid:0000_00000000_ff"), PORT, (None, 1)),
        (tlv(1, b"\7dpid:ff"), PORT, (None, 1)),
        (tlv(1, b"\4\2\0\0\0\0\1"), PORT, (None, 1)),
        (CHASSIS, tlv(2, b"\7\0\0\1"), (0xFF, None)),
        (CHASSIS, tlv(2, b"\7\0\0\0\0\1"), (0xFF, None)),
        (CHASSIS, tlv(2, b"\5eth1"), (0xFF, None)),
    ],
)
def test_strangers_lldp_is_not_taken_for_ours(chassis: bytes, port: bytes, expected: tuple[int | None, int | None]) -> None:
    frame = frames.parse_frame(LLDP_ETH + chassis + port + TTL + END)
    assert isinstance(frame, frames.LldpFrame)
    assert (frame.dpid, frame.port) == expected
    assert frame.token is None


def ip4(payload: bytes = b"", proto: int = 17) -> bytes:
    return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 1, 0, 63, proto, 0, IP_A.packed, IP_B.packed) + payload


@pytest.mark.parametrize("tag", [b"", b"\x81\x00\x20\x07"])
def test_ip_headers(tag: bytes) -> None:
    frame = frames.parse_frame(ETH + tag + b"\x08\x00" + ip4(b"x" * 30))
    assert isinstance(frame, frames.Ip4Frame)
    assert (frame.src, frame.src_ip, frame.dst_ip, frame.ttl) == (MAC_A, IP_A, IP_B, 63)
    assert frame.vlan == (7 if tag else None)
    six = struct.pack("!IHBB16s16s", 6 << 28, 0, 58, 255, b"\xfe\x80" + bytes(13) + b"\1", b"\xfd" + bytes(14) + b"\2")
    frame6 = frames.parse_frame(ETH + tag + b"\x86\xdd" + six)
    assert isinstance(frame6, frames.Ip6Frame)
    assert (str(frame6.src_ip), str(frame6.dst_ip), frame6.hop_limit) == ("fe80::1", "fd00::2", 255)


def test_nothing_above_layer_3_is_looked_at() -> None:
    """Case FUZZ-03: a TCP segment to port 6653 that looks like OpenFlow with length 0 hung the generic decoder."""
    segment = struct.pack("!HHIIBBHHH", 40000, 6653, 0, 0, 0x50, 0x18, 0, 0, 0) + bytes.fromhex("0400000000000000")
    with bounded():
        frame = frames.parse_frame(ETH + b"\x08\x00" + ip4(segment, proto=6))
    assert isinstance(frame, frames.Ip4Frame)


@settings(max_examples=400)
@given(
    st.sampled_from([b"\x08\x06", b"\x08\x00", b"\x86\xdd", b"\x88\xcc", b"\x81\x00\x00\x01\x88\xcc", b"\x00\x40"]),
    st.binary(max_size=120),
)
def test_any_bytes(kind: bytes, rest: bytes) -> None:
    with bounded(), contextlib.suppress(WireError):
        frames.parse_frame(ETH + kind + rest)


@given(st.integers(0, 59), st.integers(0, 255))
def test_mutated_probe(at: int, value: int) -> None:
    raw = bytearray(OURS)
    raw[at] = value
    with bounded(), contextlib.suppress(WireError):
        frames.parse_frame(bytes(raw))
    with bounded(), contextlib.suppress(WireError):
        frames.parse_frame(bytes(OURS[:at]))
