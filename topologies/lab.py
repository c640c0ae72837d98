#!/usr/bin/python3
"""The lab: a leaf-spine fabric of real Open vSwitch bridges, our controller as its own process, the scenario and its report.

Run as root with the system's python3 (Debian's mininet), usually by `make lab`. Exit code 0 when every figure was reached, 1 when
one was not or could not be measured, 2 when the lab could not run. docs/lab.md says what each row measures and how.
"""

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

try:
    from labkit.controller import tail
    from labkit.errors import LabError, PhaseError
    from labkit.fabric import Shape, kernel_datapath
    from labkit.phases import PHASES, Phase
    from labkit.report import Row, table, write_json
    from labkit.session import Lab, Options
except ImportError as missing:
    print(f"lab: {sys.executable} cannot import Mininet ({missing}): run `make setup` as root", file=sys.stderr)
    sys.exit(2)

DEFAULT_TRIALS = 15


def count(text: str) -> int:
    """For the command line: 1 to 64 of something."""
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 64")
    return int(text)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    names = [phase.name for phase in PHASES]
    parser = argparse.ArgumentParser(description="Runs the lab scenario.", epilog=f"phases: {', '.join(names)}")
    parser.add_argument("--only", default="", help="phases to run, separated by commas (default: all)")
    parser.add_argument("--trials", type=int, default=DEFAULT_TRIALS, help="trials of the uplink row; others run a share of it")
    parser.add_argument("--leaves", type=count, default=4)
    parser.add_argument("--spines", type=count, default=2)
    parser.add_argument("--hosts", type=count, default=2, help="hosts a leaf")
    parser.add_argument("--ipv6", action="store_true", help="all traffic over IPv6")
    parser.add_argument("--hold", action="store_true", help="build, then stay up with the Mininet prompt instead of the scenario")
    parser.add_argument(
        "--json", type=Path, default=ROOT / "lab-report.json", help="where the report goes (default: %(default)s)"
    )
    parser.add_argument("--manager", type=Path, default=ROOT / ".venv/bin/ryu-manager", help="the controller's command")
    parser.add_argument("--state-dir", type=Path, help="stores and logs (default: a new directory under lab-state)")
    parser.add_argument("--openflow-port", type=int, default=6653, help="another free one is taken when it is in use")
    parser.add_argument("--api-port", type=int, default=8080, help="another free one is taken when it is in use")
    parser.add_argument("--datapath", choices=("auto", "user", "kernel"), default="auto")
    options = parser.parse_args(argv)
    options.only = [name for name in options.only.split(",") if name]
    if unknown := sorted(set(options.only) - set(names)):
        parser.error(f"no phase {', '.join(unknown)}; there are {', '.join(names)}")
    if options.trials < 1:
        parser.error("--trials must be 1 or more")
    return options


def lab_options(given: argparse.Namespace) -> Options:
    if os.geteuid() != 0:
        raise LabError("network namespaces and Open vSwitch need root: run `sudo make lab`")
    datapath = given.datapath if given.datapath != "auto" else "kernel" if kernel_datapath() else "user"
    if given.state_dir is None:
        (ROOT / "lab-state").mkdir(exist_ok=True)
    state = given.state_dir or Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=ROOT / "lab-state"))
    shape = Shape(given.leaves, given.spines, given.hosts)
    return Options(shape, given.trials, given.manager, state, given.openflow_port, given.api_port, datapath, given.ipv6)


def measure(lab: Lab, phase: Phase) -> list[Row]:
    """The phase's rows; one row that says why when it could not be measured. Never leaves a link broken."""
    lab.say(f"phase {phase.name}")
    try:
        lab.use(phase.shape(lab.options.shape))
        lab.watch()
        rows = phase.measure(lab)
        if any(row.passed is False or (row.passed is None and row.lost) for row in rows) and (stalled := lab.stalled()):
            rows = measure_again(lab, phase, rows, stalled)
    except (LabError, PhaseError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        if not isinstance(error, (LabError, PhaseError)):
            traceback.print_exc()  # an answer of an unexpected shape: whoever mends it needs the place
        elif isinstance(error, LabError) and not lab.started:
            raise  # nothing came up at all: no row can be measured
        return [failed_row(lab, phase, error)]
    for row in rows:
        row.phase = phase.name
        lab.say(f"  {row.verdict}: {row.measured}")
    return rows


def measure_again(lab: Lab, phase: Phase, first: list[Row], stalled: list[str]) -> list[Row]:
    """One more time, because links that nobody broke failed under the first measurement; that one stays in the details."""
    lab.say(f"  BFD expired on links nobody broke ({', '.join(stalled)}): the machine stood still, measuring once more")
    lab.watch()
    rows = phase.measure(lab)
    for row, before in zip(rows, first, strict=False):
        row.measured += " (2nd measurement: the machine stood still in the 1st)"
        row.details["first_measurement"] = {"measured": before.measured, "lost": before.lost, "stalled": stalled}
    return rows


def failed_row(lab: Lab, phase: Phase, error: Exception) -> Row:
    lab.say(f"  NOT RUN: {error}")
    if lab.log:
        print(f"  the controller's log ({lab.log}) ends:\n{tail(lab.log)}", file=sys.stderr)
    try:
        lab.recover()
    except (LabError, PhaseError, OSError) as second:
        lab.say(f"  could not recover: {second}")
        lab.take_down()
    return Row(phase.name, phase.name, "", "", False, error=str(error).splitlines()[0])


def scenario(lab: Lab, wanted: list[str], report: Path) -> int:
    rows: list[Row] = []
    begin = time.monotonic()
    try:
        for phase in PHASES:
            if not wanted or phase.name in wanted:
                rows += measure(lab, phase)
    finally:
        about = {
            "shape": vars(lab.options.shape),
            "datapath": lab.options.datapath,
            "ip": 6 if lab.options.ipv6 else 4,
            "trials": lab.options.trials,
            "kernel": platform.release(),
            "cpus": os.cpu_count(),
            "seconds": round(time.monotonic() - begin),
        }
        write_json(report, rows, about)
    print(
        f"\n{lab.options.shape}; IPv{about['ip']}; "
        f"{lab.options.datapath} datapath; {about['cpus']} CPUs; {about['seconds']} s\n\n{table(rows)}\n"
    )
    bad = [row.title for row in rows if row.passed is False]
    print(f"report: {report}\n" + (f"{len(bad)} of {len(rows)} rows short of their target" if bad else "every target reached"))
    return 1 if bad else 0


def hold(lab: Lab) -> int:
    from mininet.cli import CLI
    from mininet.log import setLogLevel

    lab.use(lab.options.shape)
    print(f"""
The fabric is up: {lab.options.shape}. Hosts h1..h{len(lab.fabric.hosts)}, leaves l1.., spines s1..
  at this prompt           pingall    iperf h1 h{len(lab.fabric.hosts)}    link l1 s1 down    link l1 s1 up    exit
  in another terminal      AIFABRIC_API={lab.controller.api} {lab.options.manager.with_name("aifabric")} status
                           (also: topology, hosts, paths A B, why A B, groups, events --follow, settings)
  the controller's log     {lab.controller.log}
""")
    setLogLevel("info")  # at "error" the prompt's own answers are not shown
    CLI(lab.fabric.net)
    return 0


def interrupted(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    try:
        lab = Lab(lab_options(given))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    try:
        return hold(lab) if given.hold else scenario(lab, given.only, given.json)
    except (LabError, PhaseError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nlab: interrupted, cleaning up", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop the clean-up half-way
        lab.close()


if __name__ == "__main__":
    sys.exit(main())
