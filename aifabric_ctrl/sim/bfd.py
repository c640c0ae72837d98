"""BFD as ports show it: a session is up while frames pass both ways; a port whose session is down is not live."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aifabric_ctrl.model.events import BfdReport
from aifabric_ctrl.model.ids import Dpid, PortRef
from aifabric_ctrl.sim.clock import Clock
from aifabric_ctrl.sim.fakeswitch import FakeSwitch

MULTIPLIER = 3


class Bfd:
    """Sessions on the wanted links.  States are judged ``MULTIPLIER`` intervals after the wire changed."""

    def __init__(
        self,
        clock: Clock,
        switches: Mapping[Dpid, FakeSwitch],
        passes: Callable[[PortRef, PortRef], bool],
        port_event: Callable[[PortRef], None],
        report: Callable[[BfdReport], None],
    ) -> None:
        self._clock = clock
        self._switches = switches
        self._passes = passes
        self._port_event = port_event
        self._report = report
        self._interval_s = 0.03
        self.wanted: tuple[tuple[PortRef, PortRef], ...] = ()
        self.up: dict[tuple[PortRef, PortRef], bool] = {}

    def want(self, links: Sequence[tuple[PortRef, PortRef]], interval_s: float) -> None:
        """The whole set of links that shall have a session; others lose theirs and with it its say on liveness."""
        self._interval_s = interval_s
        for link in set(self.wanted) - set(links):
            self.up.pop(link, None)
            for end in link:
                self._set(end, True)
        self.wanted = tuple(links)
        self.wire_changed()

    def wire_changed(self) -> None:
        """Something on the wires changed; sessions notice after their detection time."""
        if self.wanted:
            self._clock.after(MULTIPLIER * self._interval_s, self._judge)

    def _judge(self) -> None:
        touched: set[Dpid] = set()
        for link in self.wanted:
            up = self._passes(*link)
            if self.up.get(link) is up:
                continue
            self.up[link] = up
            for end in link:
                touched.add(end.dpid)
                self._set(end, up)
        for dpid in sorted(touched):
            states = {end.port: "up" if up else "down" for link, up in self.up.items() for end in link if end.dpid == dpid}
            self._report(BfdReport(self._clock.now, dpid, states, fail_mode="secure"))

    def _set(self, end: PortRef, live: bool) -> None:
        port = self._switches[end.dpid].ports[end.port]
        if port.link_down or port.live == live:
            return
        self._switches[end.dpid].set_port(end.port, live=live)
        self._port_event(end)
