"""`hearth run`: compiles a kernel's file, launches one kernel of it, and saves or prints the results."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.format import output
from hearth.cli.format.complaint import complain, invalid_argument
from hearth.cli.format.units import parse_size
from hearth.errors import ArgumentError, AuthenticationError, CompileError, DeviceLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hearth.blocking.node import Node
    from hearth.cli.run.report import RunReport
    from hearth.cli.run.spec import Spec

_THREADS = 256
LAUNCH_S = 60.0
"""Default timeout of a launch, in seconds. It also ends the kernel of an interrupted command, which affects no other
session, because the device process is dedicated."""
_LONGEST_S = 365 * 86400.0
_MODES = ("checked", "validate", "unchecked")
_EPILOG = """\
arguments, in the kernel's order:
  f32=2.5  int=1<<20               a value: TYPE=VALUE
  in:data.npy                      an array from a file
  inout:data.npy=result.npy        the same; its contents after the launch are written to a file
  zeros:float32[1024]              a generated array: zeros, ones, arange (:start= :step=),
  random:float32[64,64]:seed=1     random (:seed= :low= :high=), full (:value=)
  inout:ones:float32[1024]=y.npy   the same; its contents after the launch are written to a file
  out:float32[1024]=y.npy          a result: initialized with zeros, written to a file
Results without a file are printed. A type is a NumPy type (float32), a CUDA type (float, size_t;
int has 32 bits) or a short form (f32). Files that the source includes from its own directory or
from -I are sent with it.

  hearth run saxpy.cu f32=2 arange:float32[1048576] inout:ones:float32[1048576]=y.npy int=1048576 --timed
"""


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="compile and launch a kernel",
        description="Compiles a CUDA C++ file (or loads .ptx, .cubin) on a daemon's device and launches one kernel.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="kernel.cu, .ptx, .cubin or .fatbin file; /dev/stdin reads a pipe")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="argument of the kernel, see below")
    parser.add_argument(
        "--kernel", metavar="NAME", help='name of the kernel, if the file has several; for C++ e.g. "scale<float>"'
    )
    parser.add_argument(
        "--grid",
        type=_dimensions,
        metavar="X[,Y[,Z]]",
        help="number of blocks (default: one thread for each element of the largest array)",
    )
    parser.add_argument(
        "--block",
        type=_dimensions,
        default=(_THREADS, 1, 1),
        metavar="X[,Y[,Z]]",
        help=f"threads per block ({_THREADS})",
    )
    parser.add_argument("--shared-mem", type=_size, default=0, metavar="SIZE", help="dynamic shared memory per block")
    parser.add_argument(
        "--iterations", type=_count, default=1, metavar="N", help="number of launches, one after the other"
    )
    parser.add_argument(
        "--mode",
        choices=_MODES,
        default="checked",
        help="validate: report writes out of bounds, and on the CPU backend reads too",
    )
    parser.add_argument("--timed", action="store_true", help="measure the time on the device")
    parser.add_argument(
        "--launch-timeout", type=connect_options.seconds, metavar="SECONDS",
        help=f"timeout of a launch ({LAUNCH_S:g}; none with --shared)",
    )  # fmt: skip
    parser.add_argument(
        "--shared",
        action="store_true",
        help="use the device process that other sessions share: starts sooner, but a fault affects those sessions",
    )
    parser.add_argument(
        "--device", type=connect_options.ordinal, default=0, metavar="N", help="number of the device (0)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite result files")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--target", metavar="TARGET", help='"host:7421", ...; default: HEARTH_TARGET, otherwise the default socket'
    )
    code = parser.add_argument_group("compiler")
    code.add_argument("-D", "--define", action="append", default=[], metavar="NAME[=VALUE]", help="define a macro")
    code.add_argument(
        "-I", "--include", action="append", default=[], metavar="FOLDER", help="directory of headers on this machine"
    )
    code.add_argument("--header", action="append", default=[], metavar="[NAME=]FILE", help="add one header")
    code.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="OPTION",
        help="pass an option to NVRTC, e.g. --option=--use_fast_math",
    )
    connect_options.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the kernel; returns 1 if the code does not compile or a result cannot be written. Raises `HearthError`."""
    from hearth.cli.run import arrays, sources
    from hearth.cli.run import kernel as run_kernel

    if arguments.launch_timeout is None and not arguments.shared:
        arguments.launch_timeout = LAUNCH_S
    specs = _parse_specs(arguments.arguments)
    code = sources.read_code(arguments.file)
    explicit = sources.headers_of_options(arguments.header)
    headers = sources.headers_of(arguments.file, code, arguments.include, explicit)
    arrays.check_result_files(specs, arguments.force)
    arrays.check_memory(specs)
    values = [arrays.host_value(spec) for spec in specs]
    with _connect(arguments) as node:
        device = node.device(arguments.device)
        printed: list[str] = []
        if arguments.json:
            node.on_output(printed.append)
        try:
            kernel = run_kernel.load(arguments, device, code, headers)
        except CompileError as error:
            return _report_compile_error(arguments.file, error)
        try:
            report = run_kernel.launch(arguments, node, device, kernel, specs, values)
        except DeviceLostError as error:
            error.fix = "find accesses out of bounds with --mode validate; allow more time with --launch-timeout."
            raise
        report.printed = "".join(printed)
    return _finish(arguments, report)


def _connect(arguments: argparse.Namespace) -> Node:
    try:
        return connect_options.connect(arguments, isolation="shared" if arguments.shared else "dedicated")
    except AuthenticationError as error:
        if error.reason == "PERMISSION_DENIED" and not arguments.shared:
            error.fix = f"use --shared. {error.fix}"
        raise


def _parse_specs(texts: Sequence[str]) -> list[Spec]:
    from hearth.cli.run.numbers import SpecError
    from hearth.cli.run.spec import parse_all

    try:
        return parse_all(texts)
    except SpecError as error:
        raise invalid_argument(str(error), "see `hearth run --help` for the forms of an argument") from None


def _report_compile_error(file: str, error: CompileError) -> int:
    """Prints the compiler's log unchanged, and a one-line message; returns the exit status."""
    if error.log:
        print(error.log.rstrip("\n"), file=sys.stderr)
        complain(f"{file} does not compile ({error.reason}); see the compiler's messages above")
    else:
        complain(f"{file}: {error}")
    return 1


def _finish(arguments: argparse.Namespace, report: RunReport) -> int:
    """Writes the results to their files, then prints the report; returns the exit status."""
    from hearth.cli.run import arrays

    status = 0
    for result in report.results:
        if result.file is None:
            continue
        try:
            arrays.write(result.file, result.array, arguments.force)
        except (OSError, ArgumentError) as error:
            result.file, result.error = None, getattr(error, "strerror", None) or str(error)
            complain(f"argument {result.argument} could not be written: {result.error}")
            status = 1
    if arguments.json:
        output.print_json(report.to_json())
    else:
        print(report.to_text(), end="")
    return status


def _dimensions(text: str) -> tuple[int, int, int]:
    from hearth.cli.run.numbers import dimensions

    size: tuple[int, int, int] = _argument(dimensions, text)
    return size


def _size(text: str) -> int:
    size: int = _argument(parse_size, text)
    if size >= 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r} is more shared memory than any device has")
    return size


def _argument(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:12]) < 1 << 32):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {2**32 - 1}")
    return int(text)
