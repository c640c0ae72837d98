"""Runs one switch's tables on one packet, as Open vSwitch 3.1 executes OpenFlow 1.3.

Pure, and the judge of what the compiler made: it must not share code with the compiler.  Where OVS differs from the
letter of OpenFlow 1.3 (bucket actions run as an action set, ``output`` to the in-port is dropped, a fast-failover group
reverts by itself), this follows OVS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from aifabric_ctrl.model import ids
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.fields import ETH_IP, ETH_IP6, FIELDS
from aifabric_ctrl.model.ids import PortNo
from aifabric_ctrl.model.rules import (
    ALL,
    FAST_FAILOVER,
    INDIRECT,
    SELECT,
    Action,
    Bucket,
    DecTtl,
    Flow,
    Group,
    Move,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
    Tables,
    ToGroup,
)
from aifabric_ctrl.verify.liveness import MAX_DEPTH, Liveness, LivePort, bucket_alive, liveness
from aifabric_ctrl.verify.lookup import Index, index_of, reference_lookup
from aifabric_ctrl.verify.outcome import GroupChoice, Outcome, Sent, Step, ToController
from aifabric_ctrl.verify.packet import (
    PIPELINE_FIELDS,
    Packet,
    arp,
    arp_reply,
    arp_request,
    icmp4_echo,
    tcp4,
    udp4,
)

__all__ = [
    "GroupChoice",
    "Liveness",
    "Outcome",
    "Packet",
    "Sent",
    "Step",
    "ToController",
    "arp",
    "arp_reply",
    "arp_request",
    "bucket_alive",
    "icmp4_echo",
    "index_of",
    "reference_lookup",
    "run",
    "run_actions",
    "tcp4",
    "udp4",
]

Choose = Callable[[Group, Sequence[Bucket]], int]
_Pick = Callable[[Group], int]  # the place of the bucket to take, of a group that has a live one

VLAN_PRESENT = 0x1000
_HIDDEN_IN_FRAGMENTS = frozenset({"tcp_src", "tcp_dst", "udp_src", "udp_dst", "icmpv4_type", "icmpv4_code"})


def run(
    tables: Tables,
    packet: Packet,
    in_port: PortNo,
    live: LivePort,
    choose: Choose | None = None,
    start_table: int = 0,
) -> list[Outcome]:
    """Carry a packet through the tables.

    Args:
        live: whether a port of this switch is live (link up and BFD, as a watch port sees it).
        choose: picks a live bucket of a select group by its place among the live ones; without it every different
            choice is an outcome (buckets with equal actions count once).

    Raises:
        ContractError: the tables themselves are wrong (ambiguous entries, goto backwards, a field that is not there).
    """

    alive = liveness(tables, live)

    def once(pick: _Pick) -> Outcome:
        machine = _Machine(alive, packet, in_port, pick)
        machine.pipeline(start_table)
        return machine.outcome()

    return _outcomes(once, alive, choose)


def run_actions(
    tables: Tables,
    actions: Sequence[Action],
    packet: Packet,
    in_port: PortNo,
    live: LivePort,
    choose: Choose | None = None,
) -> list[Outcome]:
    """A packet-out: an action list, in which ``Output(PORT_TABLE)`` starts the pipeline.  As :func:`run` otherwise."""

    alive = liveness(tables, live)

    def once(pick: _Pick) -> Outcome:
        machine = _Machine(alive, packet, in_port, pick)
        machine.packet_out(actions)
        return machine.outcome()

    return _outcomes(once, alive, choose)


class _Replay:
    """Chooses by a script and takes the first choice beyond it, so that running again and again tries them all."""

    def __init__(self, alive: Liveness, script: Sequence[int]) -> None:
        self._alive = alive
        self._script = script
        self._made: list[tuple[int, int]] = []

    def __call__(self, group: Group) -> int:
        places = self._alive.different(group)
        step = len(self._made)
        turn = self._script[step] if step < len(self._script) else 0
        self._made.append((turn, len(places)))
        return places[turn]

    def next_script(self) -> list[int] | None:
        made = list(self._made)
        while made and made[-1][0] == made[-1][1] - 1:
            made.pop()
        if not made:
            return None
        return [turn for turn, _ in made[:-1]] + [made[-1][0] + 1]


def _outcomes(once: Callable[[_Pick], Outcome], alive: Liveness, choose: Choose | None) -> list[Outcome]:
    if choose is not None:

        def pick(group: Group) -> int:
            places = alive.places(group)
            return places[choose(group, [group.buckets[n] for n in places])]

        return [once(pick)]
    outcomes: list[Outcome] = []
    script: list[int] | None = []
    while script is not None:
        replay = _Replay(alive, script)
        outcomes.append(once(replay))
        script = replay.next_script()
    return outcomes


@lru_cache(maxsize=4096)
def as_action_set(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """The order in which OVS runs a bucket: an action set (OpenFlow 1.3.5, 5.10), not a list.

    So dec_ttl counts once however often it is written, fields are set after it, and only the last group, or else the
    last output, is executed.
    """
    last: dict[type, Action] = {type(a): a for a in actions}
    ordered: list[Action] = [last[kind] for kind in (PopVlan, PushVlan, DecTtl) if kind in last]
    ordered += [a for a in actions if isinstance(a, SetField | Move)]
    if SetQueue in last:
        ordered.append(last[SetQueue])
    final = last.get(ToGroup) or last.get(Output)
    if final is not None:
        ordered.append(final)
    return tuple(ordered)


@dataclass(slots=True)
class _OpenStep:
    table: int
    flow: Flow | None
    groups: list[GroupChoice] = field(default_factory=list)
    text: str = ""


class _Machine:
    """One packet's way through one switch."""

    def __init__(self, alive: Liveness, packet: Packet, in_port: PortNo, pick: _Pick) -> None:
        self._tables = alive.tables
        self._index: Index = index_of(alive.tables)
        self._payload = packet.payload
        self._in_port = in_port
        self._alive = alive
        self._pick = pick
        self._state: dict[str, int] = {**packet, **dict.fromkeys(PIPELINE_FIELDS, 0), "in_port": in_port}
        self._queue: int | None = None
        self._sent: list[Sent] = []
        self._controller: list[ToController] = []
        self._meters: list[int] = []
        self._steps: list[_OpenStep] = []
        self._lost = ""

    def outcome(self) -> Outcome:
        trace = tuple(Step(s.table, s.flow, tuple(s.groups), s.text) for s in self._steps)
        out = self._sent or self._controller
        dropped = "" if out else (self._lost or f"table {self._steps[-1].table if self._steps else 0}: rule has no output")
        return Outcome(tuple(self._sent), tuple(self._controller), dropped, trace, tuple(self._meters))

    def pipeline(self, table: int) -> None:
        while True:
            flow = self._index.lookup(table, self._seen())
            self._steps.append(_OpenStep(table, flow))
            if flow is None:
                self._note(f"table {table}: no rule matches")
                return
            if flow.meter is not None:
                self._meters.append(flow.meter)
            if not self._apply(flow.actions, 0):
                return
            if flow.metadata is not None:
                value, mask = flow.metadata
                self._state["metadata"] = (self._state["metadata"] & ~mask) | (value & mask)
            if flow.goto is None:
                return
            if flow.goto <= table:
                raise ContractError(f"table {table} goes back to table {flow.goto} [{flow.match}]")
            table = flow.goto

    def _seen(self) -> dict[str, int]:
        """What lookups see: of any fragment, also the first, OVS hides the ports (frag mode "normal", its default)."""
        if not self._state.get("nw_frag"):
            return self._state
        return {n: 0 if n in _HIDDEN_IN_FRAGMENTS else v for n, v in self._state.items()}

    def packet_out(self, actions: Sequence[Action]) -> None:
        self._steps.append(_OpenStep(0, None, text="packet-out"))
        for action in actions:
            if isinstance(action, Output) and action.port == ids.PORT_TABLE:
                state, queue = dict(self._state), self._queue
                self.pipeline(0)
                self._state, self._queue = state, queue
            elif not self._apply((action,), 0):
                return

    def _note(self, text: str) -> None:
        """Say what happened on the step in hand; the last such note explains a packet of which nothing came out."""
        step = self._steps[-1]
        step.text = f"{step.text}; {text}" if step.text else text
        self._lost = text

    def _apply(self, actions: Sequence[Action], depth: int) -> bool:
        """Run a list; False when the packet died in it (TTL), which also ends what would follow it."""
        for action in actions:
            match action:
                case Output(port=port):
                    self._output(port)
                case ToGroup(group_id=group_id):
                    self._group(group_id, depth + 1)
                case SetField(field=name, value=value):
                    self._check(name)
                    self._state[name] = value
                case Move():
                    self._move(action)
                case SetQueue(queue_id=queue_id):
                    self._queue = queue_id
                case DecTtl():
                    if not self._dec_ttl():
                        return False
                case PushVlan():
                    self._state["vlan_vid"] = VLAN_PRESENT
                case PopVlan():
                    self._state["vlan_vid"] = 0
        return True

    def _dec_ttl(self) -> bool:
        if self._state.get("eth_type") not in (ETH_IP, ETH_IP6):
            return True  # OVS: dec_ttl does nothing to what has no TTL
        ttl = self._state.get("nw_ttl", 0)
        if ttl <= 1:
            self._note(f"table {self._steps[-1].table}: TTL ran out")
            return False
        self._state["nw_ttl"] = ttl - 1
        return True

    def _output(self, port: PortNo) -> None:
        if port == ids.PORT_CONTROLLER:
            step = self._steps[-1]
            miss = step.flow is not None and step.flow.priority == 0 and not step.flow.match.fields
            self._controller.append(ToController(self._packet(), step.table, step.flow.cookie if step.flow else 0, miss))
        elif port == ids.PORT_IN_PORT:
            self._sent.append(Sent(self._in_port, self._packet(), self._queue))
        elif port == self._in_port:
            self._note(f"table {self._steps[-1].table}: output to the in-port {port}")
        elif ids.is_physical(port) or port == ids.PORT_LOCAL:
            self._sent.append(Sent(port, self._packet(), self._queue))
        else:
            raise ContractError(f"output to reserved port {port:#x}")

    def _packet(self) -> Packet:
        return Packet({n: v for n, v in self._state.items() if n not in PIPELINE_FIELDS}, self._payload)

    def _group(self, group_id: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ContractError(f"group {group_id:#x} lies {MAX_DEPTH} groups deep")
        group = self._tables.groups.get(group_id)
        if group is None:
            self._note(f"group {group_id:#x} does not exist")
            return
        chosen = self._buckets(group)
        if not chosen:
            self._steps[-1].groups.append(GroupChoice(group, None, None))
            self._note(f"group {group_id:#x}: no live bucket")
        for number in chosen:
            bucket = group.buckets[number]
            self._steps[-1].groups.append(GroupChoice(group, number, bucket))
            state, queue = dict(self._state), self._queue
            self._apply(as_action_set(bucket.actions), depth)
            self._state, self._queue = state, queue

    def _buckets(self, group: Group) -> list[int]:
        """Which buckets run, by their place in the group.  OVS asks for liveness in select and fast failover only."""
        if group.type in (ALL, INDIRECT):
            return list(range(len(group.buckets)))
        if group.type == FAST_FAILOVER:
            first = next((n for n, b in enumerate(group.buckets) if self._alive.bucket(b)), None)
            return [] if first is None else [first]
        if group.type != SELECT:
            raise ContractError(f"group {group.group_id:#x} has unknown type {group.type!r}")
        return [self._pick(group)] if self._alive.places(group) else []

    def _move(self, move: Move) -> None:
        self._check(move.src)
        self._check(move.dst)
        for name, offset in ((move.src, move.src_offset), (move.dst, move.dst_offset)):
            if move.bits < 1 or offset + move.bits > FIELDS[name].bits:
                raise ContractError(f"move of {move.bits} bits does not fit {name} from bit {offset}")
        mask = (1 << move.bits) - 1
        value = self._state.get(move.src, 0) >> move.src_offset & mask
        kept = self._state.get(move.dst, 0) & ~(mask << move.dst_offset)
        self._state[move.dst] = kept | value << move.dst_offset

    def _check(self, name: str) -> None:
        """A field may be read or written only when the packet has what it needs (OVS refuses such rules)."""
        spec = FIELDS.get(name)
        if spec is None:
            raise ContractError(f"action on unknown field {name!r}")
        for needed, allowed in spec.needs:
            if self._state.get(needed) not in allowed:
                raise ContractError(f"action on {name} in a packet whose {needed} is {self._state.get(needed)}")
