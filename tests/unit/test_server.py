"""The listener with real sockets: who gets in, who is closed, and that nobody delays anybody (cases CONN-02, 03, FUZZ-01, 04)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventlet.green import socket, ssl

from aifabric_ctrl.framework import hub
from aifabric_ctrl.model.effects import Change, CloseSession, PacketOut, SendPlan, Stage
from aifabric_ctrl.model.events import DuplicateVerdict, Event, FrameIn, OddFrame, PlanAcked, SwitchConnected, SwitchGone
from aifabric_ctrl.model.rules import Flow, Match, Output
from aifabric_ctrl.southbound.server import Server, ServerLimits
from aifabric_ctrl.southbound.session import Limits
from aifabric_ctrl.southbound.tls import TlsContext
from aifabric_ctrl.southbound.wire import constants as ofp
from tests.unit import session_kit as kit

PATIENCE_S = 15.0


def until(true: Callable[[], Any], what: str = "it") -> Any:
    """Wait for a condition, letting greenlets run; the bound is only against hanging."""
    limit = time.monotonic() + PATIENCE_S
    while not (found := true()):
        if time.monotonic() > limit:
            raise AssertionError(f"{what} did not happen within {PATIENCE_S} s")
        hub.sleep(0.005)
    return found


class Bench:
    """A server, its events, and switches that connect to it."""

    def __init__(
        self, limits: Limits | None = None, server_limits: ServerLimits | None = None, tls: TlsContext | None = None
    ) -> None:
        self.events: list[Event] = []
        self.server = Server(self.events.append, limits=limits, server_limits=server_limits)
        self.port = self.server.listen("127.0.0.1", 0, tls)
        self.sockets: list[Any] = []

    def connect(self) -> Any:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        self.sockets.append(sock)
        return sock

    def switch(self, dpid: int, answers_echo: bool = True) -> Switch:
        return Switch(self.connect(), kit.ovs_like(dpid), answers_echo)

    def of(self, kind: type) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]

    def up(self, dpid: int) -> SwitchConnected:
        found: list[SwitchConnected] = until(
            lambda: [e for e in self.of(SwitchConnected) if e.dpid == dpid], f"switch {dpid:x} connects"
        )
        return found[-1]

    def close(self) -> None:
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.close()
        self.server.close()
        until(lambda: self.server.open_connections == 0, "every connection ends")


class Switch:
    """A green client that answers as Open vSwitch and keeps what it was told."""

    def __init__(self, sock: Any, answer: kit.Answer, answers_echo: bool = True) -> None:
        self.sock, self.answer, self.answers_echo = sock, answer, answers_echo
        self.told: list[tuple[int, int, bytes]] = []
        self.closed = False
        hub.spawn(self.run)

    def run(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := self.sock.recv(65_536):
                rest += data
                while len(rest) >= 8 and len(rest) >= (length := int.from_bytes(rest[2:4], "big")):
                    [one] = kit.split(rest[:length])
                    rest = rest[length:]
                    self.told.append(one)
                    if one[0] != ofp.ECHO_REQUEST or self.answers_echo:
                        self.sock.sendall(self.answer(*one))
        self.closed = True

    def count(self, kind: int) -> int:
        return sum(1 for k, _, _ in self.told if k == kind)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def plan(session: int, flows: int, number: int = 1) -> SendPlan:
    changes = tuple(Change("put", Flow(40, n + 1, Match.of(in_port=1), actions=(Output(2),))) for n in range(flows))
    return SendPlan(session, number, (Stage("flows", changes),))


def test_a_switch_connects_is_told_and_leaves(bench: Bench) -> None:
    switch = bench.switch(0xAB)
    event = bench.up(0xAB)
    assert event.address.startswith("127.0.0.1:")
    bench.server.carry_out(plan(event.session, 3))
    until(lambda: bench.of(PlanAcked), "the plan is acknowledged")
    assert switch.count(ofp.EXPERIMENTER) == 2 + 5  # the probe, then open, three adds, commit
    bench.server.carry_out(PacketOut(event.session, (Output(1),), b"x" * 60))
    until(lambda: switch.count(ofp.PACKET_OUT) == 1)
    switch.sock.close()
    [gone] = until(lambda: bench.of(SwitchGone), "the departure is noticed")
    assert gone.session == event.session
    bench.server.carry_out(PacketOut(event.session, (Output(1),), b"late"))  # nobody there: no error
    assert bench.server.totals()["flow_mods_sent"] == 3  # totals outlive the session


def test_closing_on_request(bench: Bench) -> None:
    switch = bench.switch(1)
    bench.server.carry_out(CloseSession(bench.up(1).session, "tests end"))
    until(lambda: switch.closed)
    [gone] = bench.of(SwitchGone)
    assert gone.reason == "tests end"


def test_a_live_holder_keeps_its_datapath_id(bench: Bench) -> None:
    first = bench.switch(5)
    session = bench.up(5).session
    for _ in range(3):
        second = bench.switch(5)
        until(lambda s=second: s.closed, "the second is refused")  # type: ignore[misc]
    assert len(bench.of(DuplicateVerdict)) == 3
    assert len(bench.of(SwitchConnected)) == 1
    assert not bench.of(SwitchGone)
    bench.server.carry_out(plan(session, 2))
    until(lambda: bench.of(PlanAcked))
    assert not first.closed
    assert second.count(ofp.FLOW_MOD) == 0


def test_a_dead_holder_is_replaced_and_its_late_end_changes_nothing(bench: Bench) -> None:
    old = bench.switch(5, answers_echo=False)
    before = bench.up(5).session
    bench.switch(5)
    until(lambda: len(bench.of(SwitchConnected)) == 2, "the new one is admitted")
    after = bench.of(SwitchConnected)[1].session
    assert after > before
    kinds = [type(e) for e in bench.events if isinstance(e, (SwitchGone, DuplicateVerdict, SwitchConnected))]
    assert kinds == [SwitchConnected, SwitchGone, DuplicateVerdict, SwitchConnected]
    old.sock.close()
    bench.server.carry_out(plan(after, 2))
    until(lambda: bench.of(PlanAcked), "the new one takes plans")
    assert [g.session for g in bench.of(SwitchGone)] == [before]


def test_a_reconnect_before_the_old_end_is_seen_is_no_alarm(bench: Bench) -> None:
    old = bench.switch(5, answers_echo=False)
    bench.up(5)
    bench.switch(5)
    until(lambda: old.count(ofp.ECHO_REQUEST) == 1, "the holder is asked")
    old.sock.close()
    until(lambda: len(bench.of(SwitchConnected)) == 2)
    assert not bench.of(DuplicateVerdict)


def test_events_of_a_newcomer_wait_for_its_admission(bench: Bench) -> None:
    old = bench.switch(5, answers_echo=False)
    bench.up(5)
    new = bench.switch(5)
    until(lambda: old.count(ofp.ECHO_REQUEST) == 1)
    new.sock.sendall(kit.packet_in(1, b"y" * 60))
    until(lambda: bench.of(FrameIn), "the frame arrives")
    assert [type(e) for e in bench.events[-2:]] == [SwitchConnected, FrameIn]


def test_an_old_version_is_told_once_a_minute(bench: Bench) -> None:
    for _ in range(5):
        sock = bench.connect()
        sock.sendall(kit.hello(1, None))
        heard = b""
        while data := sock.recv(4096):
            heard += data
        assert [k for k, _, _ in kit.split(heard)] == [ofp.HELLO, ofp.ERROR]
    until(lambda: bench.server.totals()["sessions_version_mismatch"] == 5)
    [odd] = bench.of(OddFrame)
    assert odd.kind == "version_mismatch"
    assert "protocols=OpenFlow13" in odd.text


def test_hostile_clients_are_closed_and_a_switch_still_connects(bench: Bench) -> None:
    zero = kit.message(ofp.HELLO, 1, b"\0\1\0\0\0\0\0\0")
    for bad in (
        zero,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\x04\x00\x00\x00\x00\x00\x00\x00",
        kit.features_reply(1),
    ):
        sock = bench.connect()
        sock.sendall(bad)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(4096):
                pass
    bench.switch(9)
    bench.up(9)
    assert bench.server.totals()["sessions_wire_error"] == 5
    assert {e.kind for e in bench.of(OddFrame)} == {"wire_error"}


def test_idle_and_slow_clients_go_with_the_handshake_timeout() -> None:
    bench = Bench(Limits(handshake_s=0.5))
    before = len(list(Path("/proc/self/fd").iterdir()))
    socks = [bench.connect() for _ in range(200)]
    for sock in socks[:50]:
        sock.sendall(kit.hello())
    for sock in socks[50:100]:
        sock.sendall(b"\x04\x0d\xff\xff")  # announces 65,535 bytes and stops
    bench.switch(3)
    bench.up(3)  # while they wait
    until(lambda: bench.server.totals()["sessions_handshake_timeout"] == 200, "all are closed")
    for sock in socks:
        sock.close()
    until(lambda: bench.server.open_connections == 1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 5
    assert len([e for e in bench.of(OddFrame) if e.kind == "handshake_timeout"]) == 1
    bench.close()


def test_connections_are_limited_per_address() -> None:
    bench = Bench(server_limits=ServerLimits(per_address=3))
    socks = [bench.connect() for _ in range(6)]
    until(lambda: bench.server.totals()["connections_refused"] == 3)
    assert [e.kind for e in bench.of(OddFrame)] == ["too_many_connections"]
    socks[0].close()
    until(lambda: bench.server.open_connections == 2)
    bench.switch(1)
    bench.up(1)
    bench.close()


def test_a_switch_that_does_not_read_delays_nobody_and_is_dropped() -> None:
    bench = Bench(Limits(output_bytes=4_000_000))
    stuck = bench.connect()
    hub.spawn(_handshake_only, stuck)
    session = bench.up(1).session
    good = bench.switch(2)
    other = bench.up(2).session
    for _ in range(400):  # 24 MB that nobody reads
        bench.server.carry_out(PacketOut(session, (Output(1),), bytes(60_000)))
        if bench.of(SwitchGone):
            break
        hub.sleep(0)
    bench.server.carry_out(plan(other, 10))
    until(lambda: bench.of(PlanAcked), "the other switch is served")
    [gone] = until(lambda: bench.of(SwitchGone), "the slow one is dropped")
    assert gone.session == session
    assert "too slowly" in gone.reason
    assert not good.closed
    bench.close()


def _handshake_only(sock: Any) -> None:
    answer, rest = kit.ovs_like(1), b""
    while True:
        rest += sock.recv(4096)
        while len(rest) >= 8 and len(rest) >= (length := int.from_bytes(rest[2:4], "big")):
            [one] = kit.split(rest[:length])
            rest = rest[length:]
            sock.sendall(answer(*one))
            if one[0] == ofp.BARRIER_REQUEST:
                return


def test_a_taken_port_is_named(bench: Bench) -> None:
    with pytest.raises(Exception, match=str(bench.port)):
        Server(bench.events.append).listen("127.0.0.1", bench.port)


# TLS (case TLS-01)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities; certificates of both for a controller and a switch.  Made by openssl, which Open vSwitch needs too."""
    home = tmp_path_factory.mktemp("pki")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True, timeout=60)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj"]
    for authority in ("ca", "stranger"):
        openssl(
            "req", "-x509", *curve, f"/CN={authority}", "-days", "2", "-keyout", f"{authority}.key", "-out", f"{authority}.pem"
        )
    for name, authority in (("controller", "ca"), ("switch", "ca"), ("foreign", "stranger")):
        openssl("req", *curve, f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"),
            *("-CAcreateserial", "-days", "2", "-out", f"{name}.pem"),
        )
    return home


def _client(pki: Path, name: str | None) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(pki / "ca.pem")
    if name is not None:
        context.load_cert_chain(pki / f"{name}.pem", pki / f"{name}.key")
    return context


def test_tls_lets_in_only_whom_the_authority_signed(pki: Path) -> None:
    tls = TlsContext(str(pki / "controller.pem"), str(pki / "controller.key"), str(pki / "ca.pem"))
    bench = Bench(server_limits=ServerLimits(tls_handshake_s=1.0), tls=tls)
    silent = [bench.connect() for _ in range(20)]  # connect and never begin
    for name in (None, "foreign"):
        with contextlib.suppress(OSError):
            sock = _client(pki, name).wrap_socket(bench.connect())
            assert sock.recv(16) == b""  # TLS 1.3 tells the client only when it reads
    plain = bench.connect()
    plain.sendall(kit.hello())
    for dpid in (1, 2, 3):
        Switch(_client(pki, "switch").wrap_socket(bench.connect()), kit.ovs_like(dpid))
    for dpid in (1, 2, 3):
        bench.up(dpid)
    until(lambda: bench.server.totals()["odd_tls_refused"] == 3 + len(silent), "the others are refused")
    assert len(bench.of(SwitchConnected)) == 3
    bench.close()


def test_a_renewed_certificate_needs_no_restart(pki: Path, tmp_path: Path) -> None:
    names = {n: tmp_path / n for n in ("cert.pem", "key.pem")}

    def use(name: str, at: int) -> None:
        for suffix, path in (("pem", names["cert.pem"]), ("key", names["key.pem"])):
            path.write_bytes((pki / f"{name}.{suffix}").read_bytes())
            os.utime(path, (at, at))

    use("foreign", 1_000_000)
    bench = Bench(tls=TlsContext(str(names["cert.pem"]), str(names["key.pem"]), str(pki / "ca.pem")))
    with pytest.raises(OSError, match="verify failed"):
        _client(pki, "switch").wrap_socket(bench.connect())
    use("controller", 2_000_000)
    Switch(_client(pki, "switch").wrap_socket(bench.connect()), kit.ovs_like(8))
    bench.up(8)
    bench.close()
