"""What stands between a socket and any parser: whole messages, and every length inside them.

Library parsers for OpenFlow loop for ever on a zero length (os-ken 4.2.2, measured: seven kinds of reply and HELLO), so
nothing reaches a decoder, ours or a library's, that ``check`` has not seen.  Looks at structure only, decodes nothing.
Each walk moves forward by at least four bytes a turn; the work is linear in the message.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from functools import lru_cache

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire.oxm import match_bounds, split_oxm

_HEADER = struct.Struct("!BBHI")
_TYPE_LENGTH = struct.Struct("!HH")
_QUEUE_CONFIG = 16


class Phase(enum.Enum):
    """How far a session has come; decides which messages may arrive."""

    HELLO = "hello"  # nothing agreed yet
    FEATURES = "features"  # version agreed, identity unknown
    MAIN = "main"


_BEFORE_HELLO = frozenset({ofp.HELLO, ofp.ERROR, ofp.ECHO_REQUEST, ofp.ECHO_REPLY})
# Open vSwitch sends events as soon as versions are agreed, before it answers anything.
_BEFORE_FEATURES = _BEFORE_HELLO | {ofp.FEATURES_REPLY, ofp.PACKET_IN, ofp.PORT_STATUS, ofp.FLOW_REMOVED, ofp.EXPERIMENTER}
_FROM_SWITCH = _BEFORE_FEATURES | {
    ofp.GET_CONFIG_REPLY,
    ofp.MULTIPART_REPLY,
    ofp.BARRIER_REPLY,
    ofp.QUEUE_GET_CONFIG_REPLY,
    ofp.ROLE_REPLY,
    ofp.GET_ASYNC_REPLY,
}
_ALLOWED = {Phase.HELLO: _BEFORE_HELLO, Phase.FEATURES: _BEFORE_FEATURES, Phase.MAIN: _FROM_SWITCH}


class Framer:
    """Cuts a byte stream into messages.  Holds at most one unfinished message, i.e. less than 64 KiB.

    A stream that broke the protocol once stays refused: there is no way to find the next header in it.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._broken = False

    @property
    def pending(self) -> int:
        """Bytes of the unfinished message."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Whole messages, in order.

        Raises:
            WireError: a length below the header's own; messages before it in the same bytes are lost, as is the session.
        """
        if self._broken:
            raise WireError("the stream broke the protocol before")
        buffer = self._rest + data if self._rest else data
        messages: list[bytes] = []
        position, total = 0, len(buffer)
        while total - position >= 4:
            length = buffer[position + 2] << 8 | buffer[position + 3]
            if length < ofp.HEADER_SIZE:
                self._broken, self._rest = True, b""
                raise WireError(f"message length {length} is shorter than its header")
            if total - position < length:
                break
            messages.append(bytes(buffer[position : position + length]))
            position += length
        self._rest = bytes(buffer[position:])
        return messages


def check(message: bytes, phase: Phase = Phase.MAIN) -> None:
    """Accept or refuse one message from a switch.

    Raises:
        WireError: wrong version, a type that may not arrive now, or any length inside that does not fit.
    """
    if len(message) < ofp.HEADER_SIZE:
        raise WireError(f"message of {len(message)} bytes has no whole header")
    version, kind, length, _ = _HEADER.unpack_from(message)
    if length != len(message):
        raise WireError(f"header says {length} bytes, there are {len(message)}")
    # A peer of another version says so in its HELLO, and may refuse ours with an ERROR of that version.
    if version != ofp.VERSION and (kind not in (ofp.HELLO, ofp.ERROR) or not version):
        raise WireError(f"OpenFlow version {version:#x}")
    if kind not in _ALLOWED[phase]:
        raise WireError(f"message type {kind} in phase {phase.value}")
    checker = _CHECKERS.get(kind)
    if checker is not None:
        checker(message)


# ---- walks -----------------------------------------------------------------------------------------------------------


def _least(message: bytes, size: int) -> None:
    if len(message) < size:
        raise WireError(f"message type {message[1]} of {len(message)} bytes, at least {size} needed")


def _exactly(message: bytes, size: int) -> None:
    if len(message) != size:
        raise WireError(f"message type {message[1]} of {len(message)} bytes instead of {size}")


def _hello(message: bytes) -> None:
    position, end = ofp.HEADER_SIZE, len(message)
    while position < end:
        if end - position < 4:
            raise WireError("HELLO element cut short")
        kind, length = _TYPE_LENGTH.unpack_from(message, position)
        if length < 4 or position + length > end or (kind == ofp.HELLO_VERSION_BITMAP and (length & 3 or length < 8)):
            raise WireError(f"HELLO element type {kind} length {length}")
        position += length + 7 & ~7


def _error(message: bytes) -> None:
    _least(message, 12)
    if message[8:10] == b"\xff\xff":
        _least(message, 16)


@lru_cache(maxsize=1 << 14)
def _oxms(raw: bytes) -> None:
    position, end = 0, len(raw)
    while position < end:
        _, _, position = split_oxm(raw, position, end)


def _match(message: bytes, position: int, end: int) -> int:
    oxm_end, after = match_bounds(message, position, end)
    _oxms(message[position + 4 : oxm_end])
    return after


def _elements(raw: bytes, least: int = 8) -> None:
    """Actions, whose lengths are multiples of 8."""
    position, end = 0, len(raw)
    while position < end:
        if end - position < least:
            raise WireError("element cut short")
        kind, length = _TYPE_LENGTH.unpack_from(raw, position)
        if length < least or length & 7 or position + length > end:
            raise WireError(f"element type {kind} length {length} does not fit")
        if kind == ofp.AT_SET_FIELD:
            split_oxm(raw, position + 4, position + length)
        position += length


@lru_cache(maxsize=1 << 13)
def _actions(raw: bytes) -> None:
    _elements(raw)


@lru_cache(maxsize=1 << 13)
def _instructions(raw: bytes) -> None:
    position, end = 0, len(raw)
    while position < end:
        if end - position < 8:
            raise WireError("instruction cut short")
        kind, length = _TYPE_LENGTH.unpack_from(raw, position)
        if length < 8 or length & 7 or position + length > end:
            raise WireError(f"instruction type {kind} length {length} does not fit")
        if kind in (ofp.IT_APPLY_ACTIONS, ofp.IT_WRITE_ACTIONS):
            _elements(raw[position + 8 : position + length])
        elif kind == ofp.IT_WRITE_METADATA and length != 24:
            raise WireError(f"write-metadata length {length}")
        position += length


@lru_cache(maxsize=1 << 13)
def _buckets(raw: bytes) -> None:
    position, end = 0, len(raw)
    while position < end:
        if end - position < 16:
            raise WireError("bucket cut short")
        length = raw[position] << 8 | raw[position + 1]
        if length < 16 or length & 7 or position + length > end:
            raise WireError(f"bucket length {length} does not fit")
        _elements(raw[position + 16 : position + length])
        position += length


def _packet_in(message: bytes) -> None:
    _least(message, 34)
    if _match(message, 24, len(message)) + 2 > len(message):
        raise WireError("PACKET_IN without its padding")


def _flow_removed(message: bytes) -> None:
    _least(message, 56)
    if _match(message, 48, len(message)) != len(message):
        raise WireError("FLOW_REMOVED with bytes after its match")


def _queue_config(message: bytes) -> None:
    position, end = 16, len(message)
    _least(message, 16)
    while position < end:
        if end - position < _QUEUE_CONFIG:
            raise WireError("queue cut short")
        length = message[position + 8] << 8 | message[position + 9]
        if length < _QUEUE_CONFIG or length & 7 or position + length > end:
            raise WireError(f"queue length {length} does not fit")
        _elements(message[position + _QUEUE_CONFIG : position + length], least=16)
        position += length


def _experimenter(message: bytes) -> None:
    _least(message, 16)
    experimenter, kind = struct.unpack_from("!II", message, 8)
    if experimenter != ofp.ONF_EXPERIMENTER:
        return
    if kind == ofp.ONF_BUNDLE_CONTROL:
        _least(message, 24)
        _elements(message[24:])
    elif kind == ofp.ONF_BUNDLE_ADD:
        raise WireError("a switch does not add messages to bundles")


# ---- multipart -------------------------------------------------------------------------------------------------------

_BODY = 16


def _entries(message: bytes, least: int, inside: Callable[[bytes, int, int], None]) -> None:
    """Entries that start with their own 16-bit length; ``inside(message, start, end)`` looks into each."""
    position, end = _BODY, len(message)
    while position < end:
        if end - position < least:
            raise WireError("multipart entry cut short")
        length = message[position] << 8 | message[position + 1]
        if length < least or position + length > end:
            raise WireError(f"multipart entry length {length} does not fit")
        inside(message, position, position + length)
        position += length


def _in_flow(message: bytes, start: int, end: int) -> None:
    _instructions(message[_match(message, start + 48, end) : end])


def _in_group_desc(message: bytes, start: int, end: int) -> None:
    _buckets(message[start + 8 : end])


def _in_counters(message: bytes, start: int, end: int) -> None:
    if (end - start - 40) % 16:
        raise WireError(f"statistics length {end - start} does not fit")


def _in_meter_config(message: bytes, start: int, end: int) -> None:
    position = start + 8
    while position < end:
        if end - position < 16:
            raise WireError("meter band cut short")
        kind, length = _TYPE_LENGTH.unpack_from(message, position)
        if length < 16 or position + length > end:
            raise WireError(f"meter band type {kind} length {length} does not fit")
        position += length


def _in_table_features(message: bytes, start: int, end: int) -> None:
    position = start + 64
    while position < end:
        if end - position < 4:
            raise WireError("table property cut short")
        kind, length = _TYPE_LENGTH.unpack_from(message, position)
        if length < 4 or position + length > end:
            raise WireError(f"table property type {kind} length {length} does not fit")
        if kind in (0, 1, 4, 5, 6, 7):  # instructions and actions, each with a length of its own
            _ids(message, position + 4, position + length)
        position += length + 7 & ~7


def _ids(message: bytes, position: int, end: int) -> None:
    """Instruction or action ids inside a table property: type and length, four bytes unless an experimenter's."""
    while position < end:
        if end - position < 4:
            raise WireError("table property id cut short")
        kind, length = _TYPE_LENGTH.unpack_from(message, position)
        if length < 4 or position + length > end:
            raise WireError(f"table property id {kind} length {length} does not fit")
        position += length


def _meter_stats(message: bytes) -> None:
    # Unlike the others, ofp_meter_stats starts with the meter's id, and its length comes second.
    position, end = _BODY, len(message)
    while position < end:
        if end - position < 40:
            raise WireError("meter statistics cut short")
        length = message[position + 4] << 8 | message[position + 5]
        if length < 40 or position + length > end:
            raise WireError(f"meter statistics length {length} does not fit")
        _in_counters(message, position, position + length)
        position += length


def _fixed(size: int) -> Callable[[bytes], None]:
    return lambda message: _exactly(message, _BODY + size)


def _array(size: int) -> Callable[[bytes], None]:
    def checker(message: bytes) -> None:
        if (len(message) - _BODY) % size:
            raise WireError(f"multipart body of {len(message) - _BODY} bytes is not a multiple of {size}")

    return checker


_MULTIPART: dict[int, Callable[[bytes], None]] = {
    ofp.MP_DESC: _fixed(1056),
    ofp.MP_FLOW: lambda message: _entries(message, 56, _in_flow),
    ofp.MP_AGGREGATE: _fixed(24),
    ofp.MP_TABLE: _array(24),
    ofp.MP_PORT_STATS: _array(112),
    ofp.MP_QUEUE: _array(40),
    ofp.MP_GROUP: lambda message: _entries(message, 40, _in_counters),
    ofp.MP_GROUP_DESC: lambda message: _entries(message, 8, _in_group_desc),
    ofp.MP_GROUP_FEATURES: _fixed(40),
    ofp.MP_METER: _meter_stats,
    ofp.MP_METER_CONFIG: lambda message: _entries(message, 8, _in_meter_config),
    ofp.MP_METER_FEATURES: _fixed(16),
    ofp.MP_TABLE_FEATURES: lambda message: _entries(message, 64, _in_table_features),
    ofp.MP_PORT_DESC: _array(64),
}


def _multipart(message: bytes) -> None:
    _least(message, _BODY)
    kind, _ = _TYPE_LENGTH.unpack_from(message, 8)
    checker = _MULTIPART.get(kind)
    if checker is None:
        raise WireError(f"multipart reply of type {kind}, which we never ask for")
    checker(message)


_CHECKERS: dict[int, Callable[[bytes], None]] = {
    ofp.HELLO: _hello,
    ofp.ERROR: _error,
    ofp.EXPERIMENTER: _experimenter,
    ofp.FEATURES_REPLY: lambda message: _exactly(message, 32),
    ofp.GET_CONFIG_REPLY: lambda message: _exactly(message, 12),
    ofp.PACKET_IN: _packet_in,
    ofp.FLOW_REMOVED: _flow_removed,
    ofp.PORT_STATUS: lambda message: _exactly(message, 80),
    ofp.MULTIPART_REPLY: _multipart,
    ofp.BARRIER_REPLY: lambda message: _exactly(message, 8),
    ofp.QUEUE_GET_CONFIG_REPLY: _queue_config,
    ofp.ROLE_REPLY: lambda message: _exactly(message, 24),
    ofp.GET_ASYNC_REPLY: lambda message: _exactly(message, 32),
}
