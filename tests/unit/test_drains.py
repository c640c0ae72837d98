"""Drains on the strict in-memory fabric: who is cut off, what is refused, what survives, and that no packet is lost."""

from __future__ import annotations

import pytest

from aifabric_ctrl.model.effects import Answer
from aifabric_ctrl.model.fabric import LinkState
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.sim.memnet import MemNet
from aifabric_ctrl.sim.topology import leaf_spine
from tests.unit.engine_lab import LEAF1, SPINE1, SPINE2, UPLINK1, UPLINK2, engine, fabric, kinds, wanted_and_there_agree


def ask(net: MemNet, verb: str, target: str, **more: object) -> Answer:
    request = net.ask(verb, target, **more)  # type: ignore[arg-type]
    net.advance(1.0)
    return net.answers[request]


def states(net: MemNet, dpid: int) -> set[LinkState]:
    return {x.state for x in net.engine.view().fabric.links if dpid in (x.a.dpid, x.b.dpid)}


def used_ports(net: MemNet, dpid: int) -> set[int]:
    """Ports that any group of a switch sends to."""
    return {
        getattr(action, "port", 0) for g in net.tables(dpid).groups.values() for bucket in g.buckets for action in bucket.actions
    }


def test_a_drained_spine_carries_nothing_and_comes_back() -> None:
    net = fabric()
    before = {d: net.tables(d) for d in net.switches}
    answer = ask(net, "drain", "s1", reason="fan")
    assert answer.ok and answer.data["complete"], answer
    assert states(net, SPINE1) == {LinkState.DRAINED}
    assert UPLINK1 not in used_ports(net, LEAF1) and UPLINK2 in used_ports(net, LEAF1)
    assert net.ping_all(0.5) == []
    assert wanted_and_there_agree(net)
    assert net.engine.view().ready
    (drain, name), *_ = net.engine.view().drains
    assert (name, drain.who, drain.reason) == ("s1", "op", "fan") and drain.since_wall_s > 1e9
    assert ask(net, "undrain", "s1").ok
    net.settle()
    assert states(net, SPINE1) == {LinkState.UP}
    assert net.engine.view().drains == ()
    after = {d: net.tables(d) for d in net.switches}
    assert {d: dict(t.flows) for d, t in after.items()} == {d: dict(t.flows) for d, t in before.items()}
    assert {d: dict(t.groups) for d, t in after.items()} == {d: dict(t.groups) for d, t in before.items()}


def test_a_port_of_a_cable_is_the_cable_from_either_end() -> None:
    net = fabric()
    assert ask(net, "drain", f"l1:{UPLINK1}").ok
    assert [x.state for x in net.engine.view().fabric.links if PortRef(LEAF1, UPLINK1) in x.ends] == [LinkState.DRAINED]
    assert states(net, SPINE1) == {LinkState.DRAINED, LinkState.UP}
    again = ask(net, "drain", "s1:1")
    assert again.ok and again.data["changed"] is False and "already, by op" in again.text
    assert ask(net, "undrain", "s1:1").data["changed"] is True
    assert ask(net, "undrain", "s1:1").data["changed"] is False


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("sp1", "no switch is called 'sp1'; did you mean s1"),
        ("l1:11", "l1 has no port '11'; did you mean"),
        ("l9:1", "no switch is called 'l9'; did you mean"),
        ("", "no switch is called ''"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_does(target: str, says: str) -> None:
    net = fabric()
    answer = ask(net, "drain", target)
    assert not answer.ok and says in answer.text
    assert net.engine.view().drains == ()


def test_who_would_be_cut_off_is_named_and_force_insists() -> None:
    net = fabric()
    answer = ask(net, "drain", "l1")
    assert not answer.ok
    assert "10.0.1.1, 10.0.1.2 on l1 would be cut off from l2, l3" in answer.text and "--force" in answer.text
    net.port_down(LEAF1, UPLINK2)
    net.settle()
    other = ask(net, "drain", "s1")  # another failure exists already
    assert not other.ok and "l1 would be cut off from" in other.text
    forced = ask(net, "drain", "s1", force=True)
    assert forced.ok and "forced" in forced.text
    assert not net.ping("h1", "h3")
    assert ask(net, "undrain", "s1").ok
    net.settle()
    assert net.ping_all(0.5) == []


def test_the_capacity_floor() -> None:
    net = fabric(leaf_spine(2, 4, 1))
    assert ask(net, "drain", "s1").ok
    assert ask(net, "drain", "s2").ok
    refused = ask(net, "drain", "s3")
    assert not refused.ok and "l1 would keep 25% of its uplink capacity (floor 50%)" in refused.text
    assert ask(net, "drain", "s3", force=True).ok
    assert net.ping_all(0.5) == []


def test_a_host_port_with_hosts_that_live_nowhere_else() -> None:
    net = fabric()
    answer = ask(net, "drain", "l1:1")
    assert not answer.ok and "10.0.1.1 can be reached nowhere else" in answer.text
    assert ask(net, "drain", "l1:1", force=True).ok
    assert net.engine.view().fabric.switches[LEAF1].ports[1].drained


def test_a_drain_survives_a_kill_and_the_switch_being_away() -> None:
    net = fabric()
    ask(net, "drain", "s1", reason="fan")
    messages = net.engine.view().counters
    net.restart_engine(engine())
    net.settle()
    assert states(net, SPINE1) == {LinkState.DRAINED}
    assert not [k for k in net.engine.view().counters if k.endswith("_mods_sent")], messages
    assert net.engine.view().drains[0][0].reason == "fan"
    net.kill_switch(SPINE2, carrier_lost=True)
    net.kill_switch(SPINE1, carrier_lost=True)
    net.advance(2.0)
    assert ask(net, "undrain", "s1").ok  # while it is away
    assert ask(net, "drain", "s2", force=True).ok
    net.start_switch(SPINE1)
    net.start_switch(SPINE2)
    net.advance(40.0)
    net.settle()
    assert (states(net, SPINE1), states(net, SPINE2)) == ({LinkState.UP}, {LinkState.DRAINED})
    assert net.ping_all(0.5) == []


def test_a_drained_link_that_fails_and_returns_stays_drained_without_hold_or_alarm() -> None:
    net = fabric()
    ask(net, "drain", f"l1:{UPLINK1}")
    since = net.now
    for _ in range(4):
        net.port_down(LEAF1, UPLINK1)
        net.advance(0.5)
        net.port_up(LEAF1, UPLINK1)
        net.advance(3.0)
    assert [x.state for x in net.engine.view().fabric.links if PortRef(LEAF1, UPLINK1) in x.ends] == [LinkState.DRAINED]
    assert "link_held" not in kinds(net, since)
    assert [e for at, e in net.journal if at >= since and e.severity != "info"] == []
    assert any(PortRef(LEAF1, UPLINK1) in key for key in net.bfd.wanted)  # watched as ever


def test_drain_and_undrain_at_once_end_as_asked_last() -> None:
    net = fabric()
    for verb in ("drain", "undrain", "drain", "undrain", "drain"):
        net.ask(verb, "s1")
        net.advance(0.001)
    net.settle()
    assert states(net, SPINE1) == {LinkState.DRAINED}
    net.ask("undrain", "s1")
    net.settle()
    assert states(net, SPINE1) == {LinkState.UP}
