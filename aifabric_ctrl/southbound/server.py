"""The OpenFlow listener: sockets, one reader and one writer greenlet a connection, and who may have a datapath id.

It moves bytes and events and decides nothing about the network.  A connection that is slow, silent, hostile or
broken costs its own two greenlets, bounded memory and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import resource
import socket as std_socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eventlet.green import socket

from aifabric_ctrl.framework import hub
from aifabric_ctrl.model.effects import CloseSession, PacketOut, ReadTables, SendPlan
from aifabric_ctrl.model.errors import InvalidValue, WireError
from aifabric_ctrl.model.events import DuplicateVerdict, Event, OddFrame, Session, SwitchConnected, SwitchGone
from aifabric_ctrl.southbound.registry import PROOF_S, Admit, Close, Order, Probe, Registry
from aifabric_ctrl.southbound.session import Limits, SessionDead, SwitchSession
from aifabric_ctrl.southbound.tls import TlsContext

LOG = logging.getLogger("aifabric_ctrl.southbound")
READ_BYTES = 65_536
LAST_WORDS_S = 0.2
TURN_S = 0.001  # of work between two turns of the hub
BACKLOG = 1_024  # a whole fabric reconnects at once after a controller restart
REFUSAL_QUIET_S = 60.0  # Open vSwitch retries for ever; one line a minute for one address and fault is enough
REFUSAL_KEYS = 4_096

SessionEffect = SendPlan | PacketOut | ReadTables | CloseSession


@dataclass(frozen=True)
class ServerLimits:
    """Bounds on what may connect."""

    per_address: int = 1_024  # a whole lab comes from 127.0.0.1
    total: int = 4_096
    tls_handshake_s: float = 10.0


class _Connection:
    """One socket and its session."""

    def __init__(self, sock: Any, session: SwitchSession) -> None:
        self.sock = sock
        self.session = session
        self.wake = hub.Event()
        self.writer: Any = None
        self.dpid: int | None = None
        self.admitted = False  # the engine knows it
        self.closed = False
        self.held: list[Event] = []  # until admitted

    def shut(self) -> None:
        """End the conversation.  This wakes whoever reads or writes; the reader closes the descriptor."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(std_socket.SHUT_RDWR)
        self.wake.set()


class Server:
    """Accepts switches; hands events to ``post`` and carries out effects.

    Args:
        post: takes an event; must not block.
        overloaded: while it says True, nothing more is read from switches.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        post: Callable[[Event], None],
        overloaded: Callable[[], bool] = lambda: False,
        limits: Limits | None = None,
        server_limits: ServerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._overloaded = overloaded
        self._limits = limits or Limits()
        self._server_limits = server_limits or ServerLimits()
        self._clock = clock
        self._numbers = itertools.count(1)
        self._registry = Registry()
        self._connections: dict[Session, _Connection] = {}
        self._per_address: Counter[str] = Counter()
        self._open = 0
        self._listeners: list[Any] = []
        self._quiet_until: dict[tuple[str, str], float] = {}
        self._ended: Counter[str] = Counter()  # totals of sessions that are gone
        self._turn = hub.Semaphore(1)
        self._turn_began = self._turn_ended = 0.0
        self.counts: Counter[str] = Counter()

    # Listening

    def listen(self, host: str, port: int, tls: TlsContext | None = None) -> int:
        """Bind and start to accept; returns the port (useful when 0 was asked for).

        Raises:
            InvalidValue: the address cannot be had; names it.
        """
        family = std_socket.AF_INET6 if ":" in host else std_socket.AF_INET
        listener = socket.socket(family, std_socket.SOCK_STREAM)
        listener.setsockopt(std_socket.SOL_SOCKET, std_socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise InvalidValue(
                f"cannot listen on {host} port {port}: {error.strerror or error}",
                "stop what listens there or choose another port with --ofp-tcp-listen-port",
            ) from None
        _raise_descriptor_limit()
        self._listeners.append(listener)
        hub.spawn(self._accept, listener, tls)
        return int(listener.getsockname()[1])

    def _accept(self, listener: Any, tls: TlsContext | None) -> None:
        while listener in self._listeners:
            try:
                sock, peer = listener.accept()
            except OSError as error:
                if listener in self._listeners:
                    self._odd(0, "", "accept_failed", f"cannot accept a connection: {error.strerror or error}")
                    hub.sleep(0.1)  # out of descriptors: the listener stays readable, so do not spin
                continue
            host, address = str(peer[0]), f"{peer[0]}:{peer[1]}"
            if self._open >= self._server_limits.total or self._per_address[host] >= self._server_limits.per_address:
                self.counts["connections_refused"] += 1
                self._odd(0, host, "too_many_connections", f"too many connections from {host}; one was closed")
                sock.close()
                continue
            self._open += 1
            self._per_address[host] += 1
            hub.spawn(self._serve, sock, host, address, tls)

    def _serve(self, sock: Any, host: str, address: str, tls: TlsContext | None) -> None:
        try:
            sock.setsockopt(std_socket.IPPROTO_TCP, std_socket.TCP_NODELAY, 1)
            if tls is not None:
                sock = self._tls(sock, host, tls)
            if sock is not None:
                self._run(sock, host, address)
        finally:
            self._open -= 1
            self._per_address[host] -= 1
            if not self._per_address[host]:
                del self._per_address[host]

    def _tls(self, sock: Any, host: str, tls: TlsContext) -> Any:
        """The TLS socket, or None when the peer did not bring itself to one."""
        try:
            sock.settimeout(self._server_limits.tls_handshake_s)
            with hub.Timeout(self._server_limits.tls_handshake_s):
                return tls.wrap(sock)
        except (OSError, hub.Timeout) as error:
            self._odd(0, host, "tls_refused", f"TLS with {host} failed: {error}; check its certificate and ours")
            sock.close()
            return None

    # One connection

    def _run(self, sock: Any, host: str, address: str) -> None:
        session = SwitchSession(next(self._numbers), address, self._limits, self._clock())
        connection = _Connection(sock, session)
        self._connections[session.id] = connection
        connection.writer = hub.spawn(self._write, connection)
        reason, kind = "an error of ours, see the log", "session_bug"
        try:
            self._read(connection)
            reason, kind = "the switch closed the connection", "closed_early"
        except SessionDead as dead:
            reason, kind = str(dead), dead.kind
            self._last_words(session)
        except WireError as error:
            reason, kind = f"broke the protocol: {error}", "wire_error"
        except OSError as error:
            reason, kind = f"connection lost: {error.strerror or error}", "closed_early"
        finally:
            self._end(connection, reason, kind, host)
            with contextlib.suppress(OSError):
                sock.close()

    def _last_words(self, session: SwitchSession) -> None:
        """Give the writer a moment: HELLO_FAILED tells the other side's operator what is wrong."""
        limit = self._clock() + LAST_WORDS_S
        while session.unwritten and self._clock() < limit:
            hub.sleep(0.005)

    def _read(self, connection: _Connection) -> None:
        session, sock = connection.session, connection.sock
        while not connection.closed:
            now = self._clock()
            if now >= session.next_deadline:
                self._took(connection, session.tick(now))
            sock.settimeout(max(0.001, session.next_deadline - self._clock()))
            try:
                data = sock.recv(READ_BYTES)
            except TimeoutError:
                continue
            if not data:
                return
            if session.settled:
                self._took(connection, session.feed(data, self._clock()))
                hub.sleep(0)  # recv returns without waiting while there is data: let the others in
            else:
                with self._bulk():
                    self._took(connection, session.feed(data, self._clock()))
            while session.backlog and not connection.closed:
                with self._bulk():
                    self._took(connection, session.feed(b"", self._clock()))
            while self._overloaded() and not connection.closed:
                hub.sleep(0.01)

    def _took(self, connection: _Connection, events: list[Event]) -> None:
        session = connection.session
        for event in events:
            if connection.closed:
                return
            if isinstance(event, SwitchConnected):
                connection.dpid = event.dpid
                connection.held.append(event)
                self._follow(self._registry.connected(session.id, event.dpid, event.address, event.at))
            elif connection.admitted:
                self._post(event)
            elif connection.dpid is not None:
                connection.held.append(event)
            else:
                self._post_odd(connection, event)
        if session.probe_answered:
            session.probe_answered = False
            self._follow(self._registry.answered(session.id, self._clock()))
        if session.has_output:
            connection.wake.set()

    def _post_odd(self, connection: _Connection, event: Event) -> None:
        if isinstance(event, OddFrame):
            self._odd(event.session, connection.session.host, event.kind, event.text)

    @contextlib.contextmanager
    def _bulk(self) -> Iterator[None]:
        """Work that can be long for many switches at once: encoding plans, handshakes, read-back.

        One at a time, and after TURN_S the hub runs everything else that is due, or else 500 switches that get their
        rules at once would keep a port-down waiting for half a second (measured).
        """
        with self._turn:
            now = self._clock()
            if now - self._turn_ended > TURN_S:
                self._turn_began = now  # nobody was at it: the hub has run meanwhile
            yield
            self._turn_ended = self._clock()
            if self._turn_ended - self._turn_began > TURN_S:
                hub.sleep(0)
                self._turn_began = self._turn_ended = self._clock()

    def _write(self, connection: _Connection) -> None:
        session = connection.session
        while not connection.closed:
            with self._bulk():
                data = session.take_output()
            if not data:
                connection.wake.wait()
                connection.wake.clear()
                continue
            try:
                connection.sock.sendall(data)
            except OSError:
                return  # the reader sees the same end and reports it
            session.wrote(len(data))
            hub.sleep(0)

    def _end(self, connection: _Connection, reason: str, kind: str, host: str) -> None:
        if connection.closed:
            return
        connection.closed = True
        session, now = connection.session, self._clock()
        self._connections.pop(session.id, None)
        self._ended.update(session.totals())
        session.release()
        self.counts[f"sessions_{kind}"] += 1
        connection.shut()
        if connection.writer is not None:
            hub.kill(connection.writer)
        orders = self._registry.gone(session.id, now)
        if connection.admitted:
            if kind != "closed_early":
                self._post(OddFrame(now, session.id, kind, f"{session.address}: {reason}"))
            self._post(SwitchGone(now, session.id, reason))
        elif kind not in ("closed_early", "duplicate"):
            self._odd(session.id, host, kind, f"{session.address}: {reason}")
        self._follow(orders)

    # Datapath ids

    def _follow(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, DuplicateVerdict):
                self.counts["duplicate_dpids"] += 1
                self._post(order)
                continue
            connection = self._connections.get(order.session)
            if connection is None:
                continue
            if isinstance(order, Admit):
                connection.admitted = True
                for event in connection.held:
                    self._post(event)
                connection.held.clear()
            elif isinstance(order, Probe):
                connection.session.probe(self._clock())
                connection.wake.set()
                hub.spawn_after(PROOF_S, self._judge)
            elif isinstance(order, Close):
                self._end(connection, order.reason, "duplicate", connection.session.host)

    def _judge(self) -> None:
        self._follow(self._registry.tick(self._clock()))

    # What the engine asks for

    def carry_out(self, effect: SessionEffect) -> None:
        """Give an effect to its session; a session that has ended has no use for it."""
        connection = self._connections.get(effect.session)
        if connection is None or connection.closed:
            return
        if isinstance(effect, CloseSession):
            self._end(connection, effect.reason, "closed_by_us", connection.session.host)
            return
        try:
            connection.session.carry_out(effect, self._clock())
        except SessionDead as dead:
            self._end(connection, str(dead), dead.kind, connection.session.host)
            return
        connection.wake.set()

    def totals(self) -> Mapping[str, int]:
        """Messages sent and received by kind, over all sessions there were."""
        sums: Counter[str] = Counter(self._ended)
        for connection in self._connections.values():
            sums.update(connection.session.totals())
        sums.update(self.counts)
        return sums

    @property
    def open_connections(self) -> int:
        """Sockets that are open now, in whatever state."""
        return self._open

    def close(self) -> None:
        """Stop listening and drop every connection; the switches keep forwarding."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(std_socket.SHUT_RDWR)
            listener.close()
        for connection in list(self._connections.values()):
            self._end(connection, "the controller stops", "closed_by_us", connection.session.host)

    def _odd(self, session: Session, host: str, kind: str, text: str) -> None:
        """Report, at most once a minute for one address and kind; the rest is counted."""
        now, key = self._clock(), (host, kind)
        self.counts[f"odd_{kind}"] += 1
        if self._quiet_until.get(key, 0.0) > now:
            return
        if len(self._quiet_until) >= REFUSAL_KEYS:
            self._quiet_until = {k: t for k, t in self._quiet_until.items() if t > now}
            if len(self._quiet_until) >= REFUSAL_KEYS:
                return
        self._quiet_until[key] = now + REFUSAL_QUIET_S
        self._post(OddFrame(now, session, kind, text))


def _raise_descriptor_limit() -> None:
    """As many descriptors as we may have: the common soft limit of 1,024 is a quarter of what we accept."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
