"""A compiler fault changes nothing on the switch concerned and nothing at all when it cannot be pinned to one."""

from __future__ import annotations

import pytest

from aifabric_ctrl.engine import engine as module
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.rules import Tables
from tests.unit.engine_lab import LEAF1, UPLINK1, all_tables, fabric, kinds, sent


def test_a_switch_whose_new_tables_break_the_contract_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    net = fabric()
    before = all_tables(net)
    uplinks = {key.match.exact("in_port") for key in before[LEAF1].flows}

    def refuse(tables: Tables, _: Tables | None = None) -> None:
        if {key.match.exact("in_port") for key in tables.flows} == uplinks:
            raise ContractError("a rule the table does not allow")

    monkeypatch.setattr(module, "verify_contract", refuse)
    net.port_down(LEAF1, UPLINK1)
    net.advance(1.0)
    after = all_tables(net)
    assert dict(after[LEAF1].flows) == dict(before[LEAF1].flows)
    assert any(dict(after[d].flows) != dict(before[d].flows) for d in after)
    assert "plan_refused" in kinds(net)
    assert net.ping_all() == []


def test_a_compile_that_fails_as_a_whole_sends_nothing_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    net = fabric()
    before, messages = all_tables(net), sent(net)
    compiled = module.compile_fabric

    def fail(*_: object) -> None:
        raise ContractError("two rules at one place")

    monkeypatch.setattr(module, "compile_fabric", fail)
    net.port_down(LEAF1, UPLINK1)
    net.advance(1.0)
    assert all_tables(net) == before and sent(net) == messages
    monkeypatch.setattr(module, "compile_fabric", compiled)
    net.port_up(LEAF1, UPLINK1)
    net.advance(5.0)
    net.settle()
    assert all_tables(net) == before
