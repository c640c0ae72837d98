"""Leaf-spine fabrics for Mininet: names, dpids, port numbers and addresses that can be read off; knows no controller.

Runs under the system's python3 (Debian's mininet), also through the command line:
  mn --custom topologies/leaf_spine.py --topo leafspine,4,2,2 --controller remote --switch ovs,datapath=user,protocols=OpenFlow13

leafspine,LEAVES,SPINES,HOSTS[,PARALLEL[,ROUTED]]: HOSTS a leaf, PARALLEL links between each leaf and spine, ROUTED=1 gives
each leaf its own /24 and each host a default gateway instead of one flat /8.

  leaf i    l<i>   dpid 0000aa00000001<i>   host ports 1.., uplinks 11.. (past the hosts when there are more than 10)
  spine j   s<j>   dpid 0000aa00000002<j>   one port a leaf and parallel link, leaf 1 first
  host      h<k>   10.0.<leaf>.<n> and fd00::10.0.<leaf>.<n>, MAC 02:00:0a:00:<leaf>:<n>
"""

import re

from mininet.node import Host
from mininet.topo import Topo

OFFLOADS = ("tx", "rx", "tso", "gso", "gro")
GATEWAY_LAST_OCTET = 254
IPERF_TCP_SERVER = re.compile(r"iperf -p \d+ (-f \S+ )?-s$")
COUNT_THE_PROBE = "2>&1 | sed -u '/read tcp flags/s|$| 0 bits/sec|'"


class PlainHost(Host):
    """A host whose frames a userspace datapath can carry: checksums filled in, no oversized segments, little IPv6 chatter.

    Open vSwitch reads and writes the interface through a packet socket, so an offloaded checksum would reach the other host
    unfilled and its TCP would stall.
    """

    def config(self, **params):
        result = super().config(**params)
        for interface in self.intfList():
            for feature in OFFLOADS:  # one at a time: ethtool gives up the whole line when the driver refuses one of them
                self.cmd(f"ethtool -K {interface} {feature} off")
            self._quieten_port(interface)
        self._start_ipv6(params.get("ip6"))
        return result

    def _start_ipv6(self, address):
        """One address of its own, known at once; no solicitations of routers, no addresses from advertisements."""
        interface = self.defaultIntf()
        for option in ("accept_ra=0", "router_solicitations=0", "dad_transmits=0", f"disable_ipv6={0 if address else 1}"):
            name, value = option.split("=")
            for scope in ("all", "default", interface.name if interface else "lo"):
                self.cmd(f"sysctl -qw net.ipv6.conf.{scope}.{name}={value}")
        if address and interface:
            self.cmd(f"ip -6 addr add {address} dev {interface} nodad")

    def sendCmd(self, *args, **kwargs):
        """Lets Mininet's `iperf` end: it waits for two rates from a TCP server, one of them of its own connection test.

        iperf before 2.1 printed a rate for a connection that sent nothing, later ones print a warning.
        """
        if len(args) == 1 and isinstance(args[0], str) and IPERF_TCP_SERVER.match(args[0].strip()):
            args = (f"{args[0].strip()} {COUNT_THE_PROBE}",)
        return super().sendCmd(*args, **kwargs)

    @staticmethod
    def _quieten_port(interface):
        """The switch's end of the cable is an interface of the machine's own stack, which would solicit IPv6 routers on it."""
        if interface.link:
            ends = {interface.link.intf1, interface.link.intf2} - {interface}
            for end in ends:
                end.node.cmd(f"sysctl -qw net.ipv6.conf.{end.name}.disable_ipv6=1")


def leaf_dpid(leaf: int) -> str:
    """16 hexadecimal digits, as ovs-vsctl takes them; looks like a vendor's, a MAC address in the low 48 bits."""
    return f"{0x0000AA0000000100 + leaf:016x}"


def spine_dpid(spine: int) -> str:
    return f"{0x0000AA0000000200 + spine:016x}"


def first_uplink(hosts: int) -> int:
    return max(11, hosts + 1)


class LeafSpine(Topo):
    """Two-tier folded Clos; every leaf has `parallel` links to every spine."""

    def build(self, leaves=4, spines=2, hosts=2, parallel=1, routed=0):
        leaves, spines, hosts, parallel, routed = (int(value) for value in (leaves, spines, hosts, parallel, routed))
        for name, value, most in (
            ("leaves", leaves, 250),
            ("spines", spines, 64),
            ("hosts", hosts, 250),
            ("parallel", parallel, 16),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"leafspine: {name} must be 1 to {most}, not {value}")
        spine_names = [self.addSwitch(f"s{j}", dpid=spine_dpid(j)) for j in range(1, spines + 1)]
        for i in range(1, leaves + 1):
            leaf = self.addSwitch(f"l{i}", dpid=leaf_dpid(i))
            for n in range(1, hosts + 1):
                self.addLink(self._host((i - 1) * hosts + n, i, n, routed), leaf, port1=0, port2=n)
            uplink = first_uplink(hosts)
            for j, spine in enumerate(spine_names):
                for p in range(parallel):
                    self.addLink(leaf, spine, port1=uplink + j * parallel + p, port2=(i - 1) * parallel + p + 1)

    def _host(self, number, leaf, n, routed):
        options = {
            "ip": f"10.0.{leaf}.{n}/{24 if routed else 8}",
            "ip6": f"fd00::10.0.{leaf}.{n}/64",
            "mac": f"02:00:0a:00:{leaf:02x}:{n:02x}",
        }
        if routed:
            options["defaultRoute"] = f"via 10.0.{leaf}.{GATEWAY_LAST_OCTET}"
        return self.addHost(f"h{number}", cls=PlainHost, **options)


topos = {"leafspine": LeafSpine}
