"""What one switch did with one packet, with every rule, group and bucket on the way.  Only values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from aifabric_ctrl.model.ids import PortNo
from aifabric_ctrl.model.rules import Bucket, Flow, Group
from aifabric_ctrl.verify.packet import Packet


class Sent(NamedTuple):
    """One transmission: the port's number (IN_PORT already resolved), the packet as it leaves, its queue or None."""

    port: PortNo
    packet: Packet
    queue: int | None


class ToController(NamedTuple):
    """One packet-in: as the rule of that table and cookie sent it; ``miss`` when a table-miss entry did (OFPR_NO_MATCH)."""

    packet: Packet
    table: int
    cookie: int
    miss: bool


class GroupChoice(NamedTuple):
    """A group on the way and the bucket taken, by its place in the group; (None, None) when none was live."""

    group: Group
    number: int | None
    bucket: Bucket | None


@dataclass(frozen=True, slots=True)
class Step:
    """One table of the way: the rule that matched (None: table miss), the groups it led through, outermost first."""

    table: int
    flow: Flow | None
    groups: tuple[GroupChoice, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one switch does with one packet under one set of hash choices.

    ``dropped_at`` is empty unless nothing came out at all, and then says where and why.
    """

    outputs: tuple[Sent, ...]
    controller: tuple[ToController, ...]
    dropped_at: str
    trace: tuple[Step, ...]
    meters: tuple[int, ...]

    @property
    def to_controller(self) -> bool:
        return bool(self.controller)
