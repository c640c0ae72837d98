"""k-ary fat trees for Mininet (Al-Fares et al., SIGCOMM 2008): three tiers; names, dpids and addresses that can be read off.

Runs under the system's python3 (Debian's mininet), also through the command line:
  mn --custom topologies/fat_tree.py --topo fattree,4 --controller remote --switch ovs,datapath=user,protocols=OpenFlow13

fattree,K[,HOSTS]: K pods (even) of K/2 leaves and K/2 spines, (K/2)^2 super-spines; HOSTS a leaf, K/2 unless given.

  leaf          l<i>   dpid 0000aa00000001<i>   host ports 1.., uplinks 11..
  spine         s<j>   dpid 0000aa00000002<j>   its pod's leaves at 1.., super-spines at 11..
  super-spine   c<m>   dpid 0000aa00000003<m>   one port a pod, pod 1 first
  host          h<k>   10.<pod>.<leaf in pod>.<n> and fd00::10.<pod>.<leaf in pod>.<n>
"""

import sys
from pathlib import Path

from mininet.topo import Topo

sys.path.insert(0, str(Path(sys._getframe().f_code.co_filename).resolve().parent))  # mn --custom gives no __file__

from leaf_spine import PlainHost, first_uplink, leaf_dpid, spine_dpid


def super_spine_dpid(number: int) -> str:
    return f"{0x0000AA0000000300 + number:016x}"


class FatTree(Topo):
    """Every spine of a pod leads to its own K/2 super-spines, each of which has one link to every pod."""

    def build(self, k=4, hosts=0):
        k, hosts = int(k), int(hosts)
        if k % 2 or not 2 <= k <= 16:
            raise ValueError(f"fattree: K must be even, 2 to 16, not {k}")
        half = k // 2
        hosts = hosts or half
        if not 1 <= hosts <= 200:
            raise ValueError(f"fattree: HOSTS must be 1 to 200, not {hosts}")
        tops = [self.addSwitch(f"c{m}", dpid=super_spine_dpid(m)) for m in range(1, half * half + 1)]
        uplink = first_uplink(hosts)
        for pod in range(k):
            first = pod * half
            spines = [self.addSwitch(f"s{first + j + 1}", dpid=spine_dpid(first + j + 1)) for j in range(half)]
            for i in range(half):
                leaf = self.addSwitch(f"l{first + i + 1}", dpid=leaf_dpid(first + i + 1))
                for n in range(1, hosts + 1):
                    self.addLink(self._host((first + i) * hosts + n, pod + 1, i + 1, n), leaf, port1=0, port2=n)
                for j, spine in enumerate(spines):
                    self.addLink(leaf, spine, port1=uplink + j, port2=i + 1)
            for j, spine in enumerate(spines):
                for c in range(half):
                    self.addLink(spine, tops[j * half + c], port1=11 + c, port2=pod + 1)

    def _host(self, number, pod, leaf, n):
        address = f"10.{pod}.{leaf}.{n}"
        mac = f"02:00:0a:{pod:02x}:{leaf:02x}:{n:02x}"
        return self.addHost(f"h{number}", cls=PlainHost, ip=f"{address}/8", ip6=f"fd00::{address}/64", mac=mac)


topos = {"fattree": FatTree}
