"""What is fuzzed: each target takes any bytes and must come back in time, raising nothing but its documented errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from ipaddress import IPv4Address

from aifabric_ctrl.model import frames
from aifabric_ctrl.model.effects import ReadTables
from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.southbound.guard import Framer, Phase, check
from aifabric_ctrl.southbound.session import SessionDead
from aifabric_ctrl.southbound.wire import decode, encode, switch_side
from tests.unit.session_kit import connected
from tests.wire.samples import FLOWS, GROUPS, METERS
from tests.wire.strategies import FROM_SWITCH
from tests.wire.test_frames import OURS, ip4
from tests.wire.test_guard import BAD, GOOD

MAX_PENDING = 0x10000


def guarded(raw: bytes) -> None:
    for phase in Phase:
        with contextlib.suppress(WireError):
            check(raw, phase)


def decoded(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        decode.decode(raw)


def requested(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        switch_side.decode_request(raw)


def framed(raw: bytes) -> None:
    framer = Framer()
    with contextlib.suppress(WireError):
        for start in range(0, len(raw), 7):
            framer.feed(raw[start : start + 7])
    if framer.pending >= MAX_PENDING:
        raise MemoryError(f"the framer holds {framer.pending} bytes")


def parsed(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        frames.parse_frame(raw)


def in_session(raw: bytes) -> None:
    """After a handshake and while the tables are read back: the most a switch can reach."""
    session, _ = connected()
    session.carry_out(ReadTables(session.id), 0.0)
    session.take_output()
    with contextlib.suppress(WireError, SessionDead):
        session.feed(raw, 0.1)


WIRE_CORPUS: tuple[bytes, ...] = (
    *FROM_SWITCH.values(),
    *GOOD.values(),
    *BAD.values(),
    *(encode.flow_put(1, flow) for flow in FLOWS[:12]),
    *(encode.group_put(1, group, False) for group in GROUPS),
    *(encode.meter_put(1, meter, False) for meter in METERS),
    encode.bundle_add(1, 2, encode.flow_put(1, FLOWS[-1])),
    encode.flow_stats_request(1, 2, 3),
    encode.packet_out(1, 2, (), b"abc"),
)
FRAME_CORPUS: tuple[bytes, ...] = (
    OURS,
    frames.arp_request(1, IPv4Address(1), IPv4Address(2)),
    OURS[:12] + b"\x08\x00" + ip4(b"x" * 20),
    OURS[:12] + b"\x81\x00\x00\x07\x08\x00" + ip4(b"x" * 20),
    OURS[:12] + b"\x86\xdd\x60" + bytes(60),
    b"",
)

Target = Callable[[bytes], None]
TARGETS: dict[str, tuple[Target, tuple[bytes, ...]]] = {
    "guard": (guarded, WIRE_CORPUS),
    "decode": (decoded, WIRE_CORPUS),
    "switch_side": (requested, WIRE_CORPUS),
    "framer": (framed, WIRE_CORPUS),
    "frames": (parsed, FRAME_CORPUS),
    "session": (in_session, WIRE_CORPUS),
}
