"""What a controller can say to a switch, as frozen values; ``switch_side`` makes them.  For fake switches and tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from aifabric_ctrl.model.ids import PortNo
from aifabric_ctrl.model.rules import Action, Flow, Group, Match, Meter
from aifabric_ctrl.southbound.wire.constants import OFPTT_ALL
from aifabric_ctrl.southbound.wire.messages import EchoReply, EchoRequest, ErrorMessage, Hello, Unrepresentable


@dataclass(frozen=True, slots=True)
class FeaturesRequest:
    xid: int


@dataclass(frozen=True, slots=True)
class BarrierRequest:
    xid: int


@dataclass(frozen=True, slots=True)
class SetConfig:
    xid: int
    flags: int
    miss_send_len: int


@dataclass(frozen=True, slots=True)
class FlowMod:
    """``flow`` carries table (255 for all, in a delete), priority, match, cookie and instructions."""

    xid: int
    command: int
    flow: Flow | Unrepresentable
    cookie_mask: int
    out_port: PortNo
    out_group: int
    flags: int
    buffer_id: int


@dataclass(frozen=True, slots=True)
class GroupMod:
    xid: int
    command: int
    group_id: int
    group: Group | Unrepresentable


@dataclass(frozen=True, slots=True)
class MeterMod:
    """``meter`` is None in a delete."""

    xid: int
    command: int
    meter_id: int
    meter: Meter | Unrepresentable | None


@dataclass(frozen=True, slots=True)
class PacketOut:
    xid: int
    in_port: PortNo
    actions: tuple[Action, ...]
    data: bytes
    buffer_id: int


@dataclass(frozen=True, slots=True)
class MultipartRequest:
    """``id`` is the port, group or meter asked for; ``queue_id`` belongs to queue statistics.

    The filter fields matter to flow and aggregate requests only.
    """

    xid: int
    kind: int
    more: bool
    id: int = 0
    queue_id: int = 0
    table: int = OFPTT_ALL
    out_port: PortNo = 0
    out_group: int = 0
    cookie: int = 0
    cookie_mask: int = 0
    match: Match = field(default_factory=Match)


@dataclass(frozen=True, slots=True)
class RoleRequest:
    xid: int
    role: int
    generation_id: int


@dataclass(frozen=True, slots=True)
class BundleControl:
    xid: int
    bundle_id: int
    control: int
    flags: int


@dataclass(frozen=True, slots=True)
class BundleAdd:
    """``message`` is a whole message; read it with ``decode_request`` again."""

    xid: int
    bundle_id: int
    flags: int
    message: bytes


@dataclass(frozen=True, slots=True)
class UnknownRequest:
    """Answer BAD_REQUEST/BAD_TYPE."""

    xid: int
    type: int


Request = (
    Hello
    | ErrorMessage
    | EchoRequest
    | EchoReply
    | FeaturesRequest
    | BarrierRequest
    | SetConfig
    | FlowMod
    | GroupMod
    | MeterMod
    | PacketOut
    | MultipartRequest
    | RoleRequest
    | BundleControl
    | BundleAdd
    | UnknownRequest
)
