"""Who is where: hosts learned at edge ports, verified by a probe, moved only when the old place is silent, aged by probes.

A frame from an unknown address makes a claim, nothing more.  The claim becomes a host when the address answers an ARP
probe at that very port, so a flood of invented addresses makes no rules.  Where the address already lives elsewhere, the
old place is asked first (``move_probe_s``); if it answers, the claim is refused with an alarm naming both ports.

Probes carry sender 0.0.0.0 (RFC 5227): they change no host's neighbour cache, and every stack answers them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.switches import Switches
from aifabric_ctrl.model import frames, nd
from aifabric_ctrl.model.effects import PacketOut, SaveHost
from aifabric_ctrl.model.fabric import Address, Host, PortRole, Reach
from aifabric_ctrl.model.ids import Dpid, PortRef, is_host_mac, mac_text
from aifabric_ctrl.model.rules import Output

PROBES = 3  # unanswered ones before an address is believed gone (DESIGN 3, "Silent hosts")
CLAIM_LIFE_S = 2.0
CLAIMS_MAX = 4096  # DESIGN invariant 8: what strangers can make us remember
CLAIMS_PER_PORT = 256
HOSTS_PER_PORT = 1024
REFUSED_S = 5.0  # a refused claim of the same address at the same port is not looked at again for this long
FRESH_S = 1.0  # far above the time a frame takes from a table to the engine
TOMBSTONE_S = 30.0  # longer than any packet lives in the fabric, short enough not to litter


@dataclass
class Watch:
    """Probing one host record: why, how many went unanswered, when the next is due."""

    next_at: float
    unanswered: int = 0
    urgent: bool = False


@dataclass
class Claim:
    """Somebody at ``at`` uses this address; waiting for its answer, or for the old place's silence."""

    ip: Address
    mac: int
    at: PortRef
    since: float
    next_at: float
    probes: int = 0
    answered: bool = False


class Hosts:
    """The host table and its timers."""

    def __init__(
        self,
        context: Context,
        switches: Switches,
        on_verified: Callable[[PortRef], None],
        joined: Callable[[Dpid], bool],
    ) -> None:
        self._context = context
        self._switches = switches
        self._on_verified = on_verified
        self._joined = joined
        self.by_ip: dict[Address, Host] = {}
        self.seen: dict[Address, float] = {}
        self._watch: dict[Address, Watch] = {}
        self._due: list[tuple[float, str, Address]] = []
        self._claims: dict[Address, dict[PortRef, Claim]] = {}
        self._claims_at: Counter[PortRef] = Counter()
        self._at: dict[PortRef, set[Address]] = {}
        self._refused: dict[tuple[Address, PortRef], float] = {}
        self._leaving: set[Address] = set()
        self._arrived: dict[Address, float] = {}
        self.tombstones: dict[tuple[Dpid, Address], float] = {}
        self.dirty = False

    # -- what the rest of the engine asks ------------------------------------------------------------------------------

    def restore(self, hosts: tuple[Host, ...]) -> None:
        """Hosts from the store count as reachable at once; they are probed over the first ageing period."""
        for n, host in enumerate(hosts):
            self._put(replace(host, reach=Reach.REACHABLE, verified=True, seen_s=0.0))
            self.seen[host.ip] = self._context.now
            spread = self._context.intent.host_age_s * (0.1 + 0.9 * n / max(1, len(hosts)))
            self._arm(host.ip, Watch(self._context.now + spread))
        self.dirty = bool(hosts)

    def adopt(self, ip: Address, mac: int, at: PortRef) -> None:
        """A switch holds rules of ours for a host the store does not know: believe them, and probe soon."""
        if ip in self.by_ip or len(self._at.get(at, ())) >= HOSTS_PER_PORT or not is_host_mac(mac):
            return
        now = self._context.now
        host = Host(ip, mac, at, Reach.REACHABLE, since_s=now)
        self._put(host)
        self.seen[ip] = now
        self._arm(ip, Watch(now + self._context.intent.host_age_s / 10))
        self._context.emit(SaveHost(host))
        self._context.count("hosts_adopted")

    def of_switch(self, dpid: Dpid) -> list[PortRef]:
        """Ports of this switch with hosts."""
        return [ref for ref in self._at if ref.dpid == dpid]

    def known(self, ip: Address, mac: int, at: PortRef) -> bool:
        """This very address, MAC and port are a host of ours."""
        host = self.by_ip.get(ip)
        return host is not None and host.mac == mac and host.at == at and ip not in self._leaving

    def stepping(self) -> list[Address]:
        """Hosts that wait for the next barrier to be spread one step further, or withdrawn one."""
        return [ip for ip, h in self.by_ip.items() if ip in self._leaving or h.reach < Reach.REACHABLE]

    def step(self, ips: list[Address]) -> list[Address]:
        """The barrier came: move these one step on.  Returns those that are REACHABLE now."""
        arrived: list[Address] = []
        for ip in ips:
            host = self.by_ip.get(ip)
            if host is None:
                continue
            if ip in self._leaving:
                self._step_down(host)
            elif host.reach is Reach.ROUTED:
                self._put(replace(host, reach=Reach.REACHABLE))
                self._arrived[ip] = self._context.now
                arrived.append(ip)
        return arrived

    def fresh(self, ip: Address) -> bool:
        """Became reachable a moment ago: frames sent before may still be coming up."""
        return self._context.now - self._arrived.get(ip, -FRESH_S) < FRESH_S

    def _step_down(self, host: Host) -> None:
        if host.reach is Reach.REACHABLE:
            self._put(replace(host, reach=Reach.ROUTED))
        elif host.reach is Reach.ROUTED:
            self._put(replace(host, reach=Reach.LOCAL))
        else:
            self._forget(host, tombstone=True)

    # -- frames ----------------------------------------------------------------------------------------------------------

    def claimed(self, ip: Address, mac: int, at: PortRef) -> bool:
        """A frame at an edge port carries this source.  True when it is (or has just become) that port's host."""
        if not self._plausible(ip, mac, at):
            return False
        if self.known(ip, mac, at):
            self.seen[ip] = self._context.now
            return True
        key = (ip, at)
        if self._refused.get(key, 0.0) > self._context.now:
            self._context.count("host_claims_refused")
            return False
        claim = self._claim(ip, at)
        if claim is not None and claim.mac == mac:
            return False
        if sum(self._claims_at.values()) >= CLAIMS_MAX or self._claims_at[at] >= CLAIMS_PER_PORT:
            self._context.count("host_claims_dropped")
            return False
        now = self._context.now
        if claim is None:
            self._claims_at[at] += 1
        self._claims.setdefault(ip, {})[at] = Claim(ip, mac, at, now, now)
        heapq.heappush(self._due, (now, "claim", ip))
        self._context.count("host_claims")
        self.tick()
        return False

    def _claim(self, ip: Address, at: PortRef) -> Claim | None:
        return self._claims.get(ip, {}).get(at)

    def _drop_claim(self, claim: Claim) -> None:
        of_ip = self._claims.get(claim.ip, {})
        if of_ip.pop(claim.at, None) is not None:
            self._claims_at[claim.at] -= 1
            if not self._claims_at[claim.at]:
                del self._claims_at[claim.at]
        if not of_ip:
            self._claims.pop(claim.ip, None)

    def answered(self, ip: Address, mac: int, at: PortRef) -> bool:
        """An ARP reply or a neighbour advertisement came from this port.  True when the table changed."""
        if not self._plausible(ip, mac, at):
            return False
        host = self.by_ip.get(ip)
        if host is not None and host.mac == mac and host.at == at:
            self._alive(host)
            return False
        claim = self._claim(ip, at)
        if claim is None or claim.mac != mac:
            self.claimed(ip, mac, at)  # an answer nobody asked for is a claim like any other
            return False
        claim.answered = True
        return self._decide(claim)

    def _alive(self, host: Host) -> None:
        """A host answered at its own port: it stays, and whoever else claims its address is refused."""
        self.seen[host.ip] = self._context.now
        self._on_verified(host.at)
        self._arm(host.ip, Watch(self._context.now + self._context.intent.host_age_s))
        if host.ip in self._leaving:
            self._leaving.discard(host.ip)
            if host.reach is Reach.LOCAL:
                self._put(replace(host, reach=Reach.ROUTED))
            self.dirty = True
        for claim in list(self._claims.get(host.ip, {}).values()):
            if claim.at != host.at:
                self._drop_claim(claim)
                self._refused[(claim.ip, claim.at)] = self._context.now + REFUSED_S
                self._conflict(host, claim)

    def _conflict(self, host: Host, claim: Claim) -> None:
        text = (
            f"{host.ip} is claimed by {mac_text(claim.mac)} at {self._switches.text(claim.at)} while "
            f"{mac_text(host.mac)} at {self._switches.text(host.at)} still answers; the newcomer is refused"
        )
        data = {"ip": str(host.ip), "port": str(claim.at), "owner_port": str(host.at)}
        self._context.note_quietly((host.ip, claim.at), "alarm", "duplicate_address", text, data)

    def _decide(self, claim: Claim) -> bool:
        """Make the host once it has answered and the old place, if any, is silent or gone."""
        if not claim.answered:
            return False
        old = self.by_ip.get(claim.ip)
        if old is not None and not self._silent(old, claim):
            return False
        self._drop_claim(claim)
        self._learn(claim, old)
        return True

    def _learn(self, claim: Claim, old: Host | None) -> None:
        if old is None and len(self._at.get(claim.at, ())) >= HOSTS_PER_PORT:
            text = f"{self._switches.text(claim.at)} has {HOSTS_PER_PORT} addresses already; {claim.ip} is ignored"
            self._context.note_quietly(claim.at, "alarm", "too_many_hosts", text, {"port": str(claim.at)})
            return
        now = self._context.now
        reach = Reach.ROUTED
        if old is not None:
            # The new leaf knows it and every route turns to it with one plan; DEST already lets the address in.
            reach = old.reach if old.reach >= Reach.ROUTED else Reach.ROUTED
            if old.at.dpid != claim.at.dpid:
                self.tombstones[(old.at.dpid, old.ip)] = now + TOMBSTONE_S
        host = Host(claim.ip, claim.mac, claim.at, reach, since_s=now)
        self._leaving.discard(claim.ip)
        self.tombstones.pop((claim.at.dpid, claim.ip), None)
        self._put(host)
        self.seen[claim.ip] = now
        self._arm(claim.ip, Watch(now + self._context.intent.host_age_s))
        self._on_verified(claim.at)
        self._context.emit(SaveHost(host))
        data: dict[str, object] = {"ip": str(host.ip), "mac": mac_text(host.mac), "port": str(host.at)}
        where = f"{host.ip} ({mac_text(host.mac)}) at {self._switches.text(host.at)}"
        if old is None:
            self._context.note("info", "host_learned", where, data)
        else:
            data["from"] = str(old.at)
            self._context.note("info", "host_moved", f"{where}, before at {self._switches.text(old.at)}", data)

    def _plausible(self, ip: Address, mac: int, at: PortRef) -> bool:
        """Sources a host may have; 0.0.0.0 is a probe or a DHCP client, not an address (case TOPO-10)."""
        port = self._switches.port(at)
        if port is None or port.role is not PortRole.EDGE:
            return False
        odd = ip.is_unspecified or ip.is_multicast or ip.is_loopback or ip.is_link_local or ip.is_reserved
        if odd or not is_host_mac(mac) or mac == self._context.intent.gateway_mac or ip in self._context.intent.gateways:
            if not ip.is_unspecified:
                self._context.count("host_sources_odd")
            return False
        return True

    def _silent(self, old: Host, claim: Claim) -> bool:
        """The old place had its chance to answer, or cannot have anybody any more.

        While its leaf is away but still joined to the fabric nobody can be asked, and the owner is taken to be there
        (fail static): else whoever announces an address while the controller restarts would take it.
        """
        record = self._switches.by_dpid.get(old.at.dpid)
        if record is None or record.session is None:
            return not self._joined(old.at.dpid)
        port = self._switches.port(old.at)
        if port is None or not port.usable:
            return True
        asked_since = max(claim.since, record.connected_at)
        return self._context.now >= asked_since + self._context.intent.move_probe_s

    # -- time ------------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        deadline = self._due[0][0] if self._due else None
        stones = min(self.tombstones.values(), default=None)
        both = [t for t in (deadline, stones) if t is not None]
        return min(both) if both else None

    def tick(self) -> None:
        """Send due probes, believe silence, drop old claims and tombstones."""
        now = self._context.now
        while self._due and self._due[0][0] <= now:
            at, kind, ip = heapq.heappop(self._due)
            if kind == "claim":
                self._tick_claims(ip)
            else:
                self._tick_watch(ip, at)
        gone = [k for k, until in self.tombstones.items() if until <= now]
        for key in gone:
            del self.tombstones[key]
            self.dirty = True
        if len(self._refused) > CLAIMS_MAX:
            self._refused = {k: t for k, t in self._refused.items() if t > now}

    def _tick_claims(self, ip: Address) -> None:
        now, intent = self._context.now, self._context.intent
        for claim in list(self._claims.get(ip, {}).values()):
            if claim.next_at > now:
                continue
            if now >= claim.since + CLAIM_LIFE_S:
                self._drop_claim(claim)
                continue
            old = self.by_ip.get(ip)
            if not self._decide(claim):
                # Three probes fit the old place's time to answer, so that one lost frame does not move a host.
                claim.probes += 1
                if not claim.answered:
                    self._ask(claim.ip, claim.mac, claim.at)
                if old is not None and claim.probes <= PROBES:
                    self._ask(old.ip, old.mac, old.at)
                claim.next_at = now + intent.move_probe_s / PROBES
                heapq.heappush(self._due, (claim.next_at, "claim", ip))

    def _tick_watch(self, ip: Address, at: float) -> None:
        watch, host = self._watch.get(ip), self.by_ip.get(ip)
        if watch is None or host is None or watch.next_at != at:
            return
        now, intent = self._context.now, self._context.intent
        record = self._switches.by_dpid.get(host.at.dpid)
        if record is None or record.session is None:
            self._arm(ip, Watch(now + intent.host_age_s))  # nobody there to ask for us: fail static
            return
        if watch.unanswered >= PROBES:
            self._leave(host)
            return
        watch.unanswered += 1
        self._ask(host.ip, host.mac, host.at)
        self._arm(ip, replace(watch, next_at=now + intent.host_probe_s))

    def _leave(self, host: Host) -> None:
        if host.ip not in self._leaving:
            self._leaving.add(host.ip)
            self._watch.pop(host.ip, None)
            self.dirty = True
            text = f"{host.ip} ({mac_text(host.mac)}) at {self._switches.text(host.at)} answers no more"
            self._context.note("info", "host_gone", text, {"ip": str(host.ip), "port": str(host.at)})

    def _ask(self, ip: Address, mac: int, at: PortRef) -> None:
        """Unicast ARP probe or neighbour solicitation at one port.

        The solicitation comes from the gateway's link-local address: from ``::`` it would say that we want the address.
        """
        record = self._switches.by_dpid.get(at.dpid)
        if record is None or record.session is None:
            return
        gateway = self._context.intent.gateway_mac
        if isinstance(ip, IPv4Address):
            frame = frames.arp_request(gateway, IPv4Address(0), ip, dst_mac=mac)
        else:
            frame = nd.solicit(gateway, nd.link_local(gateway), ip, dst_mac=mac)
        self._context.emit(PacketOut(record.session, (Output(at.port),), frame))
        self._context.count("host_probes_sent")

    def _arm(self, ip: Address, watch: Watch) -> None:
        self._watch[ip] = watch
        heapq.heappush(self._due, (watch.next_at, "watch", ip))

    # -- the table -------------------------------------------------------------------------------------------------------

    def port_became_fabric(self, ref: PortRef) -> None:
        """A cable to a switch turned up: whatever was learned there was learned wrongly (case TOPO-07)."""
        for host in self.at(ref):
            self._context.note("warning", "host_purged", f"{host} is no host: {self._switches.text(ref)} leads to a switch")
            self._forget(host, tombstone=False)

    def carrier_back(self, ref: PortRef) -> None:
        """The port came up again: ask whether its hosts are still the same."""
        for host in self.at(ref):
            self._arm(host.ip, Watch(self._context.now))

    def _forget(self, host: Host, tombstone: bool) -> None:
        self.by_ip.pop(host.ip, None)
        self._unplace(host)
        self.seen.pop(host.ip, None)
        self._watch.pop(host.ip, None)
        self._leaving.discard(host.ip)
        self._arrived.pop(host.ip, None)
        if tombstone:
            self.tombstones[(host.at.dpid, host.ip)] = self._context.now + TOMBSTONE_S
        self._context.emit(SaveHost(host, gone=True))
        self.dirty = True

    def at(self, ref: PortRef) -> list[Host]:
        """The hosts of one port."""
        return [self.by_ip[ip] for ip in sorted(self._at.get(ref, ()), key=str)]

    def _put(self, host: Host) -> None:
        old = self.by_ip.get(host.ip)
        if old is not None and old.at != host.at:
            self._unplace(old)
        self.by_ip[host.ip] = host
        self._at.setdefault(host.at, set()).add(host.ip)
        self.dirty = True

    def _unplace(self, host: Host) -> None:
        there = self._at.get(host.at)
        if there is not None:
            there.discard(host.ip)
            if not there:
                del self._at[host.at]
