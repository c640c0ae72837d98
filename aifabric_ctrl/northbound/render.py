"""API answers as text for a terminal or a pipe.  Takes JSON values, returns text; asks nobody.

On a terminal there is colour and tables fit its width; in a pipe lines are whole, plain and without box characters.
Names come from switches and hosts, so nothing of them is markup and control characters are shown, not obeyed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

Json = dict[str, Any]
_PIPE_WIDTH = 100_000

_STYLES = {
    "alarm": "bold red",
    "warning": "yellow",
    "down": "red",
    "failed": "red",
    "away": "red",
    "quarantined": "red",
    "one-way": "yellow",
    "held": "yellow",
    "up": "green",
    "in_sync": "green",
    "yes": "green",
    "no": "red",
}


def clean(value: object) -> str:
    """Text that cannot steer a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(value))


class Page:
    """Collects lines and tables; ``text`` is what to print."""

    def __init__(self, terminal: bool, width: int | None = None) -> None:
        self._terminal = terminal
        self._file = io.StringIO()
        self._console = Console(
            file=self._file,
            force_terminal=terminal,
            color_system="standard" if terminal else None,
            width=(width or 100) if terminal else _PIPE_WIDTH,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )

    def line(self, text: str = "", style: str = "") -> None:
        """One line; on a terminal it wraps."""
        self._console.print(Text(clean(text), style=style), soft_wrap=not self._terminal)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "none") -> None:
        """A table whose headings are ``columns``; ``empty`` is said when it has no rows."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="bold")
        for name in columns:
            table.add_column(name.upper(), no_wrap=not self._terminal, overflow="fold")
        for row in rows:
            table.add_row(*(self._cell(value) for value in row))
        if table.row_count:
            self._console.print(table)
        else:
            self.line(empty)

    def _cell(self, value: object) -> Text:
        text = {True: "yes", False: "no", None: "-"}.get(value, value) if value is None or isinstance(value, bool) else value
        shown = clean("-" if text == "" else text)
        return Text(shown, style=_STYLES.get(shown, ""))

    @property
    def text(self) -> str:
        raw = self._file.getvalue()
        return raw if self._terminal else "".join(line.rstrip() + "\n" for line in raw.splitlines())


def status(page: Page, answer: Json) -> None:
    """The summary."""
    switches, links, hosts = answer["switches"], answer["links"], answer["hosts"]
    page.line("ready" if answer["ready"] else "not ready", "bold green" if answer["ready"] else "bold red")
    for reason in answer["reasons"]:
        page.line(f"  because {reason}")
    total = switches.get("total", switches["connected"])
    page.line(f"switches     {total} known, {switches['connected']} connected, {switches['in_sync']} in sync")
    others = ", ".join(f"{links[s]} {s}" for s in ("drained", "down", "held", "one-way", "quarantined") if links.get(s))
    page.line(f"links        {links['total']} known, {links['up']} up" + (f", {others}" if others else ""))
    page.line(f"hosts        {hosts['total']} known, {hosts['reachable']} reachable")
    made = answer["objects"]
    sizes = f"{made['flows']} flows, {made['groups']} groups, {made['meters']} meters"
    page.line(f"on switches  {sizes}, {made['pending']} not yet confirmed")
    times = answer["convergence"]
    if times["samples"]:
        page.line(f"repairs      {times['samples']}, median {times['median_ms']:g} ms, 99 % within {times['p99_ms']:g} ms")
    page.line(
        f"cabling      {answer['cabling']}"
        + (" (no fabric file says what it should be)" if answer["cabling"] == "unverified" else "")
    )
    if answer.get("drains"):
        page.line()
        drains(page, answer)
    if answer["problems"]:
        page.line()
        page.table(
            ("switch", "problem", "what", "why the object should exist"),
            ((p["switch"], p["kind"], p["text"], p.get("why", "")) for p in answer["problems"]),
        )
    if answer["alarms"]:
        page.line()
        page.line("last alarms")
        events(page, answer)


def audit(page: Page, answer: Json) -> None:
    """Each switch, then each finding."""
    page.line(answer["text"])
    rows = answer["switches"]
    page.table(
        ("switch", "state", "flows", "groups", "meters", "differences", "foreign"),
        ((r["switch"], r["state"], r["flows"], r["groups"], r["meters"], r["differences"], len(r["foreign"])) for r in rows),
    )
    found = [(r["switch"], f["kind"], f["object"], f["why"]) for r in rows for f in r["findings"]]
    found += [(r["switch"], "foreign", text, "not ours; left alone") for r in rows for text in r["foreign"]]
    if found:
        page.line()
        page.table(("switch", "finding", "what", "why it should exist"), found)


def drains(page: Page, answer: Json) -> None:
    """What operators keep traffic off."""
    if not answer["drains"]:
        page.line("nothing is drained")
        return
    rows = ((d["target"], d["who"], d["since"], d["reason"]) for d in answer["drains"])
    page.table(("drained", "by", "since", "reason"), rows)


def topology(page: Page, answer: Json, ports: bool = False) -> None:
    """Switches, links, and with ``ports`` every port; hosts have a verb of their own."""
    page.table(
        ("switch", "dpid", "role", "connected", "sync", "address", "ports up"),
        (
            (
                s["name"],
                s["dpid"],
                s["role"],
                s["connected"],
                s["sync"],
                s["address"],
                f"{sum(p['up'] for p in s['ports'])}/{len(s['ports'])}",
            )
            for s in answer["switches"]
        ),
        "no switch has connected yet",
    )
    page.line()
    page.table(
        ("link", "", "state", "bfd", "held for"),
        (
            (
                _end(link["a"]),
                _end(link["b"]),
                link["state"],
                f"{link['bfd']['a']}/{link['bfd']['b']}",
                f"{link['held_for_s']:.1f} s" if link["held_for_s"] else "",
            )
            for link in answer["links"]
        ),
        "no link has been found yet",
    )
    if ports:
        _ports(page, answer)
    page.line()
    page.line(f"{len(answer['hosts'])} hosts; cabling {answer['cabling']}")


def _ports(page: Page, answer: Json) -> None:
    page.line()
    page.table(
        ("switch", "port", "name", "role", "up", "live", "speed", "bfd"),
        (
            (s["name"], p["port"], p["name"], p["role"], p["up"], p["live"], speed(p["speed_bps"]), p["bfd"])
            for s in answer["switches"]
            for p in s["ports"]
        ),
        "no ports",
    )


def hosts(page: Page, answer: Json) -> None:
    """Hosts."""
    page.table(
        ("address", "mac", "switch", "port", "name", "tenant", "reach", "verified", "seen"),
        (
            (
                h["ip"],
                h["mac"],
                h["switch"],
                h["port"],
                h["port_name"],
                h["tenant"],
                h["reach"],
                h["verified"],
                ago(h["seen_s_ago"]),
            )
            for h in answer["hosts"]
        ),
        "no host has been heard of yet",
    )


def groups(page: Page, answer: Json) -> None:
    """Groups; buckets that do the same are one row with their count and joint share."""
    rows = []
    for group in answer["groups"]:
        first = (group["switch"], group["id_text"], group["type"], group["used_by"])
        ordered = sorted(group["buckets"], key=_same_bucket) if group["type"] == "select" else group["buckets"]
        for _, same in groupby(ordered, key=_same_bucket):
            run = list(same)
            share = f"{sum(b['share'] or 0 for b in run):.0%}" if group["type"] == "select" else ""
            rows.append((*first, len(run), share, run[0]["live"], run[0]["does"], group["reason"] if first[1] else ""))
            first = ("", "", "", "")
    page.table(
        ("switch", "group", "type", "users", "buckets", "share", "live", "does", "why"),
        ([" " if c == "" and n < 4 else c for n, c in enumerate(row)] for row in rows),
        "there are no groups",
    )


def paths(page: Page, answer: Json) -> None:
    """The ways, then what the cables alone would allow."""
    page.line(f"{answer['from']['ip']} to {answer['to']['ip']}: {answer['text']}", "bold")
    page.table(
        ("share", "way", "ports", "ends"),
        ((f"{p['share']:.1%}", p["text"], _crossed(p["hops"]), p["stops"] or "delivered") for p in answer["paths"]),
        "no way",
    )


def why(page: Page, answer: Json) -> None:
    """Each switch on the way with its rules; further choices show only what differs."""
    page.line(answer["verdict"], "bold green" if answer["delivered"] else "bold red")
    if answer["back"]:
        page.line(f"and back: {answer['back']['verdict']}", "" if answer["back"]["delivered"] else "bold red")
    page.line(answer["packet"])
    for note in answer["notes"]:
        page.line(f"note: {note}")
    for number, hop in enumerate(answer["hops"], 1):
        page.line()
        page.line(f"{number}. {hop['switch']}, in by port {hop['in_port']} ({hop['in_port_name']})", "bold")
        if hop["error"]:
            page.line(f"   {hop['error']}", "red")
        shown: list[Json] = []
        for choice in hop["choices"]:
            if len(hop["choices"]) > 1:
                page.line(f"   {'or, ' if shown else ''}for {choice['share']:.1%} of flows{_variants(choice)}:")
            for step in choice["tables"]:
                if step not in shown:
                    _step(page, step)
                    shown.append(step)
            _ends(page, choice)


def events(page: Page, answer: Json) -> None:
    """Journal lines."""
    page.table(
        ("id", "time", "severity", "kind", "what"),
        (
            (e["id"], e["time"], e["severity"], e["kind"], e["text"])
            for e in (answer["events"] if "events" in answer else answer["alarms"])
        ),
        "no events",
    )


def event_line(event: Json) -> str:
    """One journal line, for following."""
    return clean(f"{event['id']}  {event['time']}  {event['severity']:<7}  {event['kind']}  {event['text']}")


def settings(page: Page, answer: Json) -> None:
    """The settings table."""
    page.table(
        ("name", "value", "unit", "default", "from"),
        ((s["name"], s["text"], s["unit"], s["default_text"], s["source"]) for s in answer["settings"]),
    )


def health(page: Page, answer: Json) -> None:
    """Ready or not."""
    switches = answer["switches"]
    word = "ready" if answer["ready"] else "not ready"
    page.line(f"{word}: {switches['connected']} switches connected, {switches['in_sync']} in sync")
    for reason in answer["reasons"]:
        page.line(f"  because {reason}")


def speed(bps: int) -> str:
    """``10 Gbit/s``; ``-`` when the switch does not say."""
    for unit, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if bps >= factor:
            return f"{bps / factor:g} {unit}bit/s"
    return f"{bps} bit/s" if bps else "-"


def ago(seconds: float | None) -> str:
    """``12 s ago``, ``3 min ago``."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


def _end(end: Json) -> str:
    return f"{end['switch']} port {end['port']} ({end['name']})"


def _same_bucket(bucket: Json) -> tuple[str, bool]:
    return bucket["does"], bucket["live"]


def _crossed(hops: Sequence[Json]) -> str:
    return ", ".join(f"{h['switch']} {h['in_port_name']}>{h['out_port_name']}" for h in hops)


def _step(page: Page, step: Json) -> None:
    rule = step["match"] if step["priority"] is None else f"priority {step['priority']}, {step['match']}"
    page.line(f"   table {step['table']} {step['name'] if step['name'] != str(step['table']) else ''}".rstrip() + f": {rule}")
    page.line(f"      does  {'; '.join(step['actions'])}")
    if step["why"]["reason"]:
        page.line(f"      why   {step['why']['reason']}{_owner(step['why'])}")
    for group in step["groups"]:
        bucket = "" if group["bucket"] is None else f", bucket {group['bucket']} of {group['buckets']}"
        share = "" if group["share"] is None else f" ({group['share']:.1%} of the hash)"
        page.line(f"      {group['text']}{bucket}{share}: {group['does']}")
        if group["why"]["reason"]:
            page.line(f"      why   {group['why']['reason']}{_owner(group['why'])}")
    if step["note"]:
        page.line(f"      note  {step['note']}")


def _variants(choice: Json) -> str:
    return f" ({choice['variants']} hash choices, of which one is shown)" if choice["variants"] > 1 else ""


def _owner(why: Json) -> str:
    parts = [p for p in (why["owner"], why["source"]) if p]
    return f" [{', '.join(parts)}]" if parts else ""


def _ends(page: Page, choice: Json) -> None:
    for out in choice["outputs"]:
        queue = f", queue {out['queue']}" if out["queue"] is not None else ""
        page.line(f"      out   {out['text']}{queue} to {out['to']}")
        if out["stops"]:
            page.line(f"      stops {out['stops']}", "red")
    if choice["stops"]:
        page.line(f"      stops {choice['stops']}", "red")
