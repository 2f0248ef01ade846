"""`python -m tests.bench`: measures, writes the results file, prints the table."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import environment, processes, report
from tests.bench.context import Context
from tests.bench.rows import first_result
from tests.bench.stats import Row

GROUPS = {
    "first": "first_result",
    "roundtrip": "roundtrip",
    "launches": "launches",
    "graphs": "graphs",
    "transfers": "transfers",
    "stripes": "stripes",
    "dispatch": "dispatch",
    "collectives": "collectives",
    "sharing": "sharing",
    "scale": "scale",
    "faults": "faults",
    "cpu": "cpu",
    "memory": "memory",
    "attacks": "attacks",
}
ON_REQUEST = ("attacks",)
"""Groups that are measured only if `--only` names them, because each row takes half a minute."""
_RESULTS = Path(__file__).parent / "results"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, one turn a side")
    parser.add_argument("--only", nargs="+", choices=tuple(GROUPS), metavar="ROW", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--out", type=Path, default=_RESULTS, metavar="DIR", help="where the JSON goes")
    parser.add_argument("--json-only", action="store_true", help="print the file's path and no table")
    parser.add_argument("--backend", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--cpu-count", type=int, default=2, metavar="N", help="devices of the CPU backend")
    parser.add_argument("--machine", default="", metavar="NAME", help="in the file's name; else made from the devices")
    return parser.parse_args()


def _measure(context: Context, only: list[str] | None) -> tuple[list[Row], dict[str, str]]:
    """Returns the rows measured before SIGTERM or SIGINT arrived, and the groups that are missing."""
    rows: list[Row] = []
    failed: dict[str, str] = {}
    stopped = ""
    for name, module in GROUPS.items():
        if name not in only if only else name in ON_REQUEST:
            continue
        if stopped:
            failed[name] = stopped
            continue
        started = time.monotonic()
        try:
            rows += importlib.import_module(f"tests.bench.rows.{module}").measure(context)
        except KeyboardInterrupt:
            failed[name] = stopped = "interrupted"
        except Exception as error:  # the other rows are still useful
            failed[name] = "; ".join(filter(None, (f"{type(error).__name__}: {error}", context.daemon.obituary())))
        state = "failed" if name in failed else "measured"
        print(f"{name}: {state} in {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    return rows, failed


def _alone(folder: Path, options: argparse.Namespace) -> list[float]:
    """Measures the row that requires a machine without a daemon, if its group is selected."""
    if options.backend == "cpu" or (options.only and "first" not in options.only):
        return []
    return first_result.alone(folder, 3 if options.quick else 7)


def main() -> int:
    """Returns 1 if something could not be measured; a ratio below its bound is not a failure."""
    options = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as name:
        folder = Path(name)
        alone = _alone(folder, options)
        with (
            processes.daemon(folder, options.backend, options.cpu_count) as daemon,
            processes.echo_server(folder) as (echo_tcp, echo_unix),
        ):
            described = environment.describe(daemon.unix, processes.environment(folder))
            devices = described["devices"]
            backend = devices[0]["backend"]
            context = Context(folder, backend, len(devices), options.quick, daemon, echo_tcp, echo_unix, alone)
            rows, failed = _measure(context, options.only)
    seconds = time.monotonic() - started
    machine = options.machine or environment.machine_name(described)
    options.out.mkdir(parents=True, exist_ok=True)
    # keeps such results apart from those of a full run
    kind = ("-partial" if options.only else "") + ("-quick" if options.quick else "")
    path = options.out / f"{described['date'][:10]}-{machine}-{backend}x{len(devices)}{kind}.json"
    result = {
        "schema": 1,
        "environment": described,
        "options": {"quick": options.quick, "only": options.only},
        "seconds": round(seconds, 1),
        "rows": [row.to_json() for row in rows],
        "failed": failed,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    if not options.json_only:
        report.show(rows, failed, described, seconds)
    print(path)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
