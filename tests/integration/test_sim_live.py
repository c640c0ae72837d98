"""A real controller process against fake switches on TCP: field cases that need a connection of their own.

Needs neither root nor Open vSwitch.  Everything is on loopback.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aifabric_ctrl.model.fabric import Port
from aifabric_ctrl.model.ids import PORT_LOCAL, dpid_text
from aifabric_ctrl.sim.client import FakeSwitchClient, Manners, refuse_flows
from aifabric_ctrl.sim.fakenet import FakeNet
from aifabric_ctrl.sim.fakeswitch import FakeSwitch
from aifabric_ctrl.sim.frame import packet_of
from aifabric_ctrl.sim.protocol import SwitchProtocol
from aifabric_ctrl.sim.topology import PLAIN_FEATURES, Topology, leaf_spine
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import requests as rq
from aifabric_ctrl.southbound.wire import switch_side

MANAGER = Path(sys.executable).with_name("ryu-manager")
LEAF1, SPINE1, SPINE2 = 0x11, 0x21, 0x22
UPLINK1 = 101
ECHO_S = 0.5


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Controller:
    """One controller process at a time, on the same ports and state directory."""

    def __init__(self, directory: Path) -> None:
        self.port, self._api = free_port(), free_port()
        self._log = directory / "log"
        self._env = {
            **os.environ,
            "AIFABRIC_STATE_DIR": str(directory),
            "AIFABRIC_API": f"127.0.0.1:{self._api}",
            "AIFABRIC_OVSDB": "off",
            "AIFABRIC_PROBE_INTERVAL_S": "0.4",
            "AIFABRIC_SETTLE_INTERVAL_S": "0.15",
            "AIFABRIC_ECHO_INTERVAL_S": str(ECHO_S),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(MANAGER), "--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", str(self.port), "aifabric_ctrl"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        return process.wait(15)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._api}/api/v1/{path}", timeout=5) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)
        except OSError:
            return {}

    def ready(self) -> bool:
        return bool(self.get("health").get("ready"))

    def switches(self) -> dict[str, dict[str, Any]]:
        return {s["dpid"]: s for s in self.get("topology").get("switches", [])}

    def links(self) -> dict[tuple[str, int], str]:
        """State by the first end."""
        return {(x["a"]["dpid"], x["a"]["port"]): x["state"] for x in self.get("topology").get("links", [])}

    def kinds(self) -> list[str]:
        return [e["kind"] for e in self.get("events?limit=1000").get("events", [])]


def until(true: Callable[[], object], max_s: float = 15.0, what: object = "") -> None:
    end = time.monotonic() + max_s
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {max_s} s: {what() if callable(what) else what}")
        time.sleep(0.05)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    one = Controller(tmp_path)
    one.start()
    yield one
    if one.alive:
        status = one.stop()
        assert status == 0, one.log[-3000:]
    assert "Traceback" not in one.log, one.log[-3000:]


def fabric(controller: Controller, topology: Topology, **options: Any) -> FakeNet:
    return FakeNet(topology, port=controller.port, **options)


def come_up(controller: Controller, net: FakeNet) -> None:
    net.connect_all()
    until(controller.ready, what=lambda: controller.get("health"))
    until(lambda: len(controller.links()) == len(net.topology.links), what=controller.links)
    assert net.ping_all() == [], "one packet a pair, the first time"
    until(controller.ready, what=lambda: controller.get("health"))


def mods(net: FakeNet) -> int:
    return net.do(lambda: sum(len(c.protocol.mods) for c in net.clients.values() if c.protocol is not None))


@pytest.mark.parametrize("kind", ["ovs", "plain", "plain and unordered"])
def test_conn_05_cold_start_restart_and_repair(controller: Controller, kind: str) -> None:
    """No error from strict switches in any order between barriers; a killed controller says nothing when it is back."""
    topology = leaf_spine(3, 2, 2) if kind == "ovs" else leaf_spine(3, 2, 2, features=PLAIN_FEATURES)
    with fabric(controller, topology, unordered="unordered" in kind) as net:
        come_up(controller, net)
        controller.kill()
        assert net.ping_all() == []
        controller.start()
        until(controller.ready, what=lambda: controller.get("health"))
        assert mods(net) == 0
        net.port_down(LEAF1, UPLINK1)
        assert net.ping_all(0.5) == []
        until(lambda: controller.links()[(dpid_text(LEAF1), UPLINK1)] == "down", what=controller.links)
        net.port_up(LEAF1, UPLINK1)
        until(lambda: controller.links()[(dpid_text(LEAF1), UPLINK1)] == "up", what=controller.links)
        until(controller.ready, what=lambda: controller.get("health"))
        assert net.ping_all(0.5) == [] and net.violations() == []
        assert net.do(lambda: [n for n, h in net.hosts.items() if h.foreign]) == [], "a host got what was for another"
        deletes = [m for c in net.clients.values() if c.protocol for m in c.protocol.mods if isinstance(m, rq.FlowMod)]
        assert all(m.command in (ofp.FC_ADD, ofp.FC_DELETE_STRICT) and m.out_port == m.out_group == 0xFFFFFFFF for m in deletes)


def test_conn_03_the_new_connection_of_a_silent_old_one_wins(controller: Controller) -> None:
    with fabric(controller, leaf_spine(2, 2, 1)) as net:
        come_up(controller, net)
        client = net.clients[LEAF1]
        net.do(client.abandon)
        net.until(lambda: client.connected and client.protocol is not None and len(client.protocol.requests) > 5, 10)
        until(controller.ready, what=lambda: controller.get("health"))
        assert controller.switches()[dpid_text(LEAF1)]["connected"]
        before = mods(net)
        net.port_down(SPINE1, 2)
        until(lambda: mods(net) > before, what="a change on the new connection")
        until(controller.ready, what=lambda: controller.get("health"))
        assert net.ping_all(0.5) == []


def test_conn_07_any_datapath_id(controller: Controller) -> None:
    leaves, spines = [257, (1 << 48) - 1, (1 << 64) - 1], [0x00AABBCCDDEEFF01, 0]
    topology = leaf_spine(3, 2, 1, leaf_dpids=leaves, spine_dpids=spines)
    with fabric(controller, topology) as net:
        stray = FakeSwitch(0x1234, [Port(PORT_LOCAL, "br0", 0x020000000009, link_down=True, live=False)])
        lonely = FakeSwitchClient(lambda: SwitchProtocol(stray), "127.0.0.1", controller.port, Manners(reconnect_s=0.2))
        net.do(lonely.start)
        come_up(controller, net)
        until(lambda: dpid_text(0x1234) in controller.switches(), what=controller.switches)
        found = controller.switches()
        assert set(found) == {dpid_text(d) for d in (*leaves, *spines, 0x1234)}
        assert found[dpid_text(0x1234)]["role"] == "unknown"
        assert net.violations() == []
        net.do(lonely.close)


def test_err_01_refusals_are_seen_and_the_rest_works(controller: Controller) -> None:
    with fabric(controller, leaf_spine(2, 2, 1, features=PLAIN_FEATURES)) as net:
        spine = net.switches[SPINE1]
        spine.tables.inject = refuse_flows({3: "BAD_MATCH/BAD_PREREQ", 5: "BAD_ACTION/BAD_OUT_PORT"})
        net.connect_all()
        until(lambda: "object_refused" in controller.kinds(), what=controller.kinds)
        refusals = [e for e in controller.get("events?limit=1000")["events"] if e["kind"] == "object_refused"]
        assert {e["data"]["error"] for e in refusals} <= {"BAD_MATCH/BAD_PREREQ", "BAD_ACTION/BAD_OUT_PORT"}
        assert all(e["data"]["dpid"] == dpid_text(SPINE1) for e in refusals)

        def odd() -> None:
            protocol = net.clients[SPINE2].protocol
            assert protocol is not None
            protocol.say(switch_side.error(0x7FFF0001, 2, 4, bytes(64)))
            protocol.say(switch_side.error(0x7FFF0002, 0xFFFF, 3, b"what", 0x00ABCDEF))
            protocol.say(switch_side.error(0x7FFF0003, 5, 1, b""))
            net.clients[SPINE2].flush()

        net.do(odd)
        until(lambda: "error_unmatched" in controller.kinds(), what=controller.kinds)
        until(controller.ready, what=lambda: controller.get("health"))  # the refused ones were tried again
        assert net.ping_all() == []


def test_topo_01_and_02_silence_and_one_way(controller: Controller) -> None:
    with fabric(controller, leaf_spine(2, 3, 1)) as net:
        come_up(controller, net)
        dead, half = net.topology.links[0], net.topology.links[1]
        net.silence(dead)
        net.silence(half, "ab")
        keys = [(dpid_text(x.a.dpid), x.a.port) for x in (dead, half)]
        until(lambda: [controller.links().get(k) for k in keys] == ["down", "one-way"], what=controller.links)
        until(controller.ready, what=lambda: controller.get("health"))
        assert net.ping_all(0.5) == [], "neither is used any more"
        net.unsilence(dead)
        net.unsilence(half, "ab")
        until(lambda: [controller.links().get(k) for k in keys] == ["up", "up"], what=controller.links)
        assert net.violations() == []


def test_topo_04_and_06_forged_and_broken_frames(controller: Controller) -> None:
    with fabric(controller, leaf_spine(2, 2, 1)) as net:
        come_up(controller, net)

        def probe_of_spine() -> bytes:
            said = net.clients[SPINE2].protocol.requests
            return next(r.data for r in said if isinstance(r, rq.PacketOut) and r.data[12:14] == b"\x88\xcc")

        probe = net.do(probe_of_spine)
        forged = bytearray(probe)
        forged[-3] ^= 0xFF
        host_port = net.wires.places["h1"]
        for frame in (probe, bytes(forged)):
            for _ in range(20):
                net.from_host("h1", [packet_of(frame)])
        odd = [b"", b"0123456789", probe[:14], probe[:20], probe[:12] + b"\x08\x06" + b"\0" * 5, b"\xff" * 14]

        def broken() -> None:
            client = net.clients[LEAF1]
            for frame in odd:
                client.protocol.packet_in(host_port.port, frame)
                client.protocol.packet_in(PORT_LOCAL, frame)
                client.protocol.packet_in(4711, frame)
            client.flush()

        net.do(broken)
        until(lambda: "lldp_forged" in controller.kinds() or "lldp_on_host_port" in controller.kinds(), what=controller.kinds)
        until(lambda: controller.get("counters").get("frames_malformed", 0) > 0, what=lambda: controller.get("counters"))
        assert set(controller.links()) == {(dpid_text(x.a.dpid), x.a.port) for x in net.topology.links}
        assert set(controller.links().values()) == {"up"}
        assert controller.ready() and net.ping_all() == []


def test_bad_peers_are_dropped_and_others_do_not_notice(controller: Controller) -> None:
    """Sixteen bytes of HELLO with an element of length 0 (FUZZ-01), HTTP, silence, a switch that stops answering echo."""
    with fabric(controller, leaf_spine(2, 2, 1)) as net:
        come_up(controller, net)
        before = mods(net)
        bad = {
            "zero length": bytes.fromhex("04000010000000010001000000000000"),
            "http": b"GET / HTTP/1.1\r\n\r\n",
            "short": b"\x04\x00\x00\x03\x00\x00\x00\x01",
        }
        for name, data in bad.items():
            with socket.create_connection(("127.0.0.1", controller.port), timeout=5) as peer:
                peer.sendall(data)
                peer.settimeout(10)
                while peer.recv(4096):
                    pass
            assert net.ping("h1", "h2", 1.0), name
        net.clients[SPINE2].manners = Manners(reconnect_s=None)
        net.do(lambda: setattr(net.clients[SPINE2].protocol, "mute_echo", True))
        until(lambda: not controller.switches()[dpid_text(SPINE2)]["connected"], 10, controller.switches)
        assert net.ping_all(1.0) == [], "a switch without its session forwards on"
        net.connect(SPINE2)
        until(controller.ready, what=lambda: controller.get("health"))
        assert mods(net) == before - len(net.clients[SPINE2].past[-1].mods), "a lost session changes no table"
