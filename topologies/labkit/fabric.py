"""One leaf-spine fabric of real bridges in Mininet: builds it, names its parts, takes it down again. Sends no traffic."""

import contextlib
import functools
import ipaddress
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from leaf_spine import LeafSpine, first_uplink, leaf_dpid, spine_dpid
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import OVSSwitch, RemoteController

from labkit import ovs
from labkit.errors import LabError
from labkit.shell import run
from labkit.traffic import Endpoint


class QuietRemote(RemoteController):
    """A remote controller that is not probed with telnet first."""

    def checkListening(self):
        return


class MarkedSwitch(OVSSwitch):
    """A bridge that carries the lab's mark from its first moment, so that a killed lab leaves nothing nobody owns."""

    def bridgeOpts(self):
        return f"{super().bridgeOpts()} external_ids:{ovs.MARK}={os.getpid()}"


@dataclass(frozen=True)
class Shape:
    leaves: int = 4
    spines: int = 2
    hosts: int = 2

    def __str__(self) -> str:
        return f"{self.leaves} leaves, {self.spines} spines, {self.hosts} hosts a leaf"


@dataclass(frozen=True)
class Link:
    """A leaf's uplink; the interface names of both ends."""

    leaf: int
    spine: int
    leaf_end: str
    spine_end: str


def kernel_datapath() -> bool:
    """Is the kernel's openvswitch module there, or can it be loaded?"""
    if Path("/sys/module/openvswitch").exists():
        return True
    with contextlib.suppress(OSError):
        return subprocess.run(["modprobe", "openvswitch"], capture_output=True, timeout=20, check=False).returncode == 0
    return False


class Fabric:
    """`build` makes hosts and links, `connect` makes the bridges and points them at the controller."""

    def __init__(self, shape: Shape, openflow_port: int, datapath: str, ipv6: bool = False) -> None:
        self.ipv6 = ipv6
        self.shape, self.openflow_port, self.datapath = shape, openflow_port, datapath
        self.net: Mininet | None = None
        self._ours = False  # this process made, or may have made, what is there
        self.hosts: list[Endpoint] = []
        uplink = first_uplink(shape.hosts)
        self.links = [
            Link(leaf, spine, f"l{leaf}-eth{uplink + spine - 1}", f"s{spine}-eth{leaf}")
            for leaf in range(1, shape.leaves + 1)
            for spine in range(1, shape.spines + 1)
        ]
        self.bridges = [f"l{i}" for i in range(1, shape.leaves + 1)] + [f"s{j}" for j in range(1, shape.spines + 1)]

    def build(self) -> None:
        setLogLevel("error")
        ovs.remove_stale_bridges()
        taken = sorted(set(ovs.listed_bridges()) & set(self.bridges))
        if taken:
            raise LabError(self._whose(taken))
        self._ours = True
        self._remove_stale_links()
        switch = functools.partial(MarkedSwitch, datapath=self.datapath, protocols="OpenFlow13", failMode="secure")
        self.net = Mininet(topo=LeafSpine(*vars(self.shape).values()), switch=switch, controller=None, build=False)
        self.net.addController(QuietRemote("c0", ip="127.0.0.1", port=self.openflow_port))
        self.net.build()
        for end in [end for link in self.links for end in (link.leaf_end, link.spine_end)]:
            run(
                ["sysctl", "-qw", f"net.ipv6.conf.{end}.disable_ipv6=1"], check=False
            )  # the machine's own stack must not talk there
        for number, host in enumerate(self.net.hosts):
            leaf = number // self.shape.hosts + 1
            four, six = host.IP(), str(ipaddress.IPv6Address(f"fd00::{host.IP()}"))
            self.hosts.append(Endpoint(host.name, host.pid, six if self.ipv6 else four, host.defaultIntf().name, leaf, four, six))

    @staticmethod
    def _whose(taken: list[str]) -> str:
        """Why these bridges are in the way, and what to do."""
        owners = {owner for name, owner in ovs.listed_bridges().items() if name in taken and owner}
        if owners:
            return f"another lab is running (process {', '.join(sorted(owners))}); end it first, or wait"
        return f"bridges {', '.join(taken)} exist and are not a lab's: `ovs-vsctl del-br NAME` for each"

    def _remove_stale_links(self) -> None:
        """Veths of a lab that was killed before its bridges existed."""
        for link in self.links:
            if Path("/sys/class/net", link.leaf_end).exists():
                run(["ip", "link", "del", link.leaf_end], check=False)

    def connect(self) -> None:
        if self.net is None:
            raise LabError("the fabric was not built")
        self.net.start()

    def close(self) -> None:
        """Takes down everything that was built, whatever state it is in, and nothing of another lab's."""
        net, self.net = self.net, None
        if not self._ours:
            return
        if net is not None:
            try:
                net.stop()
            except Exception as error:  # noqa: BLE001 - Mininet raises anything; what it left is removed below
                print(f"lab: Mininet's own clean-up failed ({error}); removing the rest")
                for host in net.hosts:
                    with contextlib.suppress(Exception):
                        host.terminate()
        for bridge in self.bridges:
            if run(["ovs-vsctl", "br-get-external-id", bridge, ovs.MARK], check=False).strip() == str(os.getpid()):
                ovs.delete_bridge(bridge)
        self._remove_stale_links()
        self.hosts = []

    def host(self, leaf: int, number: int = 1) -> Endpoint:
        return self.hosts[(leaf - 1) * self.shape.hosts + number - 1]

    def hosts_of(self, leaf: int) -> list[Endpoint]:
        return [host for host in self.hosts if host.leaf == leaf]

    def link(self, leaf: int, spine: int) -> Link:
        return next(link for link in self.links if (link.leaf, link.spine) == (leaf, spine))

    def uplinks(self, leaf: int) -> list[Link]:
        return [link for link in self.links if link.leaf == leaf]

    def link_of(self, interface: str) -> Link:
        return next(link for link in self.links if interface in (link.leaf_end, link.spine_end))

    def dpids(self) -> dict[str, str]:
        """Bridge name -> 16 hexadecimal digits."""
        leaves = {f"l{i}": leaf_dpid(i) for i in range(1, self.shape.leaves + 1)}
        return leaves | {f"s{j}": spine_dpid(j) for j in range(1, self.shape.spines + 1)}

    def wait_connected(self, bound_s: float) -> float:
        """The time (epoch seconds) at which the last switch was seen connected."""
        end = time.monotonic() + bound_s
        while ovs.connections_to(self.openflow_port) < len(self.bridges):
            if time.monotonic() > end:
                n = ovs.connections_to(self.openflow_port)
                raise LabError(
                    f"only {n} of {len(self.bridges)} switches connected to port {self.openflow_port} within {bound_s:g} s"
                )
            time.sleep(0.003)
        return time.time()
