"""The switch's end of an OpenFlow 1.3 connection over strict tables: bytes in, bytes out.  No sockets, no clock.

Everything it was told is kept in ``requests``; every error it answered in ``errors``.  What it is asked beyond the
model is answered as a strict switch would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aifabric_ctrl.model.effects import Change
from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.fabric import Port
from aifabric_ctrl.model.ids import GROUP_ANY, PORT_ANY, PortNo
from aifabric_ctrl.model.rules import ALL, Flow, Group, Match, Meter, Output, ToGroup
from aifabric_ctrl.sim.fakeswitch import FakeSwitch
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import encode, switch_side
from aifabric_ctrl.southbound.wire import requests as rq
from aifabric_ctrl.southbound.wire.errors import error_code, error_name
from aifabric_ctrl.southbound.wire.messages import EchoRequest, FlowStats, Hello, PortStats, Unrepresentable
from aifabric_ctrl.southbound.wire.oxm import Unmodelled

Mod = rq.FlowMod | rq.GroupMod | rq.MeterMod


@dataclass
class _Bundle:
    flags: int
    messages: list[tuple[Mod, bytes]] = field(default_factory=list)
    closed: bool = False


class SwitchProtocol:
    """One connection.

    Args:
        packet_out: carries out a packet-out on the data plane.
        changed: told when tables changed.
        rng: with it, mods between two barriers are carried out in random order.
    """

    def __init__(
        self,
        switch: FakeSwitch,
        packet_out: Callable[[rq.PacketOut], None] | None = None,
        changed: Callable[[], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.switch = switch
        self.requests: list[rq.Request] = []
        self.errors: list[str] = []
        self.mute_echo = False
        self.mute_barrier = False
        self._packet_out = packet_out
        self._changed = changed
        self._rng = rng
        self._waiting: list[tuple[Mod, bytes]] = []
        self._bundles: dict[int, _Bundle] = {}
        self._in = bytearray()
        self._out: list[bytes] = [encode.hello(1)]

    # Bytes

    def feed(self, data: bytes) -> None:
        """Take bytes from the controller.

        Raises:
            WireError: it broke the protocol; a strict switch closes the connection.
        """
        self._in += data
        while len(self._in) >= ofp.HEADER_SIZE:
            length = int.from_bytes(self._in[2:4], "big")
            if length < ofp.HEADER_SIZE:
                raise WireError(f"message of length {length}")
            if len(self._in) < length:
                return
            raw = bytes(self._in[:length])
            del self._in[:length]
            self._message(raw)

    def take_output(self) -> list[bytes]:
        """Messages to send, oldest first."""
        out, self._out = self._out, []
        return out

    def say(self, message: bytes) -> None:
        """Queue any bytes, well-formed or not."""
        self._out.append(message)

    def port_status(self, port: Port, reason: str = "modify") -> None:
        self.say(switch_side.port_status(0, reason, port))

    def packet_in(self, in_port: PortNo, data: bytes, table: int = 0, reason: int = 1, cookie: int = 0) -> None:
        self.say(switch_side.packet_in(0, in_port, data, table, reason, cookie))

    @property
    def mods(self) -> list[Mod]:
        """Flow, group and meter mods received so far, also those inside bundles, in order."""
        found: list[Mod] = []
        for request in self.requests:
            if isinstance(request, rq.BundleAdd):
                request = switch_side.decode_request(request.message)
            if isinstance(request, rq.FlowMod | rq.GroupMod | rq.MeterMod):
                found.append(request)
        return found

    # Messages

    def _message(self, raw: bytes) -> None:
        xid = int.from_bytes(raw[4:8], "big")
        try:
            request = switch_side.decode_request(raw)
        except Unmodelled as beyond:
            self._error(xid, raw, beyond.error)
            return
        self.requests.append(request)
        match request:
            case rq.FlowMod() | rq.GroupMod() | rq.MeterMod():
                self._mod(request, raw)
            case rq.BarrierRequest():
                self._catch_up()
                if not self.mute_barrier:
                    self.say(switch_side.barrier_reply(xid))
            case EchoRequest(data=data):
                if not self.mute_echo:
                    self.say(encode.echo_reply(xid, data))
            case Hello(versions=versions):
                if ofp.VERSION not in versions:
                    raise WireError(f"no common version with {sorted(versions)}")
            case rq.FeaturesRequest():
                self.say(switch_side.features_reply(xid, self.switch.dpid, self.switch.features.tables))
            case rq.MultipartRequest():
                self._catch_up()
                self._multipart(request, raw)
            case rq.PacketOut():
                if self._packet_out is not None:
                    self._packet_out(request)
            case rq.RoleRequest(role=role, generation_id=generation):
                self.say(switch_side.role_reply(xid, role, generation))
            case rq.BundleControl() | rq.BundleAdd():
                self._catch_up()
                self._bundle(request, raw)
            case rq.UnknownRequest():
                self._error(xid, raw, "BAD_REQUEST/BAD_TYPE")
            case _:
                pass

    def _error(self, xid: int, raw: bytes, error: str | tuple[int, int]) -> None:
        kind, code, who = error_code(error) if isinstance(error, str) else (*error, 0)
        self.errors.append(error_name(kind, code, who))
        self.say(switch_side.error(xid, kind, code, raw, who or None))

    # Mods

    def _mod(self, mod: Mod, raw: bytes) -> None:
        if self._rng is not None:
            self._waiting.append((mod, raw))
        else:
            self._carry_out(mod, raw)

    def _catch_up(self) -> None:
        """Carry out, in any order, what waits for a barrier."""
        waiting, self._waiting = self._waiting, []
        if self._rng is not None:
            self._rng.shuffle(waiting)
        for mod, raw in waiting:
            self._carry_out(mod, raw)

    def _carry_out(self, mod: Mod, raw: bytes) -> None:
        error = self._apply(mod)
        if error is not None:
            self._error(mod.xid, raw, error)
        elif self._changed is not None:
            self._changed()

    def _apply(self, mod: Mod) -> str | tuple[int, int] | None:
        if isinstance(mod, rq.FlowMod):
            return self._apply_flow(mod)
        item = mod.group if isinstance(mod, rq.GroupMod) else mod.meter
        if isinstance(item, Unrepresentable):
            return item.error
        if isinstance(mod, rq.GroupMod):
            return self._apply_group(mod)
        if mod.command == ofp.MC_DELETE:
            return self.switch.tables.apply(Change("delete", Meter(mod.meter_id, 1, 1)))
        return self.switch.tables.apply(Change("put", item, mod.command == ofp.MC_MODIFY)) if item is not None else None

    def _apply_group(self, mod: rq.GroupMod) -> str | None:
        tables = self.switch.tables
        if mod.command == ofp.GC_DELETE:
            doomed = list(tables.groups) if mod.group_id == ofp.GROUP_ALL else [mod.group_id]
            for group_id in doomed:
                tables.apply(Change("delete", Group(group_id, ALL, ())))
            return None
        if mod.command > ofp.GC_DELETE or isinstance(mod.group, Unrepresentable):
            return "GROUP_MOD_FAILED/BAD_COMMAND"
        return tables.apply(Change("put", mod.group, mod.command == ofp.GC_MODIFY))

    def _apply_flow(self, mod: rq.FlowMod) -> str | tuple[int, int] | None:
        flow, tables = mod.flow, self.switch.tables
        if isinstance(flow, Unrepresentable):
            return flow.error
        if mod.command == ofp.FC_ADD:
            if mod.buffer_id != ofp.NO_BUFFER:
                return "BAD_REQUEST/BUFFER_UNKNOWN"
            return tables.apply(Change("put", flow))
        if mod.command not in (ofp.FC_DELETE, ofp.FC_DELETE_STRICT):
            return "FLOW_MOD_FAILED/BAD_COMMAND"  # OVS takes MODIFY; we never send it, because it keeps the old cookie
        doomed = [f for f in tables.flows.values() if _chosen(f, mod, flow)]
        if not doomed:
            tables.violations.append(f"delete that matches no flow: table {flow.table} priority {flow.priority} [{flow.match}]")
        for victim in doomed:
            tables.apply(Change("delete", victim))
        return None

    # Bundles

    def _bundle(self, request: rq.BundleControl | rq.BundleAdd, raw: bytes) -> None:
        if not self.switch.features.bundles:
            self._error(request.xid, raw, "BAD_REQUEST/BAD_EXPERIMENTER")
        elif isinstance(request, rq.BundleAdd):
            self._bundle_add(request, raw)
        else:
            self._bundle_control(request, raw)

    def _bundle_add(self, request: rq.BundleAdd, raw: bytes) -> None:
        bundle = self._bundles.get(request.bundle_id)
        inner = switch_side.decode_request(request.message)
        if bundle is None or bundle.closed:
            self._error(request.xid, raw, "BUNDLE/BAD_ID" if bundle is None else "BUNDLE/BUNDLE_CLOSED")
        elif bundle.flags != request.flags:
            self._error(request.xid, raw, "BUNDLE/BAD_FLAGS")
        elif not isinstance(inner, rq.FlowMod | rq.GroupMod):
            self._error(request.xid, raw, "BUNDLE/MSG_UNSUP")
        else:
            bundle.messages.append((inner, request.message))

    def _bundle_control(self, request: rq.BundleControl, raw: bytes) -> None:
        bundle = self._bundles.get(request.bundle_id)
        if request.control == ofp.BCT_OPEN_REQUEST:
            if bundle is not None:  # OVS throws the open one away and answers this
                del self._bundles[request.bundle_id]
                self._error(request.xid, raw, "BUNDLE/BAD_ID")
                return
            self._bundles[request.bundle_id] = _Bundle(request.flags)
        elif bundle is None:
            self._error(request.xid, raw, "BUNDLE/BAD_ID")
            return
        elif request.control == ofp.BCT_CLOSE_REQUEST:
            bundle.closed = True
        elif request.control == ofp.BCT_DISCARD_REQUEST:
            del self._bundles[request.bundle_id]
        elif request.control == ofp.BCT_COMMIT_REQUEST:
            del self._bundles[request.bundle_id]
            if not self._commit(bundle):
                self._error(request.xid, raw, "BUNDLE/MSG_FAILED")
                return
        else:
            self._error(request.xid, raw, "BUNDLE/BAD_TYPE")
            return
        self.say(switch_side.bundle_control_reply(request.xid, request.bundle_id, request.control + 1, request.flags))

    def _commit(self, bundle: _Bundle) -> bool:
        """All or nothing; the first refused message is named before the commit itself is refused, as OVS does."""
        undo = self.switch.tables.checkpoint()
        for mod, raw in bundle.messages:
            error = self._apply(mod)
            if error is not None:
                undo()
                self._error(mod.xid, raw, error)
                return False
        if self._changed is not None:
            self._changed()
        return True

    # Multiparts

    def _multipart(self, request: rq.MultipartRequest, raw: bytes) -> None:
        switch, xid = self.switch, request.xid
        match request.kind:
            case ofp.MP_DESC:
                hardware = "Open vSwitch" if switch.features.nicira else "Fake"
                self.say(
                    switch_side.desc_reply(
                        xid, "Nicira, Inc." if switch.features.nicira else "Nobody", hardware, "3.1.0", "None", switch.name
                    )
                )
            case ofp.MP_PORT_DESC:
                self._out += switch_side.port_desc_replies(xid, switch.ports.values())
            case ofp.MP_GROUP_FEATURES:
                self.say(switch_side.group_features_reply(xid, switch.features.max_groups))
            case ofp.MP_METER_FEATURES:
                self.say(switch_side.meter_features_reply(xid, switch.features.max_meters))
            case ofp.MP_FLOW:
                self._out += switch_side.flow_stats_replies(xid, (FlowStats(f, 0, 0, 1.0) for f in self._asked(request)))
            case ofp.MP_AGGREGATE:
                self.say(switch_side.aggregate_reply(xid, 0, 0, sum(1 for _ in self._asked(request))))
            case ofp.MP_GROUP_DESC:
                self._out += switch_side.group_desc_replies(xid, switch.tables.groups.values())
            case ofp.MP_METER_CONFIG:
                self._out += switch_side.meter_config_replies(xid, switch.tables.meters.values())
            case ofp.MP_PORT_STATS:
                self._out += switch_side.port_stats_replies(xid, (PortStats(p, *[0] * 14) for p in switch.ports))
            case ofp.MP_QUEUE:
                self._out += switch_side.queue_stats_replies(xid, ())
            case _:
                self._error(xid, raw, "BAD_REQUEST/BAD_MULTIPART")

    def _asked(self, request: rq.MultipartRequest) -> Iterator[Flow]:
        for flow in self.switch.tables.flows.values():
            if request.table not in (flow.table, ofp.OFPTT_ALL) or (flow.cookie ^ request.cookie) & request.cookie_mask:
                continue
            if _sends(flow, request.out_port, request.out_group) and covers(request.match, flow.match):
                yield flow


def covers(wide: Match, narrow: Match) -> bool:
    """Every packet that matches ``narrow`` matches ``wide`` (OpenFlow 1.3.5, 6.4: non-strict delete and statistics)."""
    for name, value, mask in wide.fields:
        inner = narrow.get(name)
        if inner is None:
            return False
        _, have, inner_mask = inner
        if inner_mask is not None and (mask is None or mask & ~inner_mask):
            return False
        if (have if mask is None else have & mask) != value:
            return False
    return True


def _sends(flow: Flow, out_port: PortNo, out_group: int) -> bool:
    if out_port != PORT_ANY and not any(isinstance(a, Output) and a.port == out_port for a in flow.actions):
        return False
    return out_group == GROUP_ANY or any(isinstance(a, ToGroup) and a.group_id == out_group for a in flow.actions)


def _chosen(flow: Flow, mod: rq.FlowMod, wanted: Flow) -> bool:
    """Does a delete mean this flow?"""
    if wanted.table not in (flow.table, ofp.OFPTT_ALL) or (flow.cookie ^ wanted.cookie) & mod.cookie_mask:
        return False
    if not _sends(flow, mod.out_port, mod.out_group):
        return False
    if mod.command == ofp.FC_DELETE_STRICT:
        return flow.priority == wanted.priority and flow.match == wanted.match
    return covers(wanted.match, flow.match)
