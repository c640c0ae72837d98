"""why and paths: the rules, reasons and choices of compiled fabrics, and one sentence when a packet stops."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.model.fabric import Fabric, LinkState, Reach
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Desired, Flow, Match, Tables
from aifabric_ctrl.northbound import explain
from tests.unit.view_builder import SPINE_BASE, fabric, view

HEALTHY = view()
A, B = "10.0.1.1", "10.0.4.2"


def test_each_switch_each_rule_and_its_reason() -> None:
    answer = explain.why(HEALTHY, A, B)
    assert answer["verdict"] == "10.0.1.1 reaches 10.0.4.2 by 2 ways"
    assert answer["back"] == {"delivered": True, "verdict": "10.0.4.2 reaches 10.0.1.1 by 2 ways"}
    assert [h["switch"] for h in answer["hops"]] == ["leaf1", "spine1", "spine2", "leaf4", "leaf4"]
    choices = answer["hops"][0]["choices"]
    assert [c["share"] for c in choices] == [0.5, 0.5]
    assert {c["outputs"][0]["name"] for c in choices} == {"leaf1-up1", "leaf1-up2"}
    steps = choices[0]["tables"]
    assert [s["name"] for s in steps] == ["PORT", "CLASS", "DEST", "POLICY", "ROUTE", "SPREAD"]
    assert all(s["why"]["reason"] and s["why"]["owner"] for h in answer["hops"] for c in h["choices"] for s in c["tables"])
    assert steps[-1]["groups"][0]["type"] == "select"
    assert explain.HASH_NOTE in answer["notes"]


def test_udp_to_the_roce_port_takes_one_shard() -> None:
    ports = set()
    for source_port in range(50_000, 50_016):
        answer = explain.why(HEALTHY, A, B, "udp", source_port, 4791)
        assert len(answer["hops"][0]["choices"]) == 1
        ports.add(answer["hops"][0]["choices"][0]["outputs"][0]["name"])
    assert ports == {"leaf1-up1", "leaf1-up2"}


def test_hosts_by_mac_and_by_port() -> None:
    by_mac = explain.why(HEALTHY, "02:00:00:00:01:01", "02-00-00-00-04-02")
    by_port = explain.why(HEALTHY, "leaf1:1", "leaf4:leaf4-eth2")
    by_dpid = explain.why(HEALTHY, "0000000000000001:leaf1-eth1", "00:00:00:00:00:00:00:04:2")
    assert by_mac["packet"] == by_port["packet"] == by_dpid["packet"] == "icmp echo 10.0.1.1 -> 10.0.4.2"


def test_an_address_nobody_has_goes_to_the_controller() -> None:
    answer = explain.why(HEALTHY, A, "10.0.9.9")
    assert answer["verdict"] == (
        "10.0.1.1 does not reach 10.0.9.9: leaf1 hands it to the controller (table 20 DEST): "
        "no host is known to have that address; the controller asks for it on the host ports"
    )
    assert answer["back"] is None
    assert answer["delivered"] is False


def test_the_fabrics_own_address_answers() -> None:
    gateway = ip_address("10.0.1.254")
    answer = explain.why(view(intent=Intent(gateways=(gateway,))), A, str(gateway))
    assert answer["verdict"] == "10.0.1.254 is the fabric's own address and answers 10.0.1.1"


def test_a_way_that_the_compiler_gave_up_is_said_with_its_reason() -> None:
    answer = explain.why(view(fabric(down=((1, 1), (1, 2)))), A, B)
    assert answer["delivered"] is False
    assert answer["verdict"].startswith("10.0.1.1 does not reach 10.0.4.2: leaf1 drops it: table 40")


def test_switches_repair_before_the_controller_does() -> None:
    """Tables of the healthy fabric, one spine's link to the target down: half the flows bounce and still arrive."""
    answer = explain.paths(view(fabric(down=((4, 2),)), desired=HEALTHY.desired), A, B)
    assert answer["delivered"] is True
    assert answer["text"] == (
        "1 of 2 shortest ways in use, and 1 detour (switches repair a failure until the controller has); "
        "not in use: leaf1 > spine2 > leaf4 (spine2 to leaf4 is down)"
    )
    assert [p["text"] for p in answer["paths"]] == ["leaf1 > spine1 > leaf4", "leaf1 > spine2 > leaf1 > spine1 > leaf4"]


def test_paths_of_a_healthy_fabric_are_the_graphs() -> None:
    answer = explain.paths(HEALTHY, A, B)
    assert (
        [p["text"] for p in answer["paths"]] == answer["graph"]["paths"] == ["leaf1 > spine1 > leaf4", "leaf1 > spine2 > leaf4"]
    )
    assert [p["share"] for p in answer["paths"]] == [0.5, 0.5]
    assert answer["text"] == "2 of 2 shortest ways in use"
    assert answer["paths"][0]["hops"][0]["out_port_name"] == "leaf1-up1"
    assert [p["text"] for p in explain.paths(HEALTHY, A, "10.0.1.2")["paths"]] == ["leaf1"]


def test_a_shortest_way_that_is_not_used_is_named() -> None:
    made = fabric()
    held = replace(made, links=(replace(made.links[0], state=LinkState.HELD), *made.links[1:]))
    tables = view(held).desired
    text = "1 of 2 shortest ways in use; not in use: leaf1 > spine1 > leaf4"
    answer = explain.paths(view(held, desired=tables), A, B)
    assert answer["graph"]["unused"] == [{"path": "leaf1 > spine1 > leaf4", "why": "leaf1 to spine1 is held"}]
    assert answer["text"] == f"{text} (leaf1 to spine1 is held)"
    late = explain.paths(view(made, desired=tables), A, B)  # the link is up again, the rules are not there yet
    assert late["text"] == f"{text} (the rules do not use it)"


def test_shares_follow_the_slots() -> None:
    answer = explain.paths(view(fabric(2, 3)), "10.0.1.1", "10.0.2.1")
    assert sum(p["share"] for p in answer["paths"]) == pytest.approx(1.0, abs=0.001)
    assert all(0.25 < p["share"] < 0.40 for p in answer["paths"])


def test_a_port_that_died_under_the_rules_is_where_it_stops() -> None:
    made = fabric()
    leaf = made.switches[4]
    dead = replace(leaf, ports={**leaf.ports, 2: replace(leaf.ports[2], link_down=True)})
    answer = explain.why(view(replace(made, switches={**made.switches, 4: dead}), desired=HEALTHY.desired), A, B)
    assert answer["verdict"] == "10.0.1.1 does not reach 10.0.4.2: leaf4 port 2 (leaf4-eth2) is down, so it is lost there"


def test_a_silent_far_end_is_where_it_stops() -> None:
    made = fabric(2, 1)
    leaf = made.switches[2]
    dead = replace(leaf, ports={**leaf.ports, 101: replace(leaf.ports[101], live=False)})
    healthy = view(made)
    answer = explain.why(view(replace(made, switches={**made.switches, 2: dead}), desired=healthy.desired), A, "10.0.2.1")
    assert "the other end of spine1 port 2 (spine1-eth2) (leaf2 port 101 (leaf2-up1)) is down" in answer["verdict"]


def test_notes_say_what_may_differ() -> None:
    made = fabric()
    host = replace(made.hosts[ip_address(B)], reach=Reach.ROUTED)
    gone = replace(made.switches[SPINE_BASE + 1], connected=False)
    changed = replace(made, hosts={**made.hosts, host.ip: host}, switches={**made.switches, gone.dpid: gone})
    notes = explain.why(view(changed, desired=HEALTHY.desired), A, B)["notes"]
    assert "10.0.4.2 is still being spread through the fabric (now routed)" in notes
    assert "spine1 is not connected: it keeps forwarding by the rules it has, which may differ from these" in notes


def test_tables_that_contradict_themselves_are_an_answer() -> None:
    twins = [Flow(0, 7, Match.of(in_port=1), goto=10), Flow(0, 7, Match.of(eth_type=0x800), goto=10)]
    answer = explain.why(view(desired=Desired({1: Tables({f.key: f for f in twins})})), A, B)
    assert "the tables of leaf1 contradict themselves: table 0 priority 7" in answer["verdict"]


def test_nothing_compiled_is_an_answer() -> None:
    assert "nothing is compiled for leaf1" in explain.why(view(desired=Desired({})), A, B)["verdict"]
    assert "table 0: no rule matches" in explain.why(view(desired=Desired({1: Tables()})), A, B)["verdict"]


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        ("10.0.1.11", B, "no host is known to have 10.0.1.11; name a host of 'aifabric hosts' as the sender"),
        ("leaf9:1", B, "no switch is called 'leaf9'; did you mean leaf4?"),
        ("leaf1:9", B, "leaf1 has no port '9'; see 'aifabric topology'"),
        ("leaf1:leaf1-eth9", B, "leaf1 has no port 'leaf1-eth9'; did you mean leaf1-eth2?"),
        ("leaf1:101", B, "no host is known at leaf1 port 101 (leaf1-up1); name a port with a host; see 'aifabric hosts'"),
        ("02:00:00:00:01:09", B, "no host has MAC address 02:00:00:00:01:09; did you mean 02:00:00:00:01:02?"),
        ("10.0.1.", B, "'10.0.1.' is not the name of a host; did you mean 10.0.1.2?"),
        (A, "2001:db8::1", "10.0.1.1 has no IPv6 address; name addresses of one version"),
        (A, "", "'' is not a name; use an address, a MAC address or switch:port"),
        (A, "x" * 400, None),
        (A, "a\x1b[31m", None),
    ],
)
def test_names_that_are_not_known(source: str, destination: str, message: str | None) -> None:
    with pytest.raises(InvalidValue) as caught:
        explain.why(HEALTHY, source, destination)
    assert message is None or str(caught.value) == message
    assert str(caught.value).isprintable()


def test_questions_that_make_no_sense() -> None:
    for arguments in (("gre",), ("icmp", 5), ("tcp", 70_000), ("udp", 1, -1)):
        with pytest.raises(InvalidValue):
            explain.why(HEALTHY, A, B, *arguments)
    with pytest.raises(InvalidValue, match=r"no host is known to have 10\.0\.9\.9"):
        explain.paths(HEALTHY, A, "10.0.9.9")


def test_others_run_between_switches() -> None:
    paused = []
    explain.why(HEALTHY, A, B, pause=lambda: paused.append(1))
    assert len(paused) >= 5


names = st.sampled_from(
    [A, B, "leaf1:1", "spine1:1", "02:00:00:00:01:01", "10.0.9.9", "0.0.0.0", "255.255.255.255", "::1"]
) | st.text(max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    names, names, st.sampled_from(["icmp", "tcp", "udp", "x"]), st.none() | st.integers(-1, 70_000), st.sampled_from([0, 1, 2])
)
def test_odd_questions_are_answered_or_refused(
    source: str, destination: str, protocol: str, number: int | None, which: int
) -> None:
    of = (HEALTHY, view(desired=Desired({})), view(Fabric(), desired=HEALTHY.desired))[which]
    for ask in (lambda: explain.why(of, source, destination, protocol, number), lambda: explain.paths(of, source, destination)):
        try:
            json.dumps(ask(), allow_nan=False)
        except InvalidValue as error:
            assert "\n" not in str(error)


links = st.sets(st.tuples(st.integers(1, 3), st.integers(1, 2)))


@settings(max_examples=40, deadline=None)
@given(links, links)
def test_any_failures_under_any_tables_give_an_answer(compiled_for: set[tuple[int, int]], now: set[tuple[int, int]]) -> None:
    """Rules of one state of the fabric, ports of another, as in the moment after a failure."""
    of = view(fabric(3, 2, 1, tuple(now)), desired=view(fabric(3, 2, 1, tuple(compiled_for))).desired)
    answer = explain.why(of, "10.0.1.1", "10.0.3.1")
    assert answer["delivered"] == ("does not reach" not in answer["verdict"] and "only" not in answer["verdict"])
    assert sum(p["share"] for p in explain.paths(of, "10.0.1.1", "10.0.3.1")["paths"]) == pytest.approx(1.0, abs=0.01)
