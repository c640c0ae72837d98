"""Every setting there is, once: name, kind of value, default, unit, why the number is what it is, and who reads it.

The loader, ``aifabric settings``, the API and docs/settings.md all read this table; nothing else may list settings.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.settings.kinds import (
    ADDRESSES,
    DIRECTORY,
    FILE,
    LISTEN,
    MAC,
    OVSDB,
    PREFIXES,
    SWITCH,
    HostPort,
    Kind,
    choice,
    seconds,
    whole,
)


@dataclass(frozen=True)
class Setting:
    """One row.  A default of ``None`` means "computed at start" or "not set", as its reason says."""

    name: str
    kind: Kind
    unit: str
    reason: str
    used: str
    default: object = None

    @property
    def variable(self) -> str:
        return f"AIFABRIC_{self.name.upper()}"


_INTENT_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Intent)}


def _intent(name: str, kind: Kind, unit: str, reason: str, used: str) -> Setting:
    """A setting that goes into Intent, whose default is Intent's own so that the two cannot differ."""
    return Setting(name, kind, unit, reason, used, _INTENT_DEFAULTS[name])


_PROCESS = (
    Setting(
        "state_dir",
        DIRECTORY,
        "",
        "what survives a restart; /var/lib/aifabric for root, else the user's XDG state directory",
        "store",
    ),
    Setting(
        "api",
        LISTEN,
        "",
        "loopback only: the API has no TLS; reading needs no login, writing a token",
        "northbound",
        HostPort("127.0.0.1", 8080),
    ),
    Setting(
        "api_token_file",
        FILE,
        "",
        "the secret that drains and repairs need; not set: api-token in the state directory, made at start for its owner alone",
        "northbound",
    ),
    Setting("api_enabled", SWITCH, "", "off: no HTTP at all, and the CLI cannot answer", "northbound", True),
    Setting(
        "api_waiters", whole(1, 1000), "requests", "long polls open at once; each holds one small greenlet", "northbound", 32
    ),
    Setting(
        "ovsdb",
        OVSDB,
        "",
        "auto: the local Open vSwitch when its socket is there; BFD and fail-mode checks need it",
        "southbound.ovsdb",
        "auto",
    ),
    Setting(
        "log_level", choice("debug", "info", "warning", "error"), "", "info says what changed, never once a packet", "app", "info"
    ),
    Setting(
        "handshake_timeout_s",
        seconds(0.5, 60),
        "s",
        "a silent TCP client costs a greenlet; a switch under load answers within one second",
        "southbound",
        5.0,
    ),
    Setting(
        "echo_interval_s",
        seconds(0.5, 60),
        "s",
        "a switch that hears nothing this long is asked; OVS itself gives up after 5 s of silence by default",
        "southbound",
        3.0,
    ),
    Setting("echo_lost", whole(1, 10), "echoes", "unanswered in a row before the session is closed", "southbound", 3),
)

_DATA_PLANE = (
    _intent(
        "gateway_mac", MAC, "", "one locally administered address for the whole fabric, so that hosts never re-ARP", "compile"
    ),
    _intent("gateways", ADDRESSES, "", "addresses on which the fabric itself answers ping", "compile"),
    _intent("prefixes", PREFIXES, "", "where hosts may be; empty: any unicast address that is not link-local", "compile"),
    _intent(
        "unknown_host_pps",
        whole(1, 1_000_000),
        "packets/s per port",
        "a new host needs 3-4 packets, and a rack that boots together has a port each",
        "compile",
    ),
    _intent(
        "unknown_destination_pps",
        whole(1, 1_000_000),
        "packets/s per leaf",
        "packets to addresses nobody has claimed yet; each may cost a probe",
        "compile",
    ),
    _intent(
        "lldp_pps",
        whole(10, 1_000_000),
        "packets/s per switch",
        "64 ports probed once a second, with room for a burst",
        "compile",
    ),
    _intent(
        "repair_pps",
        whole(100, 10_000_000),
        "packets/s per uplink",
        "bounced packets from senders whose TTL does not bound them",
        "compile",
    ),
    _intent(
        "repair_ttl_steps",
        whole(1, 60),
        "TTL per bounce",
        "20: a packet with TTL 64 dies after 3 bounces, i.e. 4 transmissions (measured: 1 let 1,000 packets become 32,001)",
        "compile",
    ),
)

_DISCOVERY = (
    _intent("probe_interval_s", seconds(0.1, 60), "s per direction", "one LLDP probe per link direction", "engine"),
    _intent(
        "probes_lost",
        whole(1, 20),
        "probes",
        "unanswered before a direction counts as gone; port events and BFD are faster",
        "engine",
    ),
    _intent("settle_probes", whole(1, 20), "probes", "unanswered before a port counts as a host port", "engine"),
    _intent("settle_interval_s", seconds(0.05, 10), "s", "between those; a switch that boots answers within this", "engine"),
    _intent("hold_down_s", seconds(0, 600), "s", "a link that comes back waits this long; doubles with each flap", "engine"),
    _intent("hold_down_max_s", seconds(0, 3600), "s", "the doubling ends here", "engine"),
    _intent("reread_s", seconds(0, 86_400), "s", "quiet switches are read back this often; 0: only on connecting", "engine"),
    _intent(
        "audit_repair", SWITCH, "", "what such a look finds changed is put right; off: only by aifabric audit --repair", "engine"
    ),
    _intent(
        "drain_floor_percent",
        whole(0, 100),
        "%",
        "a drain that leaves some leaf less of its uplink capacity is refused without --force; 50: one spine of two may go",
        "engine",
    ),
    _intent("flap_memory_s", seconds(1, 86_400), "s", "flaps older than this are forgotten", "engine"),
    _intent("bfd", SWITCH, "", "finds links that die without a port event; set through OVSDB", "engine, southbound.ovsdb"),
    _intent(
        "bfd_interval_ms",
        whole(10, 10_000),
        "ms",
        "a silent link is gone after three; 10 ms flaps on machines of two cores (measured)",
        "engine, southbound.ovsdb",
    ),
)

_HOSTS = (
    _intent(
        "host_age_s", seconds(1, 604_800), "s", "silence before a host is probed; Linux forgets a neighbour in 60 s", "engine"
    ),
    _intent("host_probe_s", seconds(0.05, 60), "s", "per probe; three unanswered ones age a host out", "engine"),
    _intent("move_probe_s", seconds(0.05, 60), "s", "the old port's time to answer before a move is believed", "engine"),
    _intent("hold_packets", whole(0, 64), "packets", "first packets kept per destination that is being looked for", "engine"),
    _intent("hold_total", whole(0, 65_536), "packets", "and in all; 1,500 bytes each", "engine"),
    _intent("hold_s", seconds(0.1, 60), "s", "how long such a packet waits; ARP itself gives up after 3 s", "engine"),
)

TABLE: tuple[Setting, ...] = _PROCESS + _DATA_PLANE + _DISCOVERY + _HOSTS
BY_NAME: dict[str, Setting] = {row.name: row for row in TABLE}
INTENT_NAMES: frozenset[str] = frozenset(_INTENT_DEFAULTS)
