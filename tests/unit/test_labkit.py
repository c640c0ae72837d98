"""The lab's pure parts: its packets, what it counts as heard unasked, and how its report judges and prints."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "topologies"))

from labkit import packets, prober, report

MAC, EVERYBODY = bytes.fromhex("0200 0a00 0101"), b"\xff" * 6
OWN, OTHER = socket.inet_aton("10.0.1.1"), socket.inet_aton("10.0.2.1")
OWN6 = socket.inet_pton(socket.AF_INET6, "fd00::1")


def ipv4(protocol: int, payload: bytes) -> memoryview:
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0, OTHER, OWN)
    return memoryview(header + payload)


@pytest.mark.parametrize("protocol", [socket.IPPROTO_UDP, socket.IPPROTO_TCP])
def test_a_probe_is_recognised_behind_its_headers(protocol: int) -> None:
    segment = packets.segment(protocol, 49152, 4791, 7, 123)
    assert struct.unpack("!HH", segment[:4]) == (49152, 4791)
    assert packets.parse_ipv4(ipv4(protocol, segment)) == (7, 123)


def test_an_icmp_probe_carries_its_source_port_as_identifier() -> None:
    segment = packets.segment(socket.IPPROTO_ICMP, 49152, 0, 7, 123)
    assert segment[0] == 0  # an echo reply: nobody answers it
    assert struct.unpack("!HH", segment[4:8]) == (49152, 123)
    assert packets.parse_ipv4(ipv4(socket.IPPROTO_ICMP, segment)) == (7, 123)


@pytest.mark.parametrize("data", [b"", b"\x45", b"\x60" + b"\0" * 60, b"\x45" + b"\0" * 60])
def test_other_packets_are_no_probes(data: bytes) -> None:
    assert packets.parse_ipv4(memoryview(data)) is None


def test_a_cut_probe_is_none() -> None:
    whole = ipv4(socket.IPPROTO_TCP, packets.segment(socket.IPPROTO_TCP, 1, 2, 3, 4))
    for length in range(20, 20 + 20 + packets.PAYLOAD.size):
        assert packets.parse_ipv4(whole[:length]) is None


def test_source_ports_follow_the_kernel() -> None:
    product = 0x123456 * 0x345678
    folded = product ^ (product >> 20)
    folded ^= folded >> 40
    label = folded % 2**20
    expected = 0xC000 + ((label % 2**14) ^ (label // 2**14))
    assert packets.source_port(0x123456, 0x345678) == expected
    assert packets.source_port(1, 1) == 0xC001


@pytest.mark.parametrize("make", [packets.sequential_ports, packets.derived_ports])
def test_ports_are_in_the_range_of_roce_and_repeatable(make: object) -> None:
    for seed in range(20):
        ports = make(64, seed)  # type: ignore[operator]
        assert len(ports) == 64
        assert all(0xC000 <= port <= 0xFFFF for port in ports)
        assert ports == make(64, seed)  # type: ignore[operator]
    assert packets.sequential_ports(64, 1) == list(
        range(packets.sequential_ports(64, 1)[0], packets.sequential_ports(64, 1)[0] + 64)
    )


def arp(target: bytes) -> bytes:
    return EVERYBODY + MAC + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + MAC + OTHER + b"\0" * 6 + target


def test_what_a_host_hears_unasked() -> None:
    to_own = MAC + MAC + b"\x08\x00" + bytes(ipv4(17, b"\0" * 8))
    assert prober.kind_of_unasked(arp(OWN), 0x0806, OWN, OWN6) is None
    assert prober.kind_of_unasked(arp(OTHER), 0x0806, OWN, OWN6) == "arp"
    assert prober.kind_of_unasked(to_own, 0x0800, OWN, OWN6) is None
    assert prober.kind_of_unasked(to_own, 0x0800, OTHER, OWN6) == "foreign unicast"
    assert prober.kind_of_unasked(EVERYBODY + to_own[6:], 0x0800, OWN, OWN6) == "broadcast"


def ip6(next_header: int, destination: bytes, body: bytes, mac: bytes = MAC) -> bytes:
    return mac + MAC + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(body), next_header, 255) + OWN6 + destination + body


def test_what_a_host_hears_unasked_over_ipv6() -> None:
    other = socket.inet_pton(socket.AF_INET6, "fd00::2")
    solicit = {target: struct.pack("!BBHI", 135, 0, 0, 0) + target for target in (OWN6, other)}
    group = b"\x33\x33\xff\0\0\x02"
    assert prober.kind_of_unasked(ip6(58, OWN6, solicit[OWN6]), 0x86DD, OWN, OWN6) is None
    assert prober.kind_of_unasked(ip6(58, other, solicit[other], group), 0x86DD, OWN, OWN6) == "neighbour discovery"
    assert prober.kind_of_unasked(ip6(17, OWN6, b"\0" * 8), 0x86DD, OWN, OWN6) is None
    assert prober.kind_of_unasked(ip6(17, other, b"\0" * 8), 0x86DD, OWN, OWN6) == "foreign unicast"


def test_probes_over_ipv6_are_read_with_and_without_their_header() -> None:
    for name in ("udp", "tcp", "icmp"):
        number = packets.protocol_number(name, True)
        segment = packets.segment(packets.PROTOCOLS[name], 1, 2, 7, 9, six=True)
        assert packets.parse_layer4(number, memoryview(segment)) == (7, 9)
        assert packets.parse_ip(memoryview(ip6(number, OWN6, segment)[14:])) == (7, 9)


def test_percentiles_are_measured_values() -> None:
    values = [float(n) for n in range(1, 21)]
    assert report.percentile(values, 0.9) == 18
    assert report.percentile(values, 0.99) == 20
    assert report.percentile([5.0], 0.5) == 5


def test_the_table_says_what_failed_and_what_was_not_run() -> None:
    rows = [
        report.Row("a", "good", "<= 1", "0", True, 1000, 0, 3.2),
        report.Row("b", "bad", "<= 1", "2", False),
        report.Row("c", "noise", "", "5", None),
        report.Row("d", "broken", "", "", False, error="no answer"),
    ]
    assert [row.verdict for row in rows] == ["ok", "FAIL", "-", "NOT RUN"]
    printed = report.table(rows)
    assert "1,000" in printed
    assert "no answer" in printed
