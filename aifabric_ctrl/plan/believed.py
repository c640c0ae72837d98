"""What we believe is on a switch: as read back, then as changed by us and confirmed or refused by it.

A change is believed the moment it is sent (PENDING) so that the next difference builds on it; the switch's barrier makes
it INSTALLED and its error FAILED.  A FAILED object is left alone until its retry is due or something else is wanted
in its place (DESIGN invariant 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from aifabric_ctrl.model.backoff import backoff_s
from aifabric_ctrl.model.rules import Flow, FlowKey, Group, Meter, Tables

ObjectKey = tuple[str, FlowKey | int]

# A refusal is usually permanent (a table is full, a field is not supported), sometimes a race; retry soon, then rarely.
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0


def key_of(item: Flow | Group | Meter) -> ObjectKey:
    """The identity of an object on its switch."""
    if isinstance(item, Flow):
        return ("flow", item.key)
    if isinstance(item, Group):
        return ("group", item.group_id)
    return ("meter", item.meter_id)


@dataclass(slots=True)
class Failure:
    """An object the switch refused."""

    item: Flow | Group | Meter
    error: str
    retries: int
    retry_at_s: float


@dataclass
class Believed:
    """Mutable record of one switch's tables of ours; owned by the engine, changed only through these methods."""

    flows: dict[FlowKey, Flow] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    meters: dict[int, Meter] = field(default_factory=dict)
    failed: dict[ObjectKey, Failure] = field(default_factory=dict)

    @classmethod
    def from_read(cls, flows: Iterable[Flow], groups: Iterable[Group], meters: Iterable[Meter]) -> Believed:
        """Start from a read-back."""
        return cls(
            {f.key: f for f in flows},
            {g.group_id: g for g in groups},
            {m.meter_id: m for m in meters},
        )

    def there(self, item: Flow | Group | Meter) -> Flow | Group | Meter | None:
        """What is believed at the place of this object."""
        if isinstance(item, Flow):
            return self.flows.get(item.key)
        return self.groups.get(item.group_id) if isinstance(item, Group) else self.meters.get(item.meter_id)

    def put(self, item: Flow | Group | Meter) -> None:
        """Assume the object is there from now on; an earlier failure of it waits for the switch's answer."""
        failure = self.failed.get(key_of(item))
        if failure is not None:
            failure.retry_at_s = math.inf
        if isinstance(item, Flow):
            self.flows[item.key] = item
        elif isinstance(item, Group):
            self.groups[item.group_id] = item
        else:
            self.meters[item.meter_id] = item

    def remove(self, item: Flow | Group | Meter) -> None:
        """Assume the object is gone from now on; unknown objects are no error."""
        if isinstance(item, Flow):
            self.flows.pop(item.key, None)
        elif isinstance(item, Group):
            self.groups.pop(item.group_id, None)
        else:
            self.meters.pop(item.meter_id, None)

    def refuse(self, item: Flow | Group | Meter, error: str, now: float, before: Flow | Group | Meter | None = None) -> Failure:
        """The switch said no: what was there ``before`` still is, and the object is retried later with growing pauses."""
        self.remove(item)
        if before is not None:
            self.put(before)
        key = key_of(item)
        old = self.failed.get(key)
        retries = old.retries + 1 if old is not None and old.item == item else 0
        failure = Failure(item, error, retries, now + backoff_s(RETRY_FIRST_S, retries, RETRY_MAX_S))
        self.failed[key] = failure
        return failure

    def accepted(self, item: Flow | Group | Meter) -> None:
        """A barrier covered this put: an earlier failure of the same object is over."""
        self.failed.pop(key_of(item), None)

    def waiting(self, item: Flow | Group | Meter, now: float) -> bool:
        """True when this very object was refused and its retry is not due."""
        failure = self.failed.get(key_of(item))
        return failure is not None and failure.item == item and now < failure.retry_at_s

    def forget_failures(self, wanted: Tables) -> None:
        """What is not wanted any more, or wanted otherwise, is no failure any more."""
        if not self.failed:
            return
        desired = Believed(dict(wanted.flows), dict(wanted.groups), dict(wanted.meters))
        self.failed = {key: f for key, f in self.failed.items() if desired.there(f.item) == f.item}

    def next_retry_s(self) -> float | None:
        """When the earliest retry is due (monotonic s); None while there is none or its answer is awaited."""
        return min((f.retry_at_s for f in self.failed.values() if f.retry_at_s < math.inf), default=None)
