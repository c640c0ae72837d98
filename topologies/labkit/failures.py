"""Ways to break a link, and to mend it again. Each is undone by its `heal`. Measures nothing."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

from labkit.fabric import Link
from labkit.shell import run

broken: set[Link] = set()  # every link broken since the set was last cleared: a link outside it has no excuse to fail
STOP, CONTINUE = signal.SIGSTOP, signal.SIGCONT
STEAL_ALL = "1,6 0 0 4"  # classic BPF: return TC_ACT_STOLEN for every frame, so the sender sees no error


@dataclass(frozen=True)
class Failure:
    """`break_link` and `heal` act at once."""

    act: Callable[[Link], None]
    heal: Callable[[Link], None]

    def break_link(self, link: Link) -> None:
        broken.add(link)
        self.act(link)


def _set(interface: str, state: str) -> None:
    run(["ip", "link", "set", interface, state])


def _steal(interface: str) -> None:
    run(["tc", "qdisc", "add", "dev", interface, "clsact"], check=False)  # there already: the filter below is what counts
    run(["tc", "filter", "add", "dev", interface, "egress", "bpf", "da", "bytecode", STEAL_ALL])


def _cut(link: Link) -> None:
    """Both directions go silent, both ends keep their carrier: no port event anywhere."""
    _steal(link.leaf_end)
    _steal(link.spine_end)


def _mend(link: Link) -> None:
    for interface in (link.leaf_end, link.spine_end):
        run(["tc", "qdisc", "del", "dev", interface, "clsact"], check=False)


LEAF_END_DOWN = Failure(lambda link: _set(link.leaf_end, "down"), lambda link: _set(link.leaf_end, "up"))
SPINE_END_DOWN = Failure(lambda link: _set(link.spine_end, "down"), lambda link: _set(link.spine_end, "up"))
SILENT_CUT = Failure(_cut, _mend)


def heal_everything(links: list[Link]) -> None:
    """After a row that failed half-way."""
    for link in links:
        _mend(link)
        run(["ip", "link", "set", link.leaf_end, "up"], check=False)
        run(["ip", "link", "set", link.spine_end, "up"], check=False)
