"""The executor against what Open vSwitch does with the same rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.ids import PORT_CONTROLLER, PORT_IN_PORT, PORT_TABLE
from aifabric_ctrl.model.rules import (
    ALL,
    FAST_FAILOVER,
    INDIRECT,
    SELECT,
    Action,
    Bucket,
    DecTtl,
    Flow,
    Group,
    Match,
    Move,
    Output,
    SetField,
    SetQueue,
    Tables,
    ToGroup,
    flow_table,
)
from aifabric_ctrl.verify.executor import Packet, arp_request, icmp4_echo, run, run_actions, udp4
from aifabric_ctrl.verify.lookup import Index, index_of, matches, reference_lookup
from aifabric_ctrl.verify.packet import FRAG_LATER

PACKET = udp4(0x020000000001, 0x02FA00000001, 0x0A000101, 0x0A000301, 49152, 4791)


def up(port: int) -> bool:
    return True


def tables(*flows: Flow, groups: tuple[Group, ...] = ()) -> Tables:
    return Tables(flow_table(flows), {g.group_id: g for g in groups})


def always(*actions: Action, **rest: object) -> Flow:
    return Flow(0, 1, Match.of(), actions=actions, **rest)  # type: ignore[arg-type]


def ports(outcomes: list) -> list[list[int]]:
    return [[s.port for s in o.outputs] for o in outcomes]


def only(switch: Tables, packet: Packet = PACKET, in_port: int = 1, live=up):
    (outcome,) = run(switch, packet, in_port, live)
    return outcome


class TestLookup:
    def test_highest_priority_wins(self) -> None:
        switch = tables(
            Flow(0, 10, Match.of(), actions=(Output(2),)),
            Flow(0, 20, Match.of(eth_type=0x800, ipv4_dst=(0x0A000000, 0xFF000000)), actions=(Output(3),)),
            Flow(0, 30, Match.of(eth_type=0x800, ipv4_dst=0x0B000000), actions=(Output(4),)),
        )
        assert ports(run(switch, PACKET, 1, up)) == [[3]]

    def test_two_entries_of_equal_priority_are_our_bug(self) -> None:
        switch = tables(
            Flow(0, 10, Match.of(eth_type=0x800), actions=(Output(2),)),
            Flow(0, 10, Match.of(in_port=1), actions=(Output(3),)),
        )
        with pytest.raises(ContractError, match="matches both"):
            run(switch, PACKET, 1, up)
        assert ports(run(switch, PACKET, 4, up)) == [[2]]

    def test_an_ambiguity_below_the_winner_does_no_harm(self) -> None:
        switch = tables(
            Flow(0, 10, Match.of(eth_type=0x800), actions=(Output(2),)),
            Flow(0, 10, Match.of(in_port=1), actions=(Output(3),)),
            Flow(0, 11, Match.of(eth_src=PACKET["eth_src"]), actions=(Output(4),)),
        )
        assert ports(run(switch, PACKET, 1, up)) == [[4]]

    def test_table_miss_drops(self) -> None:
        outcome = only(tables(Flow(0, 1, Match.of(eth_type=0x806), actions=(Output(2),))))
        assert outcome.outputs == () and outcome.dropped_at == "table 0: no rule matches"

    def test_absent_fields_do_not_match(self) -> None:
        assert not matches(Match.of(eth_type=0x800, ip_proto=6, tcp_dst=(0, 1)), PACKET)
        assert matches(Match.of(eth_type=0x800, ip_proto=17, udp_src=(0, 1)), PACKET)

    def test_later_fragments_show_port_zero(self) -> None:
        later = udp4(1 << 41, 2, 3, 4, 1001, 4791, frag=FRAG_LATER)
        assert not matches(Match.of(eth_type=0x800, ip_proto=17, udp_dst=4791), later)
        assert matches(Match.of(eth_type=0x800, nw_frag=(2, 2)), later)

    def test_no_fragment_shows_its_ports(self) -> None:
        switch = tables(
            Flow(0, 20, Match.of(eth_type=0x800, ip_proto=17, udp_dst=4791), actions=(Output(2),)),
            Flow(0, 10, Match.of(eth_type=0x800, ip_proto=17, udp_dst=0), actions=(Output(3),)),
        )
        assert ports(run(switch, PACKET, 1, up)) == [[2]]
        first = PACKET.with_fields(nw_frag=1)
        (outcome,) = run(switch, first, 1, up)
        assert [(s.port, s.packet["udp_dst"]) for s in outcome.outputs] == [(3, 4791)]

    def test_untagged_is_vlan_zero(self) -> None:
        assert matches(Match.of(vlan_vid=0), PACKET)
        assert not matches(Match.of(vlan_vid=(0x1000, 0x1000)), PACKET)

    @given(data=st.data())
    def test_index_agrees_with_scan(self, data: st.DataObject) -> None:
        small = st.integers(0, 3)
        field = st.one_of(
            st.tuples(st.just("in_port"), small),
            st.tuples(st.just("metadata"), st.sampled_from([(0, 1), (1, 1), (2, 2), (0, 3), 3])),
            st.tuples(st.just("eth_dst"), st.sampled_from([0, 1, (0, 1), (1 << 40, 1 << 40)])),
            st.tuples(st.just("ipv4_dst"), st.sampled_from([0, 1, 2, (0, 1), (2, 2), (0, 0xFFFFFFFE)])),
            st.tuples(st.just("udp_src"), st.sampled_from([0, 1, (0, 1), (1, 1), (2, 3)])),
        )

        def match(chosen: dict) -> Match:
            if "udp_src" in chosen:
                chosen = {"eth_type": 0x800, "ip_proto": 17, **chosen}
            if "ipv4_dst" in chosen:
                chosen = {"eth_type": 0x800, **chosen}
            return Match.of(**chosen)

        entries = st.lists(
            st.builds(Flow, st.integers(0, 1), st.integers(0, 4), st.lists(field, max_size=3).map(dict).map(match)), max_size=12
        )
        flows = list({f.key: f for f in data.draw(entries)}.values())
        index = Index(flows)
        for _ in range(5):
            state = {"in_port": data.draw(small), "metadata": data.draw(small), "eth_dst": data.draw(small)}
            if data.draw(st.booleans()):
                state |= {"eth_type": 0x800, "ipv4_dst": data.draw(small)}
                if data.draw(st.booleans()):
                    state |= {"ip_proto": 17, "udp_src": data.draw(small)}
            for table in (0, 1):
                try:
                    expected: object = reference_lookup(flows, table, state)
                except ContractError:
                    with pytest.raises(ContractError):
                        index.lookup(table, state)
                else:
                    assert index.lookup(table, state) is expected

    def test_index_is_made_once_and_forgotten(self) -> None:
        switch = tables(always(Output(2)))
        assert index_of(switch) is index_of(switch)
        assert index_of(tables(always(Output(3)))) is not index_of(switch)


class TestInstructions:
    def test_metadata_keeps_bits_outside_the_mask(self) -> None:
        switch = tables(
            Flow(0, 1, Match.of(), metadata=(0x00FF, 0x00FF), goto=1),
            Flow(1, 1, Match.of(), metadata=(0x0F00, 0xFF00), goto=2),
            Flow(2, 1, Match.of(metadata=0x0FFF), actions=(Output(9),)),
        )
        outcome = only(switch)
        assert [s.port for s in outcome.outputs] == [9]
        assert [s.table for s in outcome.trace] == [0, 1, 2]

    def test_goto_only_forward(self) -> None:
        with pytest.raises(ContractError, match="goes back"):
            run(tables(Flow(0, 1, Match.of(), goto=0)), PACKET, 1, up)

    def test_meters_are_recorded(self) -> None:
        assert only(tables(always(Output(2), meter=7))).meters == (7,)

    def test_actions_act_in_order_before_goto(self) -> None:
        switch = tables(
            always(Output(2), SetField("ip_dscp", 26), SetQueue(3), Output(4), goto=1),
            Flow(1, 1, Match.of(eth_type=0x800, ip_dscp=26), actions=(Output(5),)),
        )
        sent = only(switch).outputs
        assert [(s.port, s.packet["ip_dscp"], s.queue) for s in sent] == [(2, 0, None), (4, 26, 3), (5, 26, 3)]

    def test_start_table(self) -> None:
        switch = tables(Flow(0, 1, Match.of()), Flow(40, 1, Match.of(), actions=(Output(2),)))
        assert ports(run(switch, PACKET, 1, up, start_table=40)) == [[2]]


class TestActions:
    def test_dec_ttl_ends_everything_behind_it(self) -> None:
        switch = tables(always(Output(2), DecTtl(), Output(3), goto=1), Flow(1, 1, Match.of(), actions=(Output(4),)))
        assert ports(run(switch, PACKET, 1, up)) == [[2, 3, 4]]
        assert ports(run(switch, PACKET.with_fields(nw_ttl=1), 1, up)) == [[2]]

    def test_repeated_dec_ttl_counts_every_time(self) -> None:
        switch = tables(always(*[DecTtl()] * 20, Output(2)))
        assert only(switch).outputs[0].packet["nw_ttl"] == 44
        assert only(switch, PACKET.with_fields(nw_ttl=20)).dropped_at == "table 0: TTL ran out"
        assert only(switch, PACKET.with_fields(nw_ttl=21)).outputs[0].packet["nw_ttl"] == 1

    def test_dec_ttl_leaves_arp_alone(self) -> None:
        assert ports(run(tables(always(DecTtl(), Output(2))), arp_request(2, 3, 4), 1, up)) == [[2]]

    def test_output_to_the_in_port_is_lost_but_in_port_goes_back(self) -> None:
        assert only(tables(always(Output(1)))).dropped_at == "table 0: output to the in-port 1"
        assert ports(run(tables(always(Output(PORT_IN_PORT))), PACKET, 1, up)) == [[1]]

    def test_controller(self) -> None:
        outcome = only(tables(always(Output(PORT_CONTROLLER, 0xFFFF), cookie=5)))
        assert outcome.to_controller and outcome.dropped_at == ""
        assert outcome.controller[0].cookie == 5 and not outcome.controller[0].miss
        assert only(tables(Flow(0, 0, Match.of(), actions=(Output(PORT_CONTROLLER),)))).controller[0].miss

    def test_gateway_answers_arp_with_moves(self) -> None:
        gateway = 0x02FA00000001
        switch = tables(
            Flow(
                0,
                1,
                Match.of(eth_type=0x806, arp_op=1),
                actions=(
                    Move("eth_src", "eth_dst", 48),
                    SetField("eth_src", gateway),
                    SetField("arp_op", 2),
                    Move("arp_sha", "arp_tha", 48),
                    Move("arp_spa", "reg0", 32),
                    Move("arp_tpa", "arp_spa", 32),
                    Move("reg0", "arp_tpa", 32),
                    SetField("arp_sha", gateway),
                    Output(PORT_IN_PORT),
                ),
            )
        )
        sent = only(switch, arp_request(0x02AA, 0x0A000001, 0x0A000002)).outputs[0]
        assert sent.port == 1
        fields = {n: sent.packet[n] for n in ("eth_dst", "eth_src", "arp_op", "arp_sha", "arp_spa", "arp_tha", "arp_tpa")}
        assert fields == {
            "eth_dst": 0x02AA,
            "eth_src": gateway,
            "arp_op": 2,
            "arp_sha": gateway,
            "arp_spa": 0x0A000002,
            "arp_tha": 0x02AA,
            "arp_tpa": 0x0A000001,
        }

    def test_partial_move(self) -> None:
        switch = tables(
            always(Move("ipv4_src", "reg1", 8, 0, 24), goto=1), Flow(1, 1, Match.of(reg1=0x01000000), actions=(Output(2),))
        )
        assert ports(run(switch, PACKET, 1, up)) == [[2]]

    def test_fields_the_packet_lacks_are_our_bug(self) -> None:
        with pytest.raises(ContractError, match="tcp_dst"):
            run(tables(always(SetField("tcp_dst", 1))), PACKET, 1, up)
        with pytest.raises(ContractError, match="arp_spa"):
            run(tables(always(Move("arp_spa", "reg0", 32))), PACKET, 1, up)

    def test_packet_out_through_the_pipeline(self) -> None:
        switch = tables(always(SetField("ip_dscp", 1), Output(2)))
        (outcome,) = run_actions(switch, (Output(3), Output(PORT_TABLE), Output(4)), PACKET, PORT_CONTROLLER, up)
        assert [(s.port, s.packet["ip_dscp"]) for s in outcome.outputs] == [(3, 0), (2, 1), (4, 0)]


def select(*buckets: Bucket, group_id: int = 1) -> Group:
    return Group(group_id, SELECT, buckets)


def to(port: int, weight: int = 1, **watch: int) -> Bucket:
    return Bucket((Output(port),), weight, **(watch or {"watch_port": port}))


class TestGroups:
    def test_every_live_bucket_is_a_choice(self) -> None:
        switch = tables(always(ToGroup(1)), groups=(select(to(11), to(12), to(13)),))
        assert ports(run(switch, PACKET, 1, lambda p: p != 12)) == [[11], [13]]

    def test_slots_of_equal_action_count_once(self) -> None:
        switch = tables(always(ToGroup(1)), groups=(select(*[to(11), to(12)] * 8),))
        assert ports(run(switch, PACKET, 1, up)) == [[11], [12]]

    def test_choices_multiply(self) -> None:
        group = select(to(11), to(12))
        switch = tables(always(ToGroup(1), goto=1), Flow(1, 1, Match.of(), actions=(ToGroup(1),)), groups=(group,))
        assert ports(run(switch, PACKET, 1, up)) == [[11, 11], [11, 12], [12, 11], [12, 12]]

    def test_choose_sees_live_buckets_only(self) -> None:
        switch = tables(always(ToGroup(1)), groups=(select(to(11), to(12), to(13)),))
        seen = []

        def choose(group: Group, buckets) -> int:
            seen.append([b.watch_port for b in buckets])
            return 1

        (outcome,) = run(switch, PACKET, 1, lambda p: p != 11, choose)
        assert seen == [[12, 13]] and [s.port for s in outcome.outputs] == [13]
        choice = outcome.trace[0].groups[0]
        assert choice.number == 2 and choice.bucket == to(13)

    def test_dead_group_drops(self) -> None:
        outcome = only(tables(always(ToGroup(1)), groups=(select(to(11)),)), live=lambda p: False)
        assert outcome.dropped_at == "group 0x1: no live bucket"
        assert outcome.trace[0].groups[0].bucket is None

    def test_fast_failover_takes_the_first_live(self) -> None:
        group = Group(1, FAST_FAILOVER, (to(11, 0), Bucket((Output(PORT_IN_PORT),), watch_group=99)))
        home = Group(99, INDIRECT, (Bucket((Output(PORT_IN_PORT),)),))
        switch = tables(always(ToGroup(1)), groups=(group, home))
        assert ports(run(switch, PACKET, 1, up)) == [[11]]
        assert ports(run(switch, PACKET, 1, lambda p: False)) == [[1]]

    def test_watch_group_is_recursive(self) -> None:
        inner = Group(2, FAST_FAILOVER, (to(12, 0), to(13, 0)))
        outer = Group(1, SELECT, (Bucket((ToGroup(2),), 1, watch_group=2), to(11)))
        switch = tables(always(ToGroup(1)), groups=(inner, outer))
        assert ports(run(switch, PACKET, 1, lambda p: p != 12)) == [[13], [11]]
        assert ports(run(switch, PACKET, 1, lambda p: p == 11)) == [[11]]

    def test_group_chain_is_in_the_trace(self) -> None:
        inner = Group(2, FAST_FAILOVER, (to(12, 0),))
        outer = Group(1, SELECT, (Bucket((ToGroup(2),), 1, watch_group=2),))
        outcome = only(tables(always(ToGroup(1)), groups=(inner, outer)))
        assert [(c.group.group_id, c.number) for c in outcome.trace[0].groups] == [(1, 0), (2, 0)]

    def test_changes_in_a_bucket_stay_there(self) -> None:
        group = Group(1, ALL, (Bucket((SetField("ip_dscp", 9), SetQueue(2), Output(2))), Bucket((Output(3),))))
        switch = tables(always(ToGroup(1), Output(4)), groups=(group,))
        sent = only(switch).outputs
        assert [(s.port, s.packet["ip_dscp"], s.queue) for s in sent] == [(2, 9, 2), (3, 0, None), (4, 0, None)]

    def test_a_bucket_is_an_action_set(self) -> None:
        bucket = Bucket((Output(2), SetField("ip_dscp", 1), DecTtl(), DecTtl(), Output(3)))
        (sent,) = only(tables(always(ToGroup(1)), groups=(Group(1, INDIRECT, (bucket,)),))).outputs
        assert sent.port == 3 and sent.packet["ip_dscp"] == 1 and sent.packet["nw_ttl"] == 63

    def test_circles_are_our_bug(self) -> None:
        circle = Group(1, SELECT, (Bucket((ToGroup(1),), 1, watch_group=1),))
        with pytest.raises(ContractError):
            run(tables(always(ToGroup(1)), groups=(circle,)), PACKET, 1, up)

    def test_unknown_group_drops(self) -> None:
        assert only(tables(always(ToGroup(5)))).dropped_at == "group 0x5 does not exist"


def test_packets_are_values() -> None:
    one, other = icmp4_echo(1, 2, 3, 4), icmp4_echo(1, 2, 3, 4)
    assert one == other and hash(one) == hash(other)
    assert one.with_fields(nw_ttl=3) != one and one["nw_ttl"] == 64
    with pytest.raises(ContractError):
        Packet({"reg0": 1})
    with pytest.raises(ContractError):
        Packet({"eth_type": 1 << 16})
