"""The rows of the scenario, in the order they are run. Each measures with the other modules and judges itself."""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.fabric import Shape
from labkit.phases import controller, ecmp, failover, forwarding, spread
from labkit.report import Row
from labkit.session import Lab


@dataclass(frozen=True)
class Phase:
    """`shape` gives the fabric the phase needs from the one asked for."""

    name: str
    measure: Callable[[Lab], list[Row]]
    shape: Callable[[Shape], Shape] = lambda shape: shape


def _four_spines(shape: Shape) -> Shape:
    return Shape(shape.leaves, 4, shape.hosts)


def _twice_the_leaves(shape: Shape) -> Shape:
    return Shape(shape.leaves * 2, shape.spines, shape.hosts)


PHASES = (
    Phase("start", forwarding.start),
    Phase("quiet", forwarding.quiet),
    Phase("baseline", forwarding.baseline),
    Phase("uplink_down", failover.uplink_down),
    Phase("stable_flows", spread.stable_flows),
    Phase("spine_link_down", failover.spine_link_down),
    Phase("silent", failover.silent),
    Phase("restore", failover.restore),
    Phase("convergence", controller.convergence),
    Phase("leaf_dies", failover.leaf_dies),
    Phase("roce", spread.roce),
    Phase("controller_kill", controller.kill_and_restart),
    Phase("controller_dead", controller.dead_then_uplink_down),
    Phase("vswitchd", controller.vswitchd_restart),
    Phase("ecmp", ecmp.spread, _four_spines),
    Phase("spread4", spread.one_uplink_dead, _four_spines),
    Phase("stable_flows4", spread.stable_flows, _four_spines),
    Phase("roce4", spread.roce, _four_spines),
    Phase("route_entries", forwarding.route_entries, _twice_the_leaves),
)
