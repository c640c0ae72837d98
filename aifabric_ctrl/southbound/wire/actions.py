"""Actions, instructions and group buckets on the wire, both ways.

Order inside an action list is kept; instructions are written meter, apply, metadata, goto, the order in which Open
vSwitch reads them back (DESIGN 5), so that read-back compares exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from aifabric_ctrl.model.errors import ContractError, WireError
from aifabric_ctrl.model.fields import FIELDS
from aifabric_ctrl.model.rules import (
    ALL,
    FAST_FAILOVER,
    INDIRECT,
    SELECT,
    Action,
    Bucket,
    DecTtl,
    Move,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
    ToGroup,
)
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire.oxm import Unmodelled, encode_set_field, move_field, move_header, oxm_one

_TYPE_LEN = struct.Struct("!HH")
_OUTPUT = struct.Struct("!HHIH6x")
_WORD = struct.Struct("!HHI")
_HALF = struct.Struct("!HHH2x")
_BARE = struct.Struct("!HH4x")
_MOVE = struct.Struct("!HHIHHHHII")
_METADATA = struct.Struct("!HH4xQQ")
_GOTO = struct.Struct("!HHB3x")
_BUCKET = struct.Struct("!HHII4x")
_MOST_ACTIONS = ofp.MAX_MESSAGE - 64  # leaves room for the largest header around an action list
_NX = struct.Struct("!IH")

GROUP_TYPES: dict[str, int] = {ALL: ofp.GT_ALL, SELECT: ofp.GT_SELECT, INDIRECT: ofp.GT_INDIRECT, FAST_FAILOVER: ofp.GT_FF}
GROUP_TYPE_NAMES: dict[int, str] = {number: name for name, number in GROUP_TYPES.items()}


def _set_field(action: SetField) -> bytes:
    body = encode_set_field(action.field, action.value)
    length = 4 + len(body) + 7 & ~7
    return _TYPE_LEN.pack(ofp.AT_SET_FIELD, length) + body + bytes(length - 4 - len(body))


def _move(action: Move) -> bytes:
    return _MOVE.pack(
        ofp.AT_EXPERIMENTER,
        24,
        ofp.NX_EXPERIMENTER,
        ofp.NXAST_REG_MOVE,
        action.bits,
        action.src_offset,
        action.dst_offset,
        move_header(action.src),
        move_header(action.dst),
    )


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    Output: lambda action: _OUTPUT.pack(ofp.AT_OUTPUT, 16, action.port, action.max_len),
    ToGroup: lambda action: _WORD.pack(ofp.AT_GROUP, 8, action.group_id),
    SetField: _set_field,
    Move: _move,
    DecTtl: lambda action: _BARE.pack(ofp.AT_DEC_NW_TTL, 8),
    SetQueue: lambda action: _WORD.pack(ofp.AT_SET_QUEUE, 8, action.queue_id),
    PushVlan: lambda action: _HALF.pack(ofp.AT_PUSH_VLAN, 8, action.ethertype),
    PopVlan: lambda action: _BARE.pack(ofp.AT_POP_VLAN, 8),
}


@lru_cache(maxsize=1 << 14)
def encode_actions(actions: tuple[Action, ...]) -> bytes:
    """An action list.

    Raises:
        ContractError: longer than any message could hold.
    """
    body = b"".join([_WRITERS[type(a)](a) for a in actions])
    if len(body) > _MOST_ACTIONS:
        raise ContractError(f"{len(actions)} actions need {len(body)} bytes, more than one message holds")
    return body


class Instructions(NamedTuple):
    """The four things a flow entry of ours may do, named as in ``Flow``."""

    meter: int | None = None
    actions: tuple[Action, ...] = ()
    metadata: tuple[int, int] | None = None
    goto: int | None = None


@lru_cache(maxsize=1 << 14)
def encode_instructions(
    meter: int | None, actions: tuple[Action, ...], metadata: tuple[int, int] | None, goto: int | None
) -> bytes:
    """An instruction list, in the order Open vSwitch reads back."""
    parts: list[bytes] = []
    if meter is not None:
        parts.append(_WORD.pack(ofp.IT_METER, 8, meter))
    if actions:
        body = encode_actions(actions)
        parts += (_BARE.pack(ofp.IT_APPLY_ACTIONS, 8 + len(body)), body)
    if metadata is not None:
        parts.append(_METADATA.pack(ofp.IT_WRITE_METADATA, 24, *metadata))
    if goto is not None:
        parts.append(_GOTO.pack(ofp.IT_GOTO_TABLE, 8, goto))
    return b"".join(parts)


def encode_bucket(bucket: Bucket) -> bytes:
    """One bucket."""
    body = encode_actions(bucket.actions)
    return _BUCKET.pack(16 + len(body), bucket.weight, bucket.watch_port, bucket.watch_group) + body


@lru_cache(maxsize=1 << 14)
def encode_buckets(buckets: tuple[Bucket, ...]) -> bytes:
    """A bucket list."""
    return b"".join([encode_bucket(b) for b in buckets])


# ---- decoding --------------------------------------------------------------------------------------------------------


def type_and_length(raw: bytes, position: int, end: int, least: int = 8) -> tuple[int, int]:
    """The 16-bit type and length every action, instruction and property starts with.

    Raises:
        WireError: shorter than ``least``, not a multiple of 8, or longer than what is left.
    """
    if end - position < 4:
        raise WireError("element header cut short")
    kind, length = _TYPE_LEN.unpack_from(raw, position)
    if length < least or length & 7 or position + length > end:
        raise WireError(f"element type {kind} length {length} does not fit")
    return kind, length


def _exactly(length: int, wanted: int) -> None:
    if length != wanted:
        raise WireError(f"action length {length} is not {wanted}")


def _get_output(raw: bytes, position: int, length: int) -> Action:
    _exactly(length, 16)
    _, _, port, max_len = _OUTPUT.unpack_from(raw, position)
    return Output(port, max_len)


def _get_group(raw: bytes, position: int, length: int) -> Action:
    _exactly(length, 8)
    return ToGroup(_WORD.unpack_from(raw, position)[2])


def _get_queue(raw: bytes, position: int, length: int) -> Action:
    _exactly(length, 8)
    return SetQueue(_WORD.unpack_from(raw, position)[2])


def _get_push_vlan(raw: bytes, position: int, length: int) -> Action:
    _exactly(length, 8)
    return PushVlan(_HALF.unpack_from(raw, position)[2])


def _get_pop_vlan(raw: bytes, position: int, length: int) -> Action:
    _exactly(length, 8)
    return PopVlan()


def _get_dec_ttl(raw: bytes, position: int, length: int) -> Action:
    _exactly(length, 8)
    return DecTtl()


def _get_set_field(raw: bytes, position: int, length: int) -> Action:
    field, after = oxm_one(raw, position + 4, position + length)
    if position + length - after > 7:
        raise WireError("set-field with more than one field")
    if raw[position + 6] & 1:
        raise Unmodelled(f"masked set-field of {field.name}", (ofp.ET_BAD_ACTION, ofp.BAC_BAD_SET_ARGUMENT))
    return SetField(field.name, field.value)


def _get_experimenter(raw: bytes, position: int, length: int) -> Action:
    experimenter, subtype = _NX.unpack_from(raw, position + 4) if length >= 16 else (0, 0)
    if (experimenter, subtype) != (ofp.NX_EXPERIMENTER, ofp.NXAST_REG_MOVE):
        raise Unmodelled(f"action of experimenter {experimenter:#x} type {subtype}", (ofp.ET_BAD_ACTION, ofp.BAC_BAD_TYPE))
    _exactly(length, 24)
    _, _, _, _, bits, src_offset, dst_offset, src, dst = _MOVE.unpack_from(raw, position)
    move = Move(move_field(src), move_field(dst), bits, src_offset, dst_offset)
    if not bits > 0 or src_offset + bits > FIELDS[move.src].bits or dst_offset + bits > FIELDS[move.dst].bits:
        raise Unmodelled("move outside its fields", (ofp.ET_BAD_ACTION, ofp.BAC_BAD_SET_ARGUMENT))
    return move


_ACTIONS: dict[int, Callable[[bytes, int, int], Action]] = {
    ofp.AT_OUTPUT: _get_output,
    ofp.AT_GROUP: _get_group,
    ofp.AT_SET_QUEUE: _get_queue,
    ofp.AT_PUSH_VLAN: _get_push_vlan,
    ofp.AT_POP_VLAN: _get_pop_vlan,
    ofp.AT_DEC_NW_TTL: _get_dec_ttl,
    ofp.AT_SET_FIELD: _get_set_field,
    ofp.AT_EXPERIMENTER: _get_experimenter,
}


@lru_cache(maxsize=1 << 14)
def decode_actions(raw: bytes) -> tuple[Action, ...]:
    """An action list.

    Raises:
        WireError: malformed.
        Unmodelled: an action outside ``model.rules``.
    """
    actions: list[Action] = []
    position, end = 0, len(raw)
    while position < end:
        kind, length = type_and_length(raw, position, end)
        reader = _ACTIONS.get(kind)
        if reader is None:
            raise Unmodelled(f"action type {kind}", (ofp.ET_BAD_ACTION, ofp.BAC_BAD_TYPE))
        actions.append(reader(raw, position, length))
        position += length
    return tuple(actions)


@lru_cache(maxsize=1 << 14)
def decode_instructions(raw: bytes) -> Instructions:
    """An instruction list.

    Raises:
        WireError: malformed.
        Unmodelled: write-actions, clear-actions, an experimenter's, or one kind twice.
    """
    found: dict[str, object] = {}
    position, end = 0, len(raw)
    while position < end:
        kind, length = type_and_length(raw, position, end)
        value: object
        if kind == ofp.IT_APPLY_ACTIONS:
            name, value = "actions", decode_actions(raw[position + 8 : position + length])
        elif kind == ofp.IT_GOTO_TABLE and length == 8:
            name, value = "goto", raw[position + 4]
        elif kind == ofp.IT_METER and length == 8:
            name, value = "meter", _WORD.unpack_from(raw, position)[2]
        elif kind == ofp.IT_WRITE_METADATA and length == 24:
            name, value = "metadata", _METADATA.unpack_from(raw, position)[2:]
        else:
            raise Unmodelled(f"instruction type {kind} length {length}", (ofp.ET_BAD_INSTRUCTION, ofp.BIC_UNSUP_INST))
        if name in found:
            raise Unmodelled(f"instruction {name} twice", (ofp.ET_BAD_INSTRUCTION, ofp.BIC_UNSUP_INST))
        found[name] = value
        position += length
    return Instructions(**found)  # type: ignore[arg-type]


@lru_cache(maxsize=1 << 14)
def decode_buckets(raw: bytes, select: bool) -> tuple[Bucket, ...]:
    """A bucket list; weights mean nothing outside select groups and are folded to 0 there.

    Raises:
        WireError: malformed.
        Unmodelled: an action outside ``model.rules``.
    """
    buckets: list[Bucket] = []
    position, end = 0, len(raw)
    while position < end:
        if end - position < 16:
            raise WireError("bucket cut short")
        length, weight, watch_port, watch_group = _BUCKET.unpack_from(raw, position)
        if length < 16 or length & 7 or position + length > end:
            raise WireError(f"bucket length {length} does not fit")
        actions = decode_actions(raw[position + 16 : position + length])
        buckets.append(Bucket(actions, weight if select else 0, watch_port, watch_group))
        position += length
    return tuple(buckets)
