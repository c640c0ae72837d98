"""First packets that wait: for their sender to become a host, or for a silent destination to be found.

Bounded in packets per address, in all, and in time.  A released packet goes back through the switch's own tables
(OFPP_TABLE), so it meets the same rules as any other.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from ipaddress import IPv4Address

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.switches import Switches
from aifabric_ctrl.model import frames, nd
from aifabric_ctrl.model.backoff import backoff_s
from aifabric_ctrl.model.effects import PacketOut
from aifabric_ctrl.model.fabric import Address, PortRole
from aifabric_ctrl.model.ids import PORT_TABLE, PortRef
from aifabric_ctrl.model.rules import Output

# When to ask for a silent destination after its first packet: at once, then for probes that got lost on the way.
SEARCH_AT_S = (0.0, 0.1, 0.4, 1.0)
SEARCH_AGAIN_S = 1.0  # an address nobody answered for is not searched again for this long, doubling
SEARCH_AGAIN_MAX_S = 30.0
SEARCHES_PER_S = 100.0  # over the whole fabric; each asks every edge port once
SEARCHES_MAX = 4096


@dataclass
class Search:
    """Looking for one address."""

    started: float
    step: int = 0
    next_at: float = 0.0
    failures: int = 0
    quiet_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """One frame as it came in."""

    at: PortRef
    data: bytes
    until: float


class Holding:
    """Held frames by the address they wait for, and the searches under way."""

    def __init__(self, context: Context, switches: Switches) -> None:
        self._context = context
        self._switches = switches
        self._held: dict[Address, list[Held]] = {}
        self._total = 0
        self._searches: dict[Address, Search] = {}
        self._due: list[tuple[float, str, Address]] = []
        self._tokens, self._refilled = SEARCHES_PER_S, 0.0

    def hold(self, waits_for: Address, at: PortRef, data: bytes) -> None:
        """Keep a frame until that address is a reachable host, or time is up."""
        queue = self._held.setdefault(waits_for, [])
        if len(queue) >= self._context.intent.hold_packets or self._total >= self._context.intent.hold_total:
            self._context.count("held_packets_dropped")
            if not queue:
                del self._held[waits_for]
            return
        until = self._context.now + self._context.intent.hold_s
        queue.append(Held(at, data, until))
        self._total += 1
        heapq.heappush(self._due, (until, "expire", waits_for))
        self._context.count("held_packets")

    def search(self, ip: Address) -> None:
        """Ask every edge port for an address nobody has claimed."""
        now = self._context.now
        search = self._searches.get(ip)
        if search is not None and (search.step < len(SEARCH_AT_S) or now < search.quiet_until):
            return
        if search is None:
            if len(self._searches) >= SEARCHES_MAX:
                self._forget_old()
            if len(self._searches) >= SEARCHES_MAX:
                self._context.count("searches_dropped")
                return
            search = self._searches[ip] = Search(now)
        search.started, search.step, search.next_at = now, 0, now
        heapq.heappush(self._due, (now, "search", ip))
        self.tick()

    def release(self, ip: Address) -> None:
        """The address is reachable now: let its frames go."""
        self._searches.pop(ip, None)
        for held in self._held.pop(ip, ()):
            self._total -= 1
            record = self._switches.by_dpid.get(held.at.dpid)
            if held.until > self._context.now and record is not None and record.session is not None:
                self._context.emit(PacketOut(record.session, (Output(PORT_TABLE),), held.data, held.at.port))
                self._context.count("held_packets_released")

    def next_deadline(self) -> float | None:
        return self._due[0][0] if self._due else None

    def tick(self) -> None:
        """Send due searches, drop what waited too long."""
        now = self._context.now
        while self._due and self._due[0][0] <= now:
            _, kind, ip = heapq.heappop(self._due)
            if kind == "search":
                self._tick_search(ip)
            else:
                self._expire(ip)

    def _tick_search(self, ip: Address) -> None:
        search, now = self._searches.get(ip), self._context.now
        if search is None or search.next_at > now:
            return
        if search.step >= len(SEARCH_AT_S):
            search.failures += 1
            search.quiet_until = now + backoff_s(SEARCH_AGAIN_S, search.failures - 1, SEARCH_AGAIN_MAX_S)
            return
        if self._allowed():
            self._ask_everywhere(ip)
        search.step += 1
        last = search.step >= len(SEARCH_AT_S)
        search.next_at = search.started + (SEARCH_AT_S[-1] + SEARCH_AGAIN_S if last else SEARCH_AT_S[search.step])
        heapq.heappush(self._due, (search.next_at, "search", ip))

    def _allowed(self) -> bool:
        now = self._context.now
        self._tokens = min(SEARCHES_PER_S, self._tokens + (now - self._refilled) * SEARCHES_PER_S)
        self._refilled = now
        if self._tokens < 1.0:
            self._context.count("searches_throttled")
            return False
        self._tokens -= 1.0
        return True

    def _ask_everywhere(self, ip: Address) -> None:
        gateway = self._context.intent.gateway_mac
        if isinstance(ip, IPv4Address):
            frame = frames.arp_request(gateway, IPv4Address(0), ip)
        else:
            frame = nd.solicit(gateway, nd.link_local(gateway), ip)
        for record in self._switches:
            ports = tuple(Output(n) for n, p in sorted(record.ports.items()) if p.role is PortRole.EDGE and p.usable)
            if ports and record.session is not None:
                self._context.emit(PacketOut(record.session, ports, frame))
        self._context.count("searches_sent")

    def _expire(self, ip: Address) -> None:
        queue = self._held.get(ip)
        if queue is None:
            return
        keep = [h for h in queue if h.until > self._context.now]
        self._context.count("held_packets_expired", len(queue) - len(keep))
        self._total -= len(queue) - len(keep)
        if keep:
            self._held[ip] = keep
        else:
            del self._held[ip]

    def _forget_old(self) -> None:
        now = self._context.now
        self._searches = {ip: s for ip, s in self._searches.items() if s.step < len(SEARCH_AT_S) or s.quiet_until > now}
