"""Which Interface rows to write so that BFD runs on both ends of every wanted link, and on no port of ours besides.

Pure: time and a snapshot of the databases come in, writes go out.  A port with BFD on one end only counts as dead in
Open vSwitch, so both ends go together; and a session needs a second or two to come up, so a link begins only when the
engine says that it may (it knows which links can be spared at the same time).  Level, not edge: everything that must be
known after a crash is in the rows themselves (``MARK``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef

MARK = "aifabric-bfd"  # key in Interface.external_ids: this BFD is ours
TRYING = "trying"  # enabled, never yet seen up at both ends: may be taken back
PROVED = "proved"  # was up at both ends: when it goes down the link is broken, so it stays, or traffic would return to it

MULT = "3"
UP_WITHIN_S = 10.0  # Open vSwitch sends once a second until the session is up, so some 3 s are normal
SETTLE_S = 1.0  # vswitchd writes bfd_status with a delay of its own; earlier it may still show the old session
REWRITE_S = 1.0
RETRY_S, RETRY_MAX_S = 30.0, 3600.0  # each try takes the link away for UP_WITHIN_S
RELEASE_AFTER_S = 30.0  # a link that is unwanted for a moment only (a flap, a restart) keeps its session

LinkEnds = tuple[PortRef, PortRef]


@dataclass(frozen=True, slots=True)
class PortRow:
    """One Interface row.  ``database`` is the remote it was read from, ``state`` is bfd_status:state or empty."""

    database: str
    uuid: str
    name: str = ""
    bfd: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    mark: str = ""

    @property
    def foreign(self) -> bool:
        return bool(self.bfd) and not self.mark


@dataclass(frozen=True, slots=True)
class BridgeRow:
    """One bridge; ``fail_mode`` is the one in force (the database leaves it empty for standalone)."""

    uuid: str
    name: str
    dpid: Dpid
    fail_mode: str
    ports: Mapping[PortNo, PortRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PortWrite:
    """Set our BFD keys and the mark on one Interface row; with an empty mark take both away."""

    database: str
    uuid: str
    bfd: Mapping[str, str]
    mark: str


@dataclass(slots=True)
class _Progress:
    started_s: float
    wrote_s: float


@dataclass(slots=True)
class _Failure:
    count: int
    retry_s: float


def merge(databases: Iterable[Collection[BridgeRow]]) -> tuple[dict[Dpid, BridgeRow], dict[Dpid, str]]:
    """One bridge a datapath id, and what is wrong with the others.

    The same row seen through two remotes is one bridge; two different bridges with one datapath id are none, because
    nobody can tell which of them the OpenFlow session belongs to.
    """
    found: dict[Dpid, BridgeRow] = {}
    problems: dict[Dpid, str] = {}
    for bridges in databases:
        for bridge in bridges:
            first = found.setdefault(bridge.dpid, bridge)
            if first.uuid != bridge.uuid:
                problems[bridge.dpid] = (
                    f"bridges {first.name} and {bridge.name} have the same datapath id; BFD is left alone on both"
                )
    return {dpid: bridge for dpid, bridge in found.items() if dpid not in problems}, problems


class BfdPlanner:
    """Turns the wanted links and what the databases hold into writes, a step at a time.

    After each ``step``, ``errors`` holds what keeps a switch from what is wanted and ``busy`` says that a next step is
    due soon.
    """

    def __init__(self, release_after_s: float = RELEASE_AFTER_S) -> None:
        self._release_after_s = release_after_s
        self._known = False  # nothing is released before the first `want`: a restarted controller knows no links yet
        self._links: tuple[LinkEnds, ...] = ()
        self._ports: frozenset[PortRef] = frozenset()
        self._twice: tuple[PortRef, ...] = ()
        self._values: dict[str, str] = {}
        self._start_now: frozenset[LinkEnds] = frozenset()
        self._own: set[Dpid] = set()  # switches that have had a wanted link: others may be another controller's
        self._progress: dict[LinkEnds, _Progress] = {}
        self._failures: dict[LinkEnds, _Failure] = {}
        self._unwanted_s: dict[str, float] = {}
        self.errors: dict[Dpid, list[str]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._progress)

    @property
    def ports(self) -> frozenset[PortRef]:
        """The ports wanted."""
        return self._ports

    def want(self, links: Iterable[LinkEnds], interval_ms: int, start: Iterable[LinkEnds] | None = None) -> None:
        """The whole set wanted from now on, the interval (ms), and the links that may begin now (None: all of them)."""
        kept: list[LinkEnds] = []
        ports: set[PortRef] = set()
        twice: list[PortRef] = []
        for link in sorted({(min(a, b), max(a, b)) for a, b in links}):
            if link[0] == link[1] or not ports.isdisjoint(link):
                twice += [end for end in link if end in ports] or [link[0]]
                continue
            ports.update(link)
            kept.append(link)
        self._known = True
        self._links, self._ports, self._twice = tuple(kept), frozenset(ports), tuple(twice)
        self._values = {"enable": "true", "min_tx": str(interval_ms), "min_rx": str(interval_ms), "mult": MULT}
        wanted = set(kept)
        self._own.update(end.dpid for end in ports)
        self._start_now = frozenset(wanted if start is None else {(min(a, b), max(a, b)) for a, b in start})
        self._progress = {link: p for link, p in self._progress.items() if link in wanted}
        self._failures = {link: f for link, f in self._failures.items() if link in wanted}

    def step(self, now_s: float, bridges: Mapping[Dpid, BridgeRow], in_flight: Collection[str] = ()) -> list[PortWrite]:
        """What to write now.

        Databases in ``in_flight`` have a transaction under way: their rows are not what they will be, so links with
        an end there wait.
        """
        self.errors = {}
        if not self._known:
            return []
        for end in self._twice:
            self._error(end.dpid, f"port {end.port} is in two links; the second is ignored")
        rows = {end: row for end in self._ports if (row := _row(bridges, end)) is not None}
        writes: list[PortWrite] = []
        for link in self._links:
            if not self._waits(rows, link, in_flight):
                writes += self._follow(now_s, link, rows)
        for link in self._links:
            if link not in self._progress and not self._waits(rows, link, in_flight):
                writes += self._start(now_s, link, rows, bridges)
        return writes + self._release_unwanted(now_s, bridges, in_flight)

    def _waits(self, rows: Mapping[PortRef, PortRow], link: LinkEnds, in_flight: Collection[str]) -> bool:
        return any(row.database in in_flight for end in link if (row := rows.get(end)))

    def _right(self, row: PortRow) -> bool:
        return row.mark in (TRYING, PROVED) and all(row.bfd.get(key) == value for key, value in self._values.items())

    def _follow(self, now_s: float, link: LinkEnds, rows: Mapping[PortRef, PortRow]) -> list[PortWrite]:
        """One link that is changing (or was when an earlier worker died): done, failed, or still waiting."""
        ends = [row for end in link if (row := rows.get(end))]
        trying = any(row.mark == TRYING for row in ends)
        progress = self._progress.get(link)
        if progress is None:
            if not trying:
                return []
            progress = self._progress[link] = _Progress(now_s, now_s - REWRITE_S)
        right = len(ends) == 2 and all(self._right(row) for row in ends)
        if right and all(row.state == "up" for row in ends):
            if now_s < progress.wrote_s + SETTLE_S:
                return []
            self._done(now_s, link)
            return [PortWrite(row.database, row.uuid, self._values, PROVED) for row in ends if row.mark == TRYING]
        if now_s >= progress.started_s + UP_WITHIN_S:
            self._fail(now_s, link)
            return [_released(row) for row in ends if row.mark] if trying else []
        writable = len(ends) == 2 and not any(row.foreign for row in ends)
        if writable and not right and now_s >= progress.wrote_s + REWRITE_S:
            progress.wrote_s = now_s
            return self._enable(ends)
        return []

    def _start(
        self,
        now_s: float,
        link: LinkEnds,
        rows: Mapping[PortRef, PortRow],
        bridges: Mapping[Dpid, BridgeRow],
    ) -> list[PortWrite]:
        """One link at rest: begin its change if it needs one and may."""
        ends = [row for end in link if (row := rows.get(end))]
        if len(ends) < 2:
            self._say_missing(link, rows, bridges)
            return []
        foreign = [end for end in link if rows[end].foreign]
        for end in foreign:
            text = f"port {end.port} ({rows[end].name}) has BFD settings that are not ours; they are left alone"
            self._error(end.dpid, f"{text}. To let the controller do it: ovs-vsctl clear Interface {rows[end].name} bfd")
        if foreign or all(self._right(row) for row in ends):
            return []
        failure = self._failures.get(link)
        if failure and now_s < failure.retry_s:
            for end in link:
                text = f"BFD on port {end.port} did not come up within {UP_WITHIN_S:.0f} s and is off"
                self._error(end.dpid, f"{text}; it is tried again from time to time")
            return []
        # A new interval on a proved session is negotiated without taking it down, so it needs nobody's leave.
        if link not in self._start_now and not all(row.mark == PROVED for row in ends):
            return []
        self._progress[link] = _Progress(now_s, now_s)
        return self._enable(ends)

    def _enable(self, ends: list[PortRow]) -> list[PortWrite]:
        """Both ends; a new interval on a proved session keeps its mark, because its silence still means a broken link."""
        mark = PROVED if all(row.mark == PROVED for row in ends) else TRYING
        return [
            PortWrite(row.database, row.uuid, self._values, mark) for row in ends if not (self._right(row) and row.mark == mark)
        ]

    def _done(self, now_s: float, link: LinkEnds) -> None:
        del self._progress[link]
        self._failures.pop(link, None)

    def _fail(self, now_s: float, link: LinkEnds) -> None:
        del self._progress[link]
        count = self._failures[link].count + 1 if link in self._failures else 1
        self._failures[link] = _Failure(count, now_s + min(RETRY_S * 2 ** min(count - 1, 16), RETRY_MAX_S))

    def _say_missing(self, link: LinkEnds, rows: Mapping[PortRef, PortRow], bridges: Mapping[Dpid, BridgeRow]) -> None:
        for end, far in (link, link[::-1]):
            if end in rows:
                self._error(end.dpid, f"no BFD on port {end.port}: the other end, {far}, is not in any reachable OVSDB")
            elif end.dpid in bridges:
                self._error(end.dpid, f"OVSDB knows no port {end.port} on this bridge")
            else:
                self._error(end.dpid, "no reachable OVSDB has a bridge with this datapath id")

    def _release_unwanted(self, now_s: float, bridges: Mapping[Dpid, BridgeRow], in_flight: Collection[str]) -> list[PortWrite]:
        """What is ours and has not been wanted for a while, both ends of a link in the same step."""
        unwanted = {
            row.uuid: row
            for bridge in bridges.values()
            for number, row in bridge.ports.items()
            if row.mark and bridge.dpid in self._own and PortRef(bridge.dpid, number) not in self._ports
        }
        self._unwanted_s = {uuid: self._unwanted_s.get(uuid, now_s) for uuid in unwanted}
        due = [row for uuid, row in unwanted.items() if now_s >= self._unwanted_s[uuid] + self._release_after_s]
        ready = [row for row in due if row.database not in in_flight]
        for row in ready:
            # Should the write fail it is tried again, not in the next step but after a while.
            self._unwanted_s[row.uuid] = now_s - self._release_after_s + 5 * REWRITE_S
        return [_released(row) for row in ready]

    def _error(self, dpid: Dpid, text: str) -> None:
        texts = self.errors.setdefault(dpid, [])
        if text not in texts:
            texts.append(text)


def port_states(bridge: BridgeRow, wanted: Collection[PortRef]) -> dict[PortNo, str]:
    """BFD state by port, of ports where BFD is configured or wanted ("off" where it does not run)."""
    return {
        number: row.state or "off"
        for number, row in sorted(bridge.ports.items())
        if row.bfd or row.state or PortRef(bridge.dpid, number) in wanted
    }


def _row(bridges: Mapping[Dpid, BridgeRow], end: PortRef) -> PortRow | None:
    bridge = bridges.get(end.dpid)
    return bridge.ports.get(end.port) if bridge else None


def _released(row: PortRow) -> PortWrite:
    return PortWrite(row.database, row.uuid, {}, "")
