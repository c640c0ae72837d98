"""Finding cables with our own LLDP: keyed, expiring tokens, both directions, paced, edge ports not probed for ever.

A probe that leaves port S and arrives at port R proves the direction S -> R.  Time-outs are judged by probes really sent
and not heard, not by the clock, so a busy controller never makes a healthy link flap (DESIGN 5).
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
from dataclasses import dataclass, replace

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.links import LinkRecord, Links
from aifabric_ctrl.engine.switches import Switches, SwitchRecord
from aifabric_ctrl.model import frames
from aifabric_ctrl.model.effects import PacketOut, SavePorts
from aifabric_ctrl.model.fabric import LinkState, Port, PortRole
from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef
from aifabric_ctrl.model.ownership import stable_hash
from aifabric_ctrl.model.rules import Output

TOKEN_MAC_BYTES = 16
TOKEN_LIFE_S = 5.0  # a relayed probe older than this proves nothing; far above any control-channel delay
EDGE_FIRST_S = 5.0  # an edge port without a host is asked again after 5, 10, 20 ... s
EDGE_ROUNDS = 6  # and then left alone until its carrier changes
HURRY_S = 0.05  # a probe due within this is soon enough
MOVED_PROBES = 10  # unheard probes on a live port whose old far end is dead: the cable leads elsewhere now


@dataclass
class Probe:
    """One port's discovery state."""

    next_at: float
    unanswered: int = 0
    rounds: int = 0
    carried_host: bool = False  # since its carrier came up


class Discovery:
    """Probes ports and gives each a role."""

    def __init__(self, context: Context, switches: Switches, links: Links, entropy: bytes) -> None:
        self._context = context
        self._switches = switches
        self._links = links
        self._key = hashlib.blake2b(b"aifabric lldp" + entropy, digest_size=32).digest()
        self._probes: dict[PortRef, Probe] = {}
        self._due: list[tuple[float, PortRef]] = []
        self._unsaved: set[Dpid] = set()
        links.on_accepted = self.adopt_role
        links.on_quarantined = self.drop_role
        self.dirty = False

    # -- what happens to ports ---------------------------------------------------------------------------------------

    def switch_connected(self, record: SwitchRecord, before: dict[PortNo, Port]) -> None:
        """Start probing every port; ports that vanished while the switch was away are forgotten."""
        for number in set(before) - set(record.ports):
            self.port_removed(PortRef(record.dpid, number))
        for number in record.ports:
            ref = PortRef(record.dpid, number)
            self._start(ref)
            # Nobody watched its carrier while the session was away: the next answer of a host counts again.
            self._probes[ref].carried_host = False
            port = record.ports[number]
            self._links.port_changed(ref, port.usable, _carrier(port))

    def forget(self, record: SwitchRecord) -> None:
        """A switch that never carried anything is gone."""
        for number in record.ports:
            self._probes.pop(PortRef(record.dpid, number), None)

    def port_removed(self, ref: PortRef) -> None:
        self._probes.pop(ref, None)
        self._links.port_changed(ref, usable=False, carrier=False)
        self.dirty = True

    def port_changed(self, ref: PortRef, before: Port | None, after: Port) -> None:
        """Carrier or liveness changed: probe afresh, at both ends of a known link."""
        if before is not None and before.usable == after.usable and _carrier(before) == _carrier(after):
            return
        probe = self._probes.get(ref)
        if probe is not None and (before is None or _carrier(before) != _carrier(after)):
            probe.carried_host = False
        self._links.port_changed(ref, after.usable, _carrier(after))
        if _carrier(after):
            self._start(ref)
            link = self._links.by_port.get(ref)
            if link is not None:
                self._start(link.other(ref))

    def host_seen(self, ref: PortRef) -> None:
        """A verified host answers at this port: it is no cable to a switch until its carrier changes."""
        probe = self._probes.get(ref)
        if probe is not None:
            probe.carried_host = True

    def _start(self, ref: PortRef) -> None:
        probe = self._probes.get(ref)
        if probe is None:
            probe = self._probes[ref] = Probe(self._context.now)
        probe.unanswered, probe.rounds = 0, 0
        self._schedule(ref, probe, self._context.now)

    def _schedule(self, ref: PortRef, probe: Probe, at: float) -> None:
        probe.next_at = at
        heapq.heappush(self._due, (at, ref))

    # -- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        return self._due[0][0] if self._due else None

    def tick(self) -> None:
        """Send the probes that are due and judge the ports whose probes went unheard."""
        while self._due and self._due[0][0] <= self._context.now:
            at, ref = heapq.heappop(self._due)
            probe = self._probes.get(ref)
            port = self._switches.port(ref)
            record = self._switches.by_dpid.get(ref.dpid)
            if probe is None or probe.next_at != at or record is None or record.session is None:
                continue
            if port is None or not _carrier(port):
                continue  # started again when the carrier comes back
            self._judge(ref, probe, port)
            self._send(ref, probe, record)

    def _judge(self, ref: PortRef, probe: Probe, port: Port) -> None:
        intent = self._context.intent
        link = self._links.by_port.get(ref)
        if link is not None:
            self._judge_link(ref, probe, link)
        elif port.role is PortRole.FABRIC and probe.unanswered >= intent.probes_lost:
            self._set_role(ref, PortRole.UNKNOWN)
        if port.role is PortRole.UNKNOWN and probe.unanswered >= intent.settle_probes and self._links.by_port.get(ref) is None:
            self._set_role(ref, PortRole.EDGE)

    def _judge_link(self, ref: PortRef, probe: Probe, link: LinkRecord) -> None:
        """The end of a known link whose probes may go unheard."""
        far = self._switches.by_dpid.get(link.other(ref).dpid)
        away = far is None or far.session is None
        dead = link.state is LinkState.DOWN and (away or not self._has_carrier(link.other(ref)))
        if probe.unanswered >= MOVED_PROBES and dead:
            self._links.remove(link, f"{self._switches.text(ref)} is up and its old far end is not: the cable leads elsewhere")
            self._set_role(ref, PortRole.UNKNOWN)
        elif link.quarantined and probe.unanswered >= MOVED_PROBES:
            self._links.remove(link, f"probes of {self._switches.text(ref)} no longer arrive at the other end")
            for end in link.key:
                self._set_role(end, PortRole.UNKNOWN)
        elif away and link.state in (LinkState.UP, LinkState.DRAINED):
            probe.unanswered = 0  # nobody there could have reported our probes
        elif probe.unanswered >= self._context.intent.probes_lost:
            self._links.direction_lost(ref)

    def _has_carrier(self, ref: PortRef) -> bool:
        port = self._switches.port(ref)
        return port is not None and _carrier(port)

    def _send(self, ref: PortRef, probe: Probe, record: SwitchRecord) -> None:
        port = record.ports[ref.port]
        if port.role is PortRole.EDGE and probe.carried_host:
            return
        token = self._token(ref)
        frame = frames.lldp(ref.dpid, ref.port, port.mac or self._context.intent.gateway_mac, 120, token)
        if record.session is not None:
            self._context.emit(PacketOut(record.session, (Output(ref.port),), frame))
        self._context.count("lldp_sent")
        probe.unanswered += 1
        intent = self._context.intent
        if port.role is PortRole.UNKNOWN:
            pause = intent.settle_interval_s
        elif port.role is PortRole.FABRIC:
            # A fixed phase per port spreads a switch's probes over the interval instead of bursting them.
            pause = intent.probe_interval_s * (0.9 + 0.2 * stable_hash(str(ref), 8) / 256)
        else:
            probe.rounds += 1
            if probe.rounds > EDGE_ROUNDS:
                return
            pause = EDGE_FIRST_S * 2.0 ** (probe.rounds - 1)
        self._schedule(ref, probe, self._context.now + pause)

    # -- probes that arrive ------------------------------------------------------------------------------------------

    def received(self, receiver: PortRef, frame: frames.LldpFrame) -> None:
        """An LLDP frame arrived at a port."""
        self._context.count("lldp_received")
        if frame.token is None:
            self._context.count("lldp_foreign")
            return
        sender = PortRef(frame.dpid or 0, frame.port or 0)
        verdict = self._check(sender, frame.token)
        if verdict:
            self._context.count(f"lldp_{verdict}")
            text = f"{self._switches.text(receiver)}: LLDP in our name with a {verdict} token; ignored"
            self._context.note_quietly(receiver, "alarm", "lldp_forged", text, {"port": str(receiver)})
            return
        from_probe, to_probe = self._probes.get(sender), self._probes.get(receiver)
        if from_probe is None or to_probe is None or sender.dpid == receiver.dpid:
            self._context.count("lldp_impossible")
            text = (
                f"{self._switches.text(receiver)}: hears its own switch's probe from {self._switches.text(sender)}; a loop cable?"
            )
            self._context.note_quietly(receiver, "warning", "lldp_loop", text, {"port": str(receiver)})
            return
        if from_probe.carried_host or to_probe.carried_host:
            text = (
                f"{self._switches.text(receiver)}: a probe of {self._switches.text(sender)} arrives where a host lives; "
                "a host relays LLDP, no link is made"
            )
            self._context.note_quietly(receiver, "alarm", "lldp_on_host_port", text, {"port": str(receiver), "from": str(sender)})
            return
        if not self._links.heard(sender, receiver):
            return
        from_probe.unanswered = 0
        link = self._links.by_port[receiver]
        if not link.quarantined:
            self.adopt_role(link.key)
        if not (link.heard_ab and link.heard_ba):
            self._hurry(receiver)

    def adopt_role(self, ends: tuple[PortRef, PortRef]) -> None:
        """Both ends of an accepted link lead to a switch."""
        for end in ends:
            self._set_role(end, PortRole.FABRIC)

    def drop_role(self, ends: tuple[PortRef, PortRef]) -> None:
        """Neither end of a quarantined link is trusted with anything."""
        for end in ends:
            self._set_role(end, PortRole.UNKNOWN)

    def _hurry(self, ref: PortRef) -> None:
        """The other direction is worth proving now rather than at the next interval."""
        probe = self._probes.get(ref)
        if probe is not None and probe.next_at > self._context.now + HURRY_S:
            self._schedule(ref, probe, self._context.now)

    def _token(self, ref: PortRef) -> bytes:
        issued = int(self._context.now * 1000).to_bytes(8, "big")
        return issued + self._mac(ref, issued)

    def _mac(self, ref: PortRef, issued: bytes) -> bytes:
        text = ref.dpid.to_bytes(8, "big") + ref.port.to_bytes(4, "big") + issued
        return hmac.new(self._key, text, hashlib.sha256).digest()[:TOKEN_MAC_BYTES]

    def _check(self, sender: PortRef, token: bytes) -> str:
        """Empty when the token is ours and fresh, else "forged" or "stale"."""
        if len(token) != 8 + TOKEN_MAC_BYTES or not hmac.compare_digest(token[8:], self._mac(sender, token[:8])):
            return "forged"
        age = self._context.now - int.from_bytes(token[:8], "big") / 1000
        return "" if -0.1 <= age <= TOKEN_LIFE_S else "stale"

    # -- roles -------------------------------------------------------------------------------------------------------

    def _set_role(self, ref: PortRef, role: PortRole) -> None:
        record = self._switches.by_dpid.get(ref.dpid)
        port = record.ports.get(ref.port) if record else None
        if record is None or port is None or port.role is role:
            return
        record.ports[ref.port] = replace(port, role=role)
        self.dirty = True
        self._unsaved.add(ref.dpid)

    def save(self) -> None:
        """Store the roles that changed, once a flush: a switch has many ports."""
        for dpid in sorted(self._unsaved):
            record = self._switches.by_dpid.get(dpid)
            if record is not None:
                self._context.emit(SavePorts(dpid, {n: p.role.value for n, p in sorted(record.ports.items())}))
        self._unsaved.clear()

    def complete(self, record: SwitchRecord) -> bool:
        """Every port of the switch that could carry something has a role."""
        for number, port in record.ports.items():
            if port.role is PortRole.UNKNOWN and _carrier(port):
                link = self._links.by_port.get(PortRef(record.dpid, number))
                if link is None or not link.quarantined:
                    return False
        return True


def _carrier(port: Port) -> bool:
    return not port.link_down and not port.admin_down
