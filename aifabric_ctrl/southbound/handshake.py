"""From HELLO to a known switch: version, identity, ports, features.  No I/O; every answer is optional but two.

The questions after FEATURES_REPLY go out together and the switch answers at its own pace.  DESC, group features, meter
features and bundles are things a switch may not have: an error, or silence well after the ports are known, means none.
Versions are negotiated as OpenFlow 1.3.5, 6.3.1 says (case CONN-10).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.events import Session, SwitchConnected
from aifabric_ctrl.model.fabric import Features, Port
from aifabric_ctrl.model.ids import PORT_LOCAL, is_physical
from aifabric_ctrl.southbound.guard import Phase
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import encode
from aifabric_ctrl.southbound.wire import messages as m

GRACE_S = 1.0  # for the optional answers, once the ports are known
MISS_SEND_LEN = 0xFFFF  # whole packets, unbuffered
PROBE_BUNDLE = 0xFFFFFFFF
MAX_PORTS = 65_536
VERSION_NAMES = {1: "1.0", 2: "1.1", 3: "1.2", 4: "1.3", 5: "1.4", 6: "1.5"}


class Refusal(Exception):
    """The peer cannot be our switch; ``kind`` is a counter's name, ``last_words`` a message to send before closing."""

    def __init__(self, kind: str, text: str, last_words: bytes = b"") -> None:
        super().__init__(text)
        self.kind = kind
        self.last_words = last_words


class _Step(enum.Enum):
    HELLO = "HELLO"
    FEATURES = "FEATURES_REPLY"
    DETAILS = "the answers about ports and features"
    DONE = ""


_PHASES = {_Step.HELLO: Phase.HELLO, _Step.FEATURES: Phase.FEATURES}


@dataclass
class _Known:
    dpid: int = 0
    tables: int = 0
    ports: dict[int, Port] = field(default_factory=dict)
    changes: list[tuple[str, Port]] = field(default_factory=list)  # PORT_STATUS since the port list began to arrive
    description: m.DescReply | None = None
    max_groups: int = 0
    max_meters: int = 0
    bundles: bool = False


class Handshake:
    """One attempt; feed it decoded messages until :attr:`done`."""

    def __init__(self, session: Session, address: str, next_xid: Callable[[], int]) -> None:
        self._session = session
        self._address = address
        self._next_xid = next_xid
        self._step = _Step.HELLO
        self._known = _Known()
        self._open: dict[int, str] = {}  # xid -> question
        self._ports_begun = False
        self.give_up_waiting_at = float("inf")

    @property
    def done(self) -> bool:
        return self._step is _Step.DONE

    @property
    def phase(self) -> Phase:
        """Which messages may come now."""
        return _PHASES.get(self._step, Phase.MAIN)

    @property
    def waits_for(self) -> str:
        """What has not come yet, for people."""
        return self._step.value

    def hello(self, hello: m.Hello) -> bytes:
        """The peer's HELLO; a second one changes nothing.

        Raises:
            Refusal: no common version, with HELLO_FAILED as last words.
        """
        if self._step is not _Step.HELLO:
            return b""
        if ofp.VERSION not in hello.versions:
            names = ", ".join(VERSION_NAMES.get(v, f"version {v}") for v in sorted(hello.versions)) or "no version"
            raise Refusal(
                "version_mismatch",
                f"{self._address} offers OpenFlow {names} and not 1.3; ovs-vsctl set bridge NAME protocols=OpenFlow13",
                encode.error(hello.xid, ofp.ET_HELLO_FAILED, ofp.HFC_INCOMPATIBLE, b"only OpenFlow 1.3 is spoken here"),
            )
        self._step = _Step.FEATURES
        return encode.features_request(self._next_xid())

    def features(self, reply: m.FeaturesReply) -> bytes:
        """FEATURES_REPLY; asks everything else.

        Raises:
            Refusal: an auxiliary connection.
            WireError: it came before HELLO.
        """
        if self._step is _Step.HELLO:
            raise WireError("FEATURES_REPLY before HELLO")
        if self._step is not _Step.FEATURES:
            return b""
        if reply.auxiliary_id:
            raise Refusal("auxiliary_connection", f"{self._address} opened auxiliary connection {reply.auxiliary_id}; not used")
        self._known.dpid, self._known.tables = reply.dpid, reply.n_tables
        self._step = _Step.DETAILS
        return b"".join(
            (
                encode.set_config(self._next_xid(), 0, MISS_SEND_LEN),
                encode.desc_request(self._ask("desc")),
                encode.port_desc_request(self._ask("ports")),
                encode.group_features_request(self._ask("groups")),
                encode.meter_features_request(self._ask("meters")),
                encode.bundle_control(self._ask("bundle"), PROBE_BUNDLE, ofp.BCT_OPEN_REQUEST),
                encode.bundle_control(self._ask("discard"), PROBE_BUNDLE, ofp.BCT_DISCARD_REQUEST),
                encode.barrier_request(self._ask("barrier")),
            )
        )

    def _ask(self, question: str) -> int:
        xid = self._next_xid()
        self._open[xid] = question
        return xid

    def description(self, reply: m.DescReply) -> None:
        if self._open.pop(reply.xid, None) == "desc":
            self._known.description = reply

    def group_features(self, reply: m.GroupFeaturesReply) -> None:
        if self._open.pop(reply.xid, None) == "groups":
            self._known.max_groups = min(reply.max_groups[ofp.GT_SELECT], reply.max_groups[ofp.GT_FF])

    def meter_features(self, reply: m.MeterFeaturesReply) -> None:
        if self._open.pop(reply.xid, None) == "meters":
            self._known.max_meters = reply.max_meters

    def bundle_reply(self, xid: int) -> None:
        if self._open.pop(xid, None) == "bundle":
            self._known.bundles = True

    def ports(self, reply: m.PortDescReply, now: float) -> None:
        """One part of the port list."""
        if self._open.get(reply.xid) != "ports":
            return
        self._ports_begun = True
        self._known.ports.update((p.number, p) for p in reply.ports)
        if len(self._known.ports) > MAX_PORTS:
            raise WireError(f"a switch of more than {MAX_PORTS} ports")
        if not reply.more:
            del self._open[reply.xid]
            self.give_up_waiting_at = now + GRACE_S

    def port_status(self, reason: str, port: Port) -> None:
        """A change while the list is on its way.  What came before the list began is in the list already."""
        if self._ports_begun:
            self._known.changes.append((reason, port))
            if len(self._known.changes) > MAX_PORTS:
                raise WireError(f"more than {MAX_PORTS} port changes during the handshake")

    def closed(self, xid: int) -> None:
        """A question was answered with no content (barrier, discard) or with an error: then there is none of it.

        Raises:
            WireError: the switch will not name its ports.
        """
        if self._open.pop(xid, None) == "ports":
            raise WireError("the switch refuses to describe its ports")

    def result(self, now: float) -> SwitchConnected | None:
        """The switch, once everything is answered or given up on; then the handshake is done."""
        if self._step is not _Step.DETAILS or "ports" in self._open.values():
            return None
        if self._open and now < self.give_up_waiting_at:
            return None
        self._step = _Step.DONE
        self.give_up_waiting_at = float("inf")
        known = self._known
        for reason, port in known.changes:
            if reason == "delete":
                known.ports.pop(port.number, None)
            else:
                known.ports[port.number] = port
        about = known.description or m.DescReply(0, False, "", "", "", "", "")
        local = known.ports.get(PORT_LOCAL)
        features = Features(
            tables=known.tables,
            max_groups=known.max_groups,
            max_meters=known.max_meters,
            bundles=known.bundles,
            nicira="Open vSwitch" in about.hardware or about.manufacturer.startswith("Nicira"),
            description=" ".join(t for t in (about.manufacturer, about.hardware, about.software) if t),
        )
        # Open vSwitch calls its local port as the bridge, and writes "None" into what nobody filled in.
        name = about.datapath if about.datapath not in ("", "None") else (local.name if local else "")
        ports = tuple(p for n, p in sorted(known.ports.items()) if is_physical(n))
        return SwitchConnected(now, self._session, known.dpid, self._address, ports, features, name)
