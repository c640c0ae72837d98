"""Next hops: which ports of a switch lie on a shortest path to a destination switch, for any graph.

A link counts for its own two ends as soon as it is UP; everybody else waits until it is ``settled``, so that traffic
is never steered to a switch whose tables do not use the link yet (make before break: downstream before upstream).
Transit is planned only through switches that are programmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from aifabric_ctrl.model.ids import Dpid, PortNo


class Cable(NamedTuple):
    """One known link as seen from one of its ends."""

    port: PortNo
    far: Dpid
    up: bool
    settled: bool
    drained: bool = False


class Paths:
    """Distances over one snapshot's usable links, each destination worked out once.

    ``transit`` says whether paths may lead through a switch; ``cables`` lists every known link at both of its ends.
    """

    def __init__(self, cables: Mapping[Dpid, Sequence[Cable]], transit: Callable[[Dpid], bool]) -> None:
        self._cables = cables
        self._transit = {dpid for dpid in cables if transit(dpid)}
        self._neighbours = {dpid: sorted({c.far for c in ends if c.up and c.settled}) for dpid, ends in cables.items()}
        self._distances: dict[Dpid, dict[Dpid, int]] = {}

    def distances(self, destination: Dpid) -> Mapping[Dpid, int]:
        """Hops to the destination over links that are UP and settled, by switch; unreachable ones are missing."""
        known = self._distances.get(destination)
        if known is not None:
            return known
        found = {destination: 0}
        queue = deque([destination])
        while queue:
            here = queue.popleft()
            for near in self._neighbours.get(here, ()):
                if near not in found:
                    found[near] = found[here] + 1
                    if near in self._transit:
                        queue.append(near)
        self._distances[destination] = found
        return found

    def next_hops(self, source: Dpid, destination: Dpid) -> tuple[PortNo, ...]:
        """Ports of ``source`` on its shortest paths to ``destination``, ascending; empty when there is none.

        Its own links need only be UP.  A neighbour on a minimal path never leads back through ``source``: its distance
        would exceed that of another candidate.  So the distances of the common graph serve every source, and each hop
        gets strictly nearer, which rules out loops.

        A drained link is the last way to its own far end, when there is no other: packets that were under way when it was
        drained still arrive (a drained spine goes on delivering), and nobody else sends any more there.
        """
        distances = self.distances(destination)
        best: int | None = None
        ports: list[PortNo] = []
        for cable in self._cables.get(source, ()):
            if not cable.up or (cable.far != destination and cable.far not in self._transit):
                continue
            distance = distances.get(cable.far)
            if distance is None or (best is not None and distance > best):
                continue
            if best is None or distance < best:
                best, ports = distance, []
            ports.append(cable.port)
        if not ports:
            ports = [c.port for c in self._cables.get(source, ()) if c.drained and c.far == destination]
        return tuple(sorted(ports))
