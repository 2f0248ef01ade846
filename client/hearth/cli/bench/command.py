"""`hearth bench`: measures a daemon's speed from this machine, and compares it with the machine's own limits."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.format import output
from hearth.cli.format.complaint import complain
from hearth.cli.format.units import KIB, MIB, parse_size, size_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.cli.bench.figures import Figure
    from hearth.cli.bench.report import BenchReport

_SMALLEST = 4 * KIB
_FULL_MAX = 64 * MIB
_QUICK_MAX = 16 * MIB


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure latency, rates and bandwidth of a daemon",
        description="Measures a daemon from this machine: latencies, rates and bandwidths with percentiles, each next "
        "to a floor: what this machine achieves without Hearth, measured in the same run. Takes about 15 "
        "seconds.",
    )
    parser.add_argument(
        "--device", type=connect_options.ordinal, default=0, metavar="N", help="number of the device (0)"
    )
    parser.add_argument("--quick", action="store_true", help="take fewer samples, in one or two seconds")
    parser.add_argument(
        "--max-size",
        type=_max_size,
        metavar="SIZE",
        help=f"size of the largest transfer ({size_name(_FULL_MAX)}; with --quick {size_name(_QUICK_MAX)})",
    )
    connect_options.add_arguments(parser, json_help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; returns 1 if a figure could not be measured.

    Raises `HearthError` if no figure could be measured.
    """
    report = _measure(arguments)
    if arguments.json:
        output.print_json(report.to_json())
    else:
        print(report.to_text(), flush=True)
    return _report_errors(report.figures)


def _measure(arguments: argparse.Namespace) -> BenchReport:
    from hearth.cli.bench import rounds
    from hearth.cli.bench.floor_process import FloorProcess, Kind
    from hearth.cli.bench.floors import Floors
    from hearth.cli.bench.probes import Probes
    from hearth.cli.bench.report import BenchReport
    from hearth.endpoint import target as targets

    started = time.perf_counter()
    target = targets.resolve(arguments.target)
    connect = partial(connect_options.connect, arguments)
    kind: Kind = "unix" if target.address.startswith("unix:") else "tcp"
    with contextlib.closing(FloorProcess(kind)) as process, connect() as node:
        device = node.device(arguments.device)
        device.synchronize()  # attaches, so that a device that is out of service is reported once, not eight times
        version = node.describe().server_version
        effort = rounds.QUICK if arguments.quick else rounds.FULL
        probes, floors = Probes(device, connect), Floors(process)
        figures = rounds.plan(probes, floors, sizes(arguments), effort)
        try:
            rounds.run(figures, effort, probes.settle, _show_progress)
        finally:
            _show_progress("")
        return BenchReport(
            target=connect_options.target_text(target),
            on_loopback=target.loopback,
            daemon_version=version,
            node=node.name,
            device=device.ordinal,
            device_name=device.properties.name,
            backend=device.properties.backend,
            quick=arguments.quick,
            seconds=time.perf_counter() - started,
            floors_over=kind,
            loop=process.addresses.loop,
            figures=figures,
        )


def _show_progress(text: str) -> None:
    """Shows the running measurement on stderr instead of the last one, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _report_errors(figures: Sequence[Figure]) -> int:
    """Prints one line for each distinct error, with all figures that it affects; returns the exit status."""
    affected: dict[str, list[str]] = {}
    for figure in figures:
        if figure.error is not None:
            affected.setdefault(str(figure.error), []).append(figure.measurement.name)
    for error, names in affected.items():
        complain(f"not measured: {', '.join(names)}: {error}")
    return 1 if affected else 0


def sizes(arguments: argparse.Namespace) -> list[int]:
    """Returns the sizes of the transfers in bytes: the maximum, and 1 MiB and 64 MiB unless they exceed it."""
    largest = arguments.max_size or (_QUICK_MAX if arguments.quick else _FULL_MAX)
    return sorted({size for size in (MIB, _FULL_MAX) if size <= largest} | {largest})


def _max_size(text: str) -> int:
    """Parses the maximum size.

    A copy of that size needs an array on each side, so the limit is a quarter of the memory.
    """
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    if not _SMALLEST <= size <= limit:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not between {size_name(_SMALLEST)} and {size_name(limit)}, a quarter of this machine's memory"
        )
    return size
