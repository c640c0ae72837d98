"""The traffic process: sends paced probes from all hosts, receives and sniffs them, pings all pairs. Decides no verdict.

One process, because a socket stays in the namespace it was opened in, and one thread, because two cores are few. Receive times
are the kernel's, so packets are collected lazily between two sends. Speaks JSON, one object a line, on standard input and output.
"""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from labkit import packets
from labkit.netns import socket_in

DRAIN_S = 0.02
IDLE_S = 0.005
STALL_S = 0.003
GAP_S = 0.003
BUFFER_BYTES = 16 << 20
SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
SO_ATTACH_FILTER = 26
ETH_P_ALL = 3
ETH_P_ARP = 0x0806
ETH_P_IP = 0x0800
ETH_P_IPV6 = 0x86DD
ETH_P_LLDP = 0x88CC
PACKET_OUTGOING = 4
PR_SET_PDEATHSIG = 1
TIMESPEC = struct.Struct("qq")
ONLY_IP = (
    (0x28, 0, 0, 12),
    (0x15, 1, 0, ETH_P_IP),
    (0x15, 0, 1, ETH_P_IPV6),
    (0x06, 0, 0, 0x40000),
    (0x06, 0, 0, 0),
)
IPV6_CHECKSUM = 7
ARP_TARGET = slice(38, 42)
IP_DESTINATION = slice(30, 34)
IP6_NEXT_HEADER, IP6_DESTINATION, ICMP6_TYPE, ND_TARGET = 20, slice(38, 54), 54, slice(62, 78)
ND_SOLICIT, ND_ADVERT = 135, 136
ICMP6_ECHO, ICMP6_ECHO_REPLY = 128, 129


def family(six):
    return socket.AF_INET6 if six else socket.AF_INET


def tuned(sock):
    """Non-blocking, a buffer that outlives a lazy reader, kernel receive times."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sock


def sniffing_socket(interface, only_ip):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # protocol 0: nothing arrives before the filter is there
    if only_ip:
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in ONLY_IP))
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", len(ONLY_IP), ctypes.addressof(code)))
    sock.bind((interface, ETH_P_ALL))  # outgoing frames are shown to sockets for every protocol only
    return tuned(sock)


def received(sock):
    """(bytes, sender address, kernel time in seconds) of each waiting packet."""
    while True:
        try:
            data, ancillary, _flags, address = sock.recvmsg(2048, 64)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENETDOWN:
                raise
            continue  # said once when a sniffed interface is set down; what was queued before is still there
        at = time.time()
        for _level, kind, value in ancillary:
            if kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = TIMESPEC.unpack_from(value)
                at = seconds + nanoseconds / 1e9
        yield data, address, at


class Flow:
    """One probe stream: when each sequence number was sent and when each was received."""

    def __init__(self, number, spec, sock):
        self.number, self.sock = number, sock
        self.protocol = packets.PROTOCOLS[spec["protocol"]]
        self.destination = (spec["destination"], 0)
        self.six = ":" in spec["destination"]
        self.ports = (spec["source_port"], spec["destination_port"])
        self.sent, self.got, self.errors, self.duplicates = [], {}, 0, 0

    def send(self):
        data = packets.segment(self.protocol, *self.ports, self.number, len(self.sent), self.six)
        self.sent.append(time.time())
        try:
            self.sock.sendto(data, self.destination)
        except OSError:
            self.errors += 1

    def receive(self, sequence, at):
        if sequence in self.got:
            self.duplicates += 1
        else:
            self.got[sequence] = at

    def result(self):
        arrivals = sorted(self.got.values())
        gaps = [[a, b - a] for a, b in itertools.pairwise(arrivals) if b - a > GAP_S]
        stalls = [[a, b - a] for a, b in itertools.pairwise(self.sent) if b - a > STALL_S]
        lost = [at for sequence, at in enumerate(self.sent) if sequence not in self.got]
        return {
            "sent": len(self.sent),
            "received": len(self.got),
            "lost_at": lost,
            "gaps": gaps,
            "stalls": stalls,
            "errors": self.errors,
            "duplicates": self.duplicates,
            "last_arrival": arrivals[-1] if arrivals else None,
        }


class Run:
    """Traffic and sniffing between a start and a stop command."""

    def __init__(self, command):
        self.sockets, self.senders, self.receivers = [], {}, set()
        self.flows, self.sets = [], []
        self.window, self.seen = "start", defaultdict(Counter)
        self.unasked, self.samples = defaultdict(Counter), []
        for host in command.get("sniff_hosts", []):
            sock = socket_in(host["pid"], lambda host=host: sniffing_socket(host["interface"], False))
            self.sockets.append((sock, self._host_reader(host)))
        for interface in command.get("sniff", []):
            self.sockets.append((sniffing_socket(interface, True), self._uplink_reader(interface)))
        for spec in command.get("sets", []):
            self._add_set(spec)
        start = time.monotonic() + 0.02
        for entry in self.sets:
            entry[0] = start

    def _add_set(self, spec):
        flows = []
        for wanted in spec["flows"]:
            six = ":" in wanted["destination"]
            flow = Flow(len(self.flows), wanted, self._sender(wanted["source_pid"], wanted["protocol"], six))
            self._open_receiver(wanted)
            self.flows.append(flow)
            flows.append(flow)
        self.sets.append([0.0, 1.0 / spec["rate"], flows, 0, spec.get("count")])

    def _sender(self, pid, protocol, six):
        if (pid, protocol, six) not in self.senders:
            number = packets.protocol_number(protocol, six)
            sock = socket_in(pid, lambda: socket.socket(family(six), socket.SOCK_RAW, number))
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # raw sockets receive too; this one never reads
            if six and protocol in packets.CHECKSUM_AT:  # IPv6 has no header checksum, so UDP's may not be 0
                sock.setsockopt(socket.IPPROTO_IPV6, IPV6_CHECKSUM, packets.CHECKSUM_AT[protocol])
            self.senders[pid, protocol, six] = sock
        return self.senders[pid, protocol, six]

    def _open_receiver(self, wanted):
        port = wanted["destination_port"] if wanted["protocol"] == "udp" else 0
        six = ":" in wanted["destination"]
        protocol = packets.protocol_number(wanted["protocol"], six)
        key = (wanted["destination_pid"], protocol, port, six)
        if key in self.receivers:
            return
        self.receivers.add(key)

        def make():
            if not port:
                return tuned(socket.socket(family(six), socket.SOCK_RAW, protocol))
            sock = socket.socket(family(six), socket.SOCK_DGRAM)
            sock.bind(("", port))
            return tuned(sock)

        parse = packets.parse_payload if port else packets.parse_ipv4
        if six and not port:  # a raw IPv6 socket is not shown the IP header

            def parse(data):
                return packets.parse_layer4(protocol, data)

        self.sockets.append((socket_in(key[0], make), self._flow_reader(parse)))

    def _flow_reader(self, parse):
        def read(data, _address, at):
            found = parse(memoryview(data))
            if found and found[0] < len(self.flows):
                self.flows[found[0]].receive(found[1], at)

        return read

    def _uplink_reader(self, interface):
        def read(data, address, _at):
            found = packets.parse_ip(memoryview(data)[14:])
            if found:
                direction = "out" if address[2] == PACKET_OUTGOING else "in"
                self.seen[self.window][interface, direction, found[0]] += 1

        return read

    def _host_reader(self, host):
        own_ip, own_ip6 = socket.inet_aton(host["ip"]), socket.inet_pton(socket.AF_INET6, host["ip6"])

        def read(data, address, _at):
            if address[2] == PACKET_OUTGOING or len(data) < 14:
                return
            kind = kind_of_unasked(data, address[1], own_ip, own_ip6)
            if kind:
                self.unasked[self.window][kind] += 1
                if kind != "lldp" and len(self.samples) < 20:
                    self.samples.append(f"{host['interface']} {kind} {data[:42].hex()}")

        return read

    def tick(self):
        """Sends what is due; returns the monotonic time of the next send, or None when nothing is left to send."""
        now, following = time.monotonic(), None
        for entry in self.sets:
            due, interval, flows, index, left = entry
            while due <= now and left != 0:
                flows[index].send()
                index = (index + 1) % len(flows)
                due += interval
                left = left - 1 if left is not None else None
            entry[0], entry[3], entry[4] = due, index, left
            if left != 0:
                following = due if following is None else min(following, due)
        return following

    def drain(self):
        for sock, read in self.sockets:
            for data, address, at in received(sock):
                read(data, address, at)

    def result(self):
        seen = {
            window: [[interface, direction, flow, count] for (interface, direction, flow), count in counts.items()]
            for window, counts in self.seen.items()
        }
        return {"flows": [flow.result() for flow in self.flows], "seen": seen, "unasked": self.unasked, "samples": self.samples}

    def close(self):
        for sock, _read in self.sockets:
            sock.close()
        for sock in self.senders.values():
            sock.close()


def kind_of_unasked(data, ethertype, own_ip, own_ip6):
    """What a received frame is if this host did not ask for it and is not asked by it, else None."""
    to_many = bool(data[0] & 1)
    if ethertype == ETH_P_ARP:
        return None if data[ARP_TARGET] == own_ip else "arp"
    if ethertype == ETH_P_LLDP:
        return "lldp"
    if ethertype == ETH_P_IPV6:
        if data[IP6_NEXT_HEADER] == socket.IPPROTO_ICMPV6 and data[ICMP6_TYPE] in (ND_SOLICIT, ND_ADVERT):
            mine = data[ND_TARGET] == own_ip6 if data[ICMP6_TYPE] == ND_SOLICIT else not to_many
            return None if mine else "neighbour discovery"
        if not to_many:
            return None if data[IP6_DESTINATION] == own_ip6 else "foreign unicast"
    if ethertype == ETH_P_IP and not to_many:
        return None if data[IP_DESTINATION] == own_ip else "foreign unicast"
    return "broadcast" if to_many else "other"


class Pinger:
    """Echo requests between all pairs, repeated until each was answered once or the time is over."""

    def __init__(self, command):
        self.hosts, self.every_s = command["hosts"], command.get("every_s", 0.2)
        self.end = time.monotonic() + command["timeout_s"]
        self.next, self.round = 0.0, 0
        self.waiting = {(a, b) for a in range(len(self.hosts)) for b in range(len(self.hosts)) if a != b}
        self.first, self.requests = {}, 0
        self.by_ip = {host["ip"]: index for index, host in enumerate(self.hosts)}
        self.six = ":" in self.hosts[0]["ip"]
        number = packets.protocol_number("icmp", self.six)
        self.sockets = [
            socket_in(host["pid"], lambda: tuned(socket.socket(family(self.six), socket.SOCK_RAW, number))) for host in self.hosts
        ]

    def tick(self):
        """True when finished."""
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.every_s
            self.round += 1
            for a, b in sorted(self.waiting):
                self._request(a, b)
        for a, sock in enumerate(self.sockets):
            for data, address, at in received(sock):
                self._reply(a, data, address, at)
        return not self.waiting or now >= self.end

    def _request(self, a, b):
        kind = ICMP6_ECHO if self.six else 8  # of ICMPv6 the kernel fills the checksum in
        body = struct.pack("!BBHHH", kind, 0, 0, 0x4C00 + a, self.round & 0xFFFF)
        total = sum(struct.unpack("!4H", body))
        checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        self.requests += 1
        with contextlib.suppress(OSError):  # no neighbour yet: the next round tries again
            self.sockets[a].sendto(body[:2] + struct.pack("!H", checksum) + body[4:], (self.hosts[b]["ip"], 0))

    def _reply(self, a, data, address, at):
        header, kind = (0, ICMP6_ECHO_REPLY) if self.six else ((data[0] & 15) * 4, 0)
        if len(data) >= header + 8 and data[header] == kind and struct.unpack_from("!H", data, header + 4)[0] == 0x4C00 + a:
            pair = (a, self.by_ip.get(address[0], -1))
            if pair in self.waiting:
                self.waiting.discard(pair)
                self.first[pair] = at

    def result(self):
        missing = [[self.hosts[a]["name"], self.hosts[b]["name"]] for a, b in sorted(self.waiting)]
        return {
            "pairs": len(self.first) + len(missing),
            "answered": len(self.first),
            "missing": missing,
            "requests": self.requests,
            "last_at": max(self.first.values(), default=None),
        }

    def close(self):
        for sock in self.sockets:
            sock.close()


class Prober:
    """Command loop: one traffic run and one ping round at a time, both may be on."""

    def __init__(self):
        self.run = self.pinger = None
        self.input = b""
        os.set_blocking(0, False)

    def loop(self):
        last_drain = 0.0
        while True:
            following = self.run.tick() if self.run else None
            now = time.monotonic()
            if now - last_drain >= DRAIN_S:
                last_drain = now
                if self.run:
                    self.run.drain()
                if not self._commands():
                    return
            if self.pinger and self.pinger.tick():
                self.finish_ping()
            wait = (DRAIN_S if not self.pinger else IDLE_S) if following is None else min(DRAIN_S, following - time.monotonic())
            if following is None:
                select.select([0], [], [], wait)
            elif wait > 0:
                time.sleep(wait)

    def _commands(self):
        with contextlib.suppress(BlockingIOError):
            data = os.read(0, 1 << 20)
            if not data:
                return False
            self.input += data
        while b"\n" in self.input:
            line, self.input = self.input.split(b"\n", 1)
            command = json.loads(line)
            try:
                answer = getattr(self, "do_" + command["do"])(command)
            except OSError as error:
                answer = {"error": str(error)}
            if answer is not None:
                reply(answer)
        return True

    def do_start(self, command):
        self.run = Run(command)
        return {"started": len(self.run.flows)}

    def do_mark(self, command):
        self.run.drain()
        self.run.window = command["name"]
        return {"at": time.time(), "sent": [len(flow.sent) for flow in self.run.flows]}

    def do_quiet(self, _command):
        """Stops sending and keeps receiving."""
        for entry in self.run.sets:
            entry[4] = 0
        return {}

    def do_stop(self, _command):
        self.run.drain()
        answer = self.run.result()
        self.run.close()
        self.run = None
        return answer

    def do_ping(self, command):
        self.pinger = Pinger(command)
        return

    def do_abort(self, _command):
        for part in (self.run, self.pinger):
            if part:
                part.close()
        self.run = self.pinger = None
        return {}

    def finish_ping(self):
        answer = self.pinger.result()
        self.pinger.close()
        self.pinger = None
        reply(answer)


def reply(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed lab leaves no traffic behind
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the lab itself ends us, after its own clean-up
    with contextlib.suppress(OSError):
        os.nice(-10)  # Open vSwitch runs at -10 as well; late senders would show as losses of the fabric
    Prober().loop()


if __name__ == "__main__":
    main()
