"""What a switch can say to us, as frozen values.  Holds no behaviour beyond naming; ``decode`` makes them.

``xid`` is the transaction id; replies carry the one of their request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from aifabric_ctrl.model.fabric import Port
from aifabric_ctrl.model.ids import Dpid, PortNo
from aifabric_ctrl.model.rules import Flow, Group, Meter


@dataclass(frozen=True, slots=True)
class Unrepresentable:
    """An object on a switch that ``model.rules`` cannot hold: foreign, or to be replaced when it carries our id.

    Attributes:
        kind: flow, group or meter.
        error: the (type, code) a strict switch answers when asked to install it.
        id: group or meter id; 0 for a flow.
    """

    kind: str
    text: str
    error: tuple[int, int]
    table: int = 0
    priority: int = 0
    cookie: int = 0
    id: int = 0

    def __str__(self) -> str:
        if self.kind == "flow":
            return f"flow table {self.table} priority {self.priority} cookie {self.cookie:#x}: {self.text}"
        return f"{self.kind} {self.id}: {self.text}"


class FlowStats(NamedTuple):
    """One flow entry with its counters; ``duration_s`` since it was added."""

    flow: Flow | Unrepresentable
    packet_count: int
    byte_count: int
    duration_s: float


class PortStats(NamedTuple):
    """Counters of one port, in the order of ofp_port_stats; 2**64-1 where the switch does not count."""

    port: PortNo
    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    rx_dropped: int
    tx_dropped: int
    rx_errors: int
    tx_errors: int
    rx_frame_err: int
    rx_over_err: int
    rx_crc_err: int
    collisions: int
    duration_sec: int
    duration_nsec: int


class QueueStats(NamedTuple):
    """Counters of one queue.  Open vSwitch 3.1 writes garbage into the duration (measured)."""

    port: PortNo
    queue_id: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    duration_sec: int
    duration_nsec: int


class GroupStats(NamedTuple):
    """Counters of one group; ``buckets`` are (packets, bytes) in bucket order."""

    group_id: int
    ref_count: int
    packet_count: int
    byte_count: int
    duration_s: float
    buckets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """``versions`` offered; from the bitmap, or all up to ``version`` when there is none."""

    xid: int
    version: int
    versions: frozenset[int]


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """``name`` is text like "BAD_ACTION/BAD_OUT_PORT"; ``quoted_*`` come from the message the switch quotes.

    For experimenter errors ``code`` is the exp_type.  ``quoted_xid`` is None when too little was quoted; the error's
    own ``xid`` is the request's anyway.
    """

    xid: int
    error_type: int
    code: int
    name: str
    data: bytes
    quoted_type: int | None = None
    quoted_xid: int | None = None


@dataclass(frozen=True, slots=True)
class EchoRequest:
    xid: int
    data: bytes


@dataclass(frozen=True, slots=True)
class EchoReply:
    xid: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FeaturesReply:
    xid: int
    dpid: Dpid
    n_buffers: int
    n_tables: int
    auxiliary_id: int
    capabilities: int


@dataclass(frozen=True, slots=True)
class PacketIn:
    """``in_port`` is None when the match does not say (which the specification forbids)."""

    xid: int
    in_port: PortNo | None
    table: int
    reason: int
    cookie: int
    data: bytes


@dataclass(frozen=True, slots=True)
class PortStatus:
    """``reason`` is add, delete or modify; unknown reasons arrive as modify."""

    xid: int
    reason: str
    port: Port


@dataclass(frozen=True, slots=True)
class BarrierReply:
    xid: int


@dataclass(frozen=True, slots=True)
class RoleReply:
    xid: int
    role: int
    generation_id: int


@dataclass(frozen=True, slots=True)
class BundleReply:
    """A bundle control reply: ``control`` is one of the BCT_*_REPLY numbers."""

    xid: int
    bundle_id: int
    control: int
    flags: int


@dataclass(frozen=True, slots=True)
class OtherMessage:
    """A message we know of and have no use for."""

    xid: int
    type: int


@dataclass(frozen=True, slots=True)
class DescReply:
    xid: int
    more: bool
    manufacturer: str
    hardware: str
    software: str
    serial: str
    datapath: str


@dataclass(frozen=True, slots=True)
class FlowStatsReply:
    xid: int
    more: bool
    entries: tuple[FlowStats, ...]


@dataclass(frozen=True, slots=True)
class AggregateReply:
    xid: int
    more: bool
    packet_count: int
    byte_count: int
    flow_count: int


@dataclass(frozen=True, slots=True)
class PortStatsReply:
    xid: int
    more: bool
    entries: tuple[PortStats, ...]


@dataclass(frozen=True, slots=True)
class QueueStatsReply:
    xid: int
    more: bool
    entries: tuple[QueueStats, ...]


@dataclass(frozen=True, slots=True)
class GroupStatsReply:
    xid: int
    more: bool
    entries: tuple[GroupStats, ...]


@dataclass(frozen=True, slots=True)
class GroupDescReply:
    xid: int
    more: bool
    groups: tuple[Group | Unrepresentable, ...]


@dataclass(frozen=True, slots=True)
class GroupFeaturesReply:
    """``types`` and ``actions`` are bitmaps; the tuples are indexed by group type (all, select, indirect, ff)."""

    xid: int
    more: bool
    types: int
    capabilities: int
    max_groups: tuple[int, ...]
    actions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeterConfigReply:
    xid: int
    more: bool
    meters: tuple[Meter | Unrepresentable, ...]


@dataclass(frozen=True, slots=True)
class MeterFeaturesReply:
    xid: int
    more: bool
    max_meters: int
    band_types: int
    capabilities: int
    max_bands: int
    max_color: int


@dataclass(frozen=True, slots=True)
class PortDescReply:
    xid: int
    more: bool
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class OtherMultipart:
    """A multipart reply we never ask for."""

    xid: int
    more: bool
    type: int


MultipartReply = (
    DescReply
    | FlowStatsReply
    | AggregateReply
    | PortStatsReply
    | QueueStatsReply
    | GroupStatsReply
    | GroupDescReply
    | GroupFeaturesReply
    | MeterConfigReply
    | MeterFeaturesReply
    | PortDescReply
    | OtherMultipart
)
Message = (
    Hello
    | ErrorMessage
    | EchoRequest
    | EchoReply
    | FeaturesReply
    | PacketIn
    | PortStatus
    | BarrierReply
    | RoleReply
    | BundleReply
    | OtherMessage
    | MultipartReply
)
