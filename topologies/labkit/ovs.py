"""Open vSwitch by command line: the lab's own bridges, their tables and counters, and the daemon's death and return.

Touches only bridges that carry the lab's mark in external_ids.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from labkit.errors import LabError, PhaseError
from labkit.shell import run, wait_until

MARK = "aifabric-lab"
ESTABLISHED = "01"


def listed_bridges() -> dict[str, str]:
    """Bridge name -> the lab's mark (process id of the lab that made it), empty for somebody else's."""
    return {name: run(["ovs-vsctl", "br-get-external-id", name, MARK]).strip() for name in run(["ovs-vsctl", "list-br"]).split()}


def remove_stale_bridges() -> list[str]:
    """Deletes bridges of a lab process that no longer lives. Returns their names."""
    stale = [name for name, owner in listed_bridges().items() if owner and not Path("/proc", owner).exists()]
    for name in stale:
        delete_bridge(name)
    return stale


def delete_bridge(name: str) -> None:
    """The bridge and the veth pairs of its ports."""
    ports = run(["ovs-vsctl", "list-ports", name], check=False).split()
    run(["ovs-vsctl", "--if-exists", "del-br", name], check=False)
    for port in ports:
        if port.startswith(name + "-eth"):
            run(["ip", "link", "del", port], check=False)


def connections_to(port: int) -> int:
    """Established TCP connections of this machine towards the controller's port, read where it costs nothing."""
    remote, count = f":{port:04X}", 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        count += fields[2].endswith(remote) and fields[3] == ESTABLISHED
    return count


def flows(bridge: str, table: int | None = None) -> list[str]:
    """Lines of dump-flows, without the reply's heading."""
    command = ["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", bridge] + ([f"table={table}"] if table is not None else [])
    return [line.strip() for line in run(command).splitlines() if "actions=" in line]


def groups(bridge: str) -> list[str]:
    return [
        line.strip() for line in run(["ovs-ofctl", "-O", "OpenFlow13", "dump-groups", bridge]).splitlines() if "group_id=" in line
    ]


def rule_ages_s(bridge: str) -> tuple[list[float], list[float]]:
    """Ages of all flows and of all groups as the switch counts them: the witness that nothing was sent."""
    ages = [float(found[1]) for line in flows(bridge) if (found := re.search(r"duration=([0-9.]+)s", line))]
    stats = run(["ovs-ofctl", "-O", "OpenFlow13", "dump-group-stats", bridge])
    return ages, [float(value) for value in re.findall(r"group_id=\d+,duration=([0-9.]+)s", stats)]


def without_counters(bridge: str) -> list[str]:
    """The bridge's rules as text that two dumps can be compared by."""
    kept = [re.sub(r"(duration|n_packets|n_bytes|idle_age|hard_age)=[^,]*, ?", "", line) for line in flows(bridge)]
    return sorted(kept) + sorted(groups(bridge))


def daemon_pid() -> int:
    for directory in ("/var/run/openvswitch", "/run/openvswitch"):
        with contextlib.suppress(OSError, ValueError):
            return int(Path(directory, "ovs-vswitchd.pid").read_text())
    raise LabError("ovs-vswitchd is not running: run `make setup` as root")


class Daemon:
    """The forwarding daemon, to be killed and brought back with the command line it had."""

    def __init__(self) -> None:
        self._command: list[str] = []
        self._priority = 0

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone, its monitor as well (a monitor restarts crashes, not kills)."""
        pid = daemon_pid()
        self._command = [part for part in Path("/proc", str(pid), "cmdline").read_text().split("\0") if part]
        self._priority = os.getpriority(os.PRIO_PROCESS, pid)
        status = Path("/proc", str(pid), "status").read_text()
        parent = int(re.findall(r"PPid:\s*(\d+)", status)[0])
        os.kill(pid, signal.SIGKILL)
        if not wait_until(lambda: not _alive(pid), 10):
            raise PhaseError("ovs-vswitchd survived SIGKILL for 10 s")
        if _name(parent) == "ovs-vswitchd":
            wait_until(lambda: not _alive(parent), 2)

    def start(self) -> None:
        """Once more as it was started before; returns when it answers."""
        if not self._command:
            return
        environment = dict(os.environ, PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        command = ["nice", "-n", str(self._priority - os.getpriority(os.PRIO_PROCESS, 0)), *self._command]
        subprocess.run(
            command,
            env=environment,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._command = []

    def ensure(self) -> None:
        """Clean-up: never leave the machine without the daemon it had."""
        with contextlib.suppress(LabError):
            if _alive(daemon_pid()):
                self._command = []
                return
        if self._command:
            self.start()
            time.sleep(0.5)


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path("/proc", str(pid), "status").read_text()
    except OSError:
        return False


def _name(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""


def _interfaces() -> dict[str, tuple[str, str]]:
    """Interface -> (link state, BFD status as text)."""
    text = run(["ovs-vsctl", "--format=csv", "--no-headings", "--columns=name,link_state,bfd_status", "list", "interface"])
    rows = (line.replace('"', "").split(",", 2) for line in text.splitlines())
    return {name: (state, bfd) for name, state, bfd in rows}


def forwarding(interfaces: list[str]) -> list[bool]:
    """For each interface: carrier, and BFD forwarding where it is on."""
    found = _interfaces()
    states = [found.get(name, ("", "")) for name in interfaces]
    return [state == "up" and ("forwarding=" not in bfd or "forwarding=true" in bfd) for state, bfd in states]


def bfd_flaps(interfaces: list[str]) -> dict[str, int]:
    """Interface -> how often its BFD session went up or down, as Open vSwitch counts it."""
    found = _interfaces()
    counts = {name: re.search(r"flap_count=(\d+)", found.get(name, ("", ""))[1]) for name in interfaces}
    return {name: int(count[1]) if count else 0 for name, count in counts.items()}
