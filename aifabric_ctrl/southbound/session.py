"""One switch's OpenFlow session as a state machine: bytes in, events out; effects in, bytes out.  No I/O, no clock.

Bytes are checked by the guard before anything is decoded.  What breaks the protocol raises WireError, what ends the
session for another reason raises SessionDead; the shell closes the connection and reports.  Everything a peer can make
us keep is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aifabric_ctrl.model.effects import PacketOut, ReadTables, SendPlan
from aifabric_ctrl.model.errors import ContractError, WireError
from aifabric_ctrl.model.events import Event, FrameIn, OddFrame, PortChanged, Session
from aifabric_ctrl.southbound.guard import Framer, Phase, check
from aifabric_ctrl.southbound.handshake import Handshake, Refusal
from aifabric_ctrl.southbound.readback import ReadBack, TablesPart, split_flows
from aifabric_ctrl.southbound.sender import PlanSender
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import encode
from aifabric_ctrl.southbound.wire import messages as m
from aifabric_ctrl.southbound.wire.decode import decode

OUTPUT_SLICE_BYTES = 65_536  # one turn of the writer: a millisecond or two of encoding
FEED_BYTES = 8_192  # of multipart replies in one call: some 80 flows, or up to 5 ms
TURN_XID = 1 << 31  # transaction ids wrap here; the upper half is for keepalive
NEWEST_VERSION = 0x0F  # with room for versions to come; TLS starts with 0x16, text with more
KEEPALIVE_XID = 0x80000000
PROOF_XID = 0x80000001  # the echo that decides who owns a datapath id


@dataclass(frozen=True)
class Limits:
    """Time-outs and bounds of one session."""

    handshake_s: float = 10.0
    echo_interval_s: float = 5.0
    echo_lost: int = 2  # unanswered echoes before the switch counts as gone
    output_bytes: int = 32 * 1024 * 1024  # waiting to be written
    output_items: int = 50_000  # messages and plans waiting
    frames_per_s: float = 5_000.0  # PACKET_IN from hosts: the meters of some 45 busy ports
    probes_per_s: float = 5_000.0  # LLDP, each way: far above one a second and port
    packet_outs_per_s: float = 5_000.0
    reply_parts: int = 4_096  # of one multipart reply
    reply_bytes: int = 64 * 1024 * 1024
    unanswered: int = 400_000  # messages of plans without a barrier's answer


LLDP = b"\x88\xcc"


def _carries_lldp(packet_in: bytes) -> bool:
    """The frame inside is LLDP; looked up where OpenFlow 1.3.5, 7.4.1 has it, before anything is decoded."""
    frame = 26 + (int.from_bytes(packet_in[26:28], "big") + 7 & ~7)
    return packet_in[frame + 12 : frame + 14] == LLDP


class SessionDead(Exception):
    """The session is over; ``kind`` is a counter's name."""

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.kind = kind


class _Bucket:
    """Token bucket that holds one second's worth."""

    def __init__(self, per_s: float, now: float) -> None:
        self._per_s, self._tokens, self._at = per_s, per_s, now

    def take(self, now: float) -> bool:
        self._tokens = min(self._per_s, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class SwitchSession:
    """See the module.  Times are monotonic seconds, passed in.

    Attributes:
        id: the session's number, never used again in this process.
        address: ``host:port`` of the peer, for people.
        counts: messages by kind.
        probe_answered: an echo sent by :meth:`probe` was answered; the shell resets it.
    """

    def __init__(self, session_id: Session, address: str, limits: Limits, now: float) -> None:
        self.id = session_id
        self.address = address
        self.counts: Counter[str] = Counter()
        self.probe_answered = False
        self._limits = limits
        self._framer = Framer()
        self._fresh = True
        self._backlog: deque[bytes] = deque()  # at most what one read held
        self._xid = 0
        self._out: deque[bytes | Iterator[bytes]] = deque()
        self._out_bytes = 0  # queued as bytes, or handed out and not yet written
        self._handshake: Handshake | None = Handshake(session_id, address, self._next_xid)
        self._started = now
        self._sender: PlanSender | None = None
        self._reading: ReadBack | None = None
        self._meters = False
        self._reply = (b"", 0, 0)  # xid, parts and bytes of the multipart reply that is arriving
        self._echo_at = now + limits.echo_interval_s
        self._echoes_open = 0
        self._frames = _Bucket(limits.frames_per_s, now)
        self._packet_outs = _Bucket(limits.packet_outs_per_s, now)
        # Discovery has buckets of its own: no flood of a host's frames may make healthy cables look dead.
        self._probes_in, self._probes_out = _Bucket(limits.probes_per_s, now), _Bucket(limits.probes_per_s, now)
        self._handlers: Mapping[type, Callable[[Any, float], list[Event]]] = {
            m.Hello: self._on_hello,
            m.ErrorMessage: self._on_error,
            m.EchoRequest: self._on_echo_request,
            m.EchoReply: self._on_echo_reply,
            m.BundleReply: self._on_bundle,
            m.FeaturesReply: self._on_features,
            m.PacketIn: self._on_packet_in,
            m.PortStatus: self._on_port_status,
            m.BarrierReply: self._on_barrier,
            m.DescReply: self._on_description,
            m.PortDescReply: self._on_ports,
            m.GroupFeaturesReply: self._on_group_features,
            m.MeterFeaturesReply: self._on_meter_features,
            m.AggregateReply: self._on_tables,
            m.FlowStatsReply: self._on_tables,
            m.GroupDescReply: self._on_tables,
            m.MeterConfigReply: self._on_tables,
        }
        self._put(encode.hello(self._next_xid()))

    @property
    def host(self) -> str:
        """The peer's address without its port."""
        return self.address.rpartition(":")[0]

    @property
    def backlog(self) -> bool:
        """More came than one call takes on: decoding a whole part of a table takes 40 ms."""
        return bool(self._backlog)

    @property
    def settled(self) -> bool:
        """Neither in its handshake nor reading tables: what comes in is news."""
        return self._handshake is None and self._reading is None

    # Input

    def feed(self, data: bytes, now: float) -> list[Event]:
        """Take bytes from the switch.  While :attr:`backlog`, call it again, with or without more bytes.

        Raises:
            WireError: they break the protocol.
            SessionDead: the peer cannot be served.
        """
        events: list[Event] = self._sender.late(now) if self._sender is not None else []
        if self._fresh and data:
            self._fresh = False
            if data[0] > NEWEST_VERSION:  # HTTP or TLS would be waited for as a long message
                raise WireError(f"the first byte is {data[0]:#x}: not OpenFlow")
        for raw in self._framer.feed(data):
            self.counts["messages_received"] += 1
            if raw[1] == ofp.PACKET_IN and not (self._probes_in if _carries_lldp(raw) else self._frames).take(now):
                self.counts["packet_ins_dropped"] += 1
                continue
            if raw[1] == ofp.MULTIPART_REPLY:
                self._bound_reply(raw)
                check(raw)  # before it is split along the lengths inside
                self._backlog.extend(split_flows(raw))
            else:
                self._backlog.append(raw)
        room = FEED_BYTES
        while self._backlog and room > 0:
            raw = self._backlog.popleft()
            if raw[1] == ofp.MULTIPART_REPLY:
                room -= len(raw)
            events += self._handle(raw, now)
        return events + self._settle(now)

    def _handle(self, raw: bytes, now: float) -> list[Event]:
        check(raw, self._handshake.phase if self._handshake is not None else Phase.MAIN)
        message = decode(raw)
        handler = self._handlers.get(type(message))
        if handler is None:
            self.counts["messages_ignored"] += 1
            return []
        try:
            return handler(message, now)
        except Refusal as refusal:
            self._put(refusal.last_words)
            raise SessionDead(str(refusal), refusal.kind) from None

    def tick(self, now: float) -> list[Event]:
        """Time passed.

        Raises:
            SessionDead: the handshake took too long, or the switch does not answer.
        """
        if self._handshake is not None:
            if now >= self._started + self._limits.handshake_s:
                waited = self._handshake.waits_for
                raise SessionDead(f"no {waited} within {self._limits.handshake_s:g} s of connecting", "handshake_timeout")
        elif now >= self._echo_at:
            self._keep_alive(now)
        events: list[Event] = []
        if self._reading is not None:
            retries = self._reading.retries
            self._put(self._reading.tick(now) or b"")
            if self._reading.retries > retries:
                events.append(OddFrame(now, self.id, "readback_unanswered", "does not answer when asked for its tables"))
        return events + self._settle(now)

    def release(self) -> None:
        """The session is over: let go of the bound methods that would keep it alive until a full collection."""
        self._handlers = {}

    @property
    def next_deadline(self) -> float:
        """When :meth:`tick` has something to do."""
        if self._handshake is not None:
            return min(self._started + self._limits.handshake_s, self._handshake.give_up_waiting_at)
        return min(self._echo_at, self._reading.next_deadline if self._reading is not None else self._echo_at)

    # Output

    def carry_out(self, effect: SendPlan | PacketOut | ReadTables, now: float) -> None:
        """Queue what an effect says.

        Raises:
            SessionDead: too much waits to be written or answered.
        """
        if self._sender is None:
            return
        if isinstance(effect, SendPlan):
            self._sender.start(effect)
            if self._sender.outstanding > self._limits.unanswered:
                raise SessionDead(f"{self._sender.outstanding} messages without an answer", "unanswered")
        elif isinstance(effect, PacketOut):
            self._packet_out(effect, now)
        else:
            self._reading = ReadBack(self.id, self._next_xid, self._meters)
            self._put(self._reading.start(now) or b"")
        if self._out_bytes > self._limits.output_bytes or len(self._out) > self._limits.output_items:
            raise SessionDead(f"{self._out_bytes} bytes wait to be written; the switch reads too slowly", "slow_reader")

    def _packet_out(self, effect: PacketOut, now: float) -> None:
        if not (self._probes_out if effect.data[12:14] == LLDP else self._packet_outs).take(now):
            self.counts["packet_outs_dropped"] += 1
            return
        try:
            self._put(encode.packet_out(self._next_xid(), effect.in_port, effect.actions, effect.data))
            self.counts["packet_outs_sent"] += 1
        except ContractError:
            self.counts["packet_outs_unsayable"] += 1

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    @property
    def unwritten(self) -> int:
        """Bytes queued or handed out that the shell has not got rid of."""
        return self._out_bytes

    def take_output(self) -> bytes:
        """The next bytes to write, at most about ``OUTPUT_SLICE_BYTES``; empty when there are none.

        Plans are encoded here, as far as they are taken, so that a large one does not hold up other switches.
        """
        parts: list[bytes] = []
        room = OUTPUT_SLICE_BYTES
        while self._out and room > 0:
            head = self._out[0]
            if isinstance(head, bytes):
                parts.append(head)
                self._out.popleft()
            else:
                part = next(head, None)
                if part is None:
                    self._out.popleft()
                    continue
                self._out_bytes += len(part)
                parts.append(part)
            room -= len(parts[-1])
        return b"".join(parts)

    def wrote(self, size: int) -> None:
        """The shell got rid of this many bytes."""
        self._out_bytes -= size

    def probe(self, now: float) -> None:
        """Ask for a sign of life, now; see :attr:`probe_answered`."""
        self.probe_answered = False
        self._put(encode.echo_request(PROOF_XID))

    def totals(self) -> Mapping[str, int]:
        """Counters that only rise."""
        sums: Counter[str] = Counter(self.counts)
        if self._sender is not None:
            sums.update({f"{kind}_sent" if kind.endswith("_mods") else kind: n for kind, n in self._sender.counts.items()})
        return sums

    def _put(self, message: bytes) -> None:
        if message:
            self._out.append(message)
            self._out_bytes += len(message)

    def _next_xid(self) -> int:
        self._xid = (self._xid + 1) % TURN_XID
        return self._xid

    # What messages mean

    def _settle(self, now: float) -> list[Event]:
        """Finish what has become complete."""
        events: list[Event] = []
        if self._handshake is not None:
            connected = self._handshake.result(now)
            if connected is None:
                return events
            self._handshake = None
            self._echo_at = now + self._limits.echo_interval_s
            self._meters = connected.features.max_meters > 0
            self._sender = PlanSender(self.id, self._next_xid, self._out.append, connected.features.bundles)
            events.append(connected)
        if self._reading is not None and self._reading.result is not None:
            events.append(self._reading.result)
            self._reading = None
        return events

    def _keep_alive(self, now: float) -> None:
        if self._echoes_open >= self._limits.echo_lost:
            raise SessionDead(f"{self._echoes_open} echo requests without an answer", "echo_timeout")
        self._echoes_open += 1
        self._echo_at = now + self._limits.echo_interval_s
        self._put(encode.echo_request(KEEPALIVE_XID))

    def _odd(self, now: float, kind: str, text: str) -> list[Event]:
        self.counts[kind] += 1
        return [OddFrame(now, self.id, kind, text)]

    def _on_hello(self, hello: m.Hello, now: float) -> list[Event]:
        if self._handshake is not None:
            self._put(self._handshake.hello(hello))
        return []

    def _on_features(self, reply: m.FeaturesReply, now: float) -> list[Event]:
        if self._handshake is not None:
            self._put(self._handshake.features(reply))
        return []

    def _on_echo_request(self, request: m.EchoRequest, now: float) -> list[Event]:
        self._put(encode.echo_reply(request.xid, request.data))
        if self._out_bytes > self._limits.output_bytes:
            raise SessionDead("sends echo requests and does not read the answers", "slow_reader")
        return []

    def _on_echo_reply(self, reply: m.EchoReply, now: float) -> list[Event]:
        self._echoes_open = 0
        if reply.xid == PROOF_XID:
            self.probe_answered = True
        return []

    def _on_packet_in(self, frame: m.PacketIn, now: float) -> list[Event]:
        if self._handshake is not None or frame.in_port is None:
            self.counts["packet_ins_dropped"] += 1
            return []
        self.counts["packet_ins_received"] += 1
        return [FrameIn(now, self.id, frame.in_port, frame.table, frame.reason, frame.cookie, frame.data)]

    def _on_port_status(self, status: m.PortStatus, now: float) -> list[Event]:
        if self._handshake is not None:
            self._handshake.port_status(status.reason, status.port)
            return []
        return [PortChanged(now, self.id, status.reason, status.port)]

    def _on_barrier(self, reply: m.BarrierReply, now: float) -> list[Event]:
        if self._handshake is not None:
            self._handshake.closed(reply.xid)
            return []
        return (self._sender.barrier(reply.xid, now) if self._sender is not None else None) or []

    def _on_bundle(self, reply: m.BundleReply, now: float) -> list[Event]:
        if self._handshake is not None:
            self._handshake.bundle_reply(reply.xid)
            return []
        return (self._sender.committed(reply.xid, now) if self._sender is not None else None) or []

    def _on_error(self, error: m.ErrorMessage, now: float) -> list[Event]:
        self.counts["errors_received"] += 1
        if self._handshake is not None:
            if error.error_type == ofp.ET_HELLO_FAILED:
                raise SessionDead(f"{self.address} refuses our HELLO: {error.name}", "version_mismatch")
            self._handshake.closed(error.xid)
            return []
        if self._reading is not None and error.xid == self._reading.xid:
            self._put(self._reading.refused(error.name, now) or b"")
            return self._odd(now, "readback_refused", f"part of its tables could not be read: {error.name}")
        events = self._sender.error(error.xid, error.name, now) if self._sender is not None else None
        if events is None:
            return self._odd(now, "error_unmatched", f"error {error.name} about nothing we asked (xid {error.xid:#x})")
        return events

    def _on_description(self, reply: m.DescReply, now: float) -> list[Event]:
        if self._handshake is not None:
            self._handshake.description(reply)
        return []

    def _on_ports(self, reply: m.PortDescReply, now: float) -> list[Event]:
        if self._handshake is not None:
            self._handshake.ports(reply, now)
        return []

    def _on_group_features(self, reply: m.GroupFeaturesReply, now: float) -> list[Event]:
        if self._handshake is not None:
            self._handshake.group_features(reply)
        return []

    def _on_meter_features(self, reply: m.MeterFeaturesReply, now: float) -> list[Event]:
        if self._handshake is not None:
            self._handshake.meter_features(reply)
        return []

    def _on_tables(self, reply: TablesPart, now: float) -> list[Event]:
        if self._reading is not None and reply.xid == self._reading.xid:
            self._put(self._reading.part(reply, now) or b"")
        else:
            self.counts["replies_unmatched"] += 1
        return []

    def _bound_reply(self, raw: bytes) -> None:
        """A reply that never ends would be kept for ever."""
        before, parts, size = self._reply
        parts, size = (parts + 1, size + len(raw)) if before == raw[4:8] else (1, len(raw))
        if parts > self._limits.reply_parts or size > self._limits.reply_bytes:
            raise WireError(f"a reply of more than {parts - 1} parts or {size} bytes")
        self._reply = (raw[4:8], parts, size)
