"""The rules every switch holds at all times, before anything about it is known: LLDP to the controller, counted drops."""

from __future__ import annotations

from aifabric_ctrl.compile import meters
from aifabric_ctrl.compile.section import Section, merge
from aifabric_ctrl.compile.tables import PORT, TABLES, WHOLE_PACKET, Priority
from aifabric_ctrl.model.fabric import Switch
from aifabric_ctrl.model.fields import ETH_LLDP
from aifabric_ctrl.model.ids import PORT_CONTROLLER
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Match, Output, Tables, Why

TO_CONTROLLER = (Output(PORT_CONTROLLER, WHOLE_PACKET),)


def base_section(metered: bool, intent: Intent) -> Section:
    """The base of a switch that has (or has not) room for meters."""
    section = Section()
    meter = meters.LLDP if metered else None
    if meter is not None:
        section.meters[meter] = meters.lldp_meter(intent)
    section.add(
        PORT,
        Priority.PORT_LLDP,
        Match.of(eth_type=ETH_LLDP),
        Why("lldp/any", "discovery: LLDP from any port goes to the controller, metered"),
        meter=meter,
        actions=TO_CONTROLLER,
    )
    for spec in TABLES:
        section.add(
            spec.number,
            Priority.DEFAULT,
            Match(),
            Why(f"table/{spec.name}/default", f"whatever no rule of table {spec.name} allows is dropped and counted"),
        )
    return section


def base_tables(switch: Switch, intent: Intent) -> Tables:
    """What may be installed on a switch before the fabric is known; a subset of what ``compile_fabric`` gives for it."""
    return merge([base_section(meters.available(switch.features), intent)])
