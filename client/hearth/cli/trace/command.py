"""`hearth trace`: records a program's work on its devices, or summarizes a recording."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from hearth.cli.format import output
from hearth.cli.format.complaint import complain, invalid_argument
from hearth.errors import ArgumentError

_TOP = 15
_DEFAULT = "trace.json"
_RECORD_EPILOG = """\
  hearth trace record -- python my_program.py --its --options
  hearth trace record --output run.json -- ./train.sh

The program runs with HEARTH_TRACE set. Each of its processes that uses Hearth's client writes a trace; the traces are
merged when the program has ended. A process that is killed (by SIGKILL, or an unhandled SIGTERM) writes no trace. The
exit status is that of the program, 128 + the signal's number if a signal ended it, or 1 if there is nothing to save.
To record without this command: HEARTH_TRACE=trace-%p.json python my_program.py.
"""


def add_to(commands: Any) -> None:
    """Adds the command, its two parts and their arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "trace",
        help="record and summarize what a program does on its devices",
        description="Records every command of a program with its times, or summarizes such a recording. The files can "
        "be opened at https://ui.perfetto.dev and in chrome://tracing.",
    )
    parts = parser.add_subparsers(title="parts", metavar="record|show", required=True)
    record: argparse.ArgumentParser = parts.add_parser(
        "record",
        help="run a program and record it",
        epilog=_RECORD_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    record.add_argument("--output", "-o", default=_DEFAULT, metavar="FILE", help="(%(default)s)")
    record.add_argument("--force", action="store_true", help="overwrite a file that is not a trace")
    record.add_argument("--json", action="store_true", help="print the summary as one JSON document on stdout")
    record.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="program to run, and its arguments, after --"
    )
    record.set_defaults(run=run_record)
    show: argparse.ArgumentParser = parts.add_parser("show", help="summarize a recording")
    show.add_argument("file", metavar="FILE", help="file written by `hearth trace record`, HEARTH_TRACE or Trace.save")
    show.add_argument(
        "--top", type=_count, default=_TOP, metavar="N", help="maximum number of rows of each table (%(default)s)"
    )
    show.add_argument("--json", action="store_true", help="print one JSON document")
    show.set_defaults(run=run_show)


def run_record(arguments: argparse.Namespace) -> int:
    """Runs the program, and returns its exit status. Raises `ArgumentError`."""
    from hearth.cli.trace import program as trace_program
    from hearth.profiling import trace_file

    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise invalid_argument("no program was specified", "use e.g. hearth trace record -- python my_program.py")
    file = Path(arguments.output)
    _check_output(file, arguments.force)
    status, documents = trace_program.run_traced(program)
    if status:
        complain(f"the program ended with status {status}")
    if not documents:
        complain(
            "nothing was recorded: the program used no device through Hearth's client, or its processes were killed"
        )
        return status or 1
    document = trace_file.merge(documents)
    try:
        trace_file.write(file, document)
    except OSError as error:
        complain(f"{arguments.output!r} could not be written: {error.strerror or error}")
        return status or 1
    if arguments.json:
        _show(arguments.output, document, arguments)
    else:
        count = sum(event.get("ph") == "X" for event in document["traceEvents"])
        print(f"{arguments.output}: {count} events; `hearth trace show {arguments.output}`", file=sys.stderr)
    return status


def run_show(arguments: argparse.Namespace) -> int:
    """Prints the summary of a trace. Raises `ArgumentError`."""
    _show(arguments.file, _load(arguments.file), arguments)
    return 0


def _show(path: str, document: Any, arguments: argparse.Namespace) -> None:
    from hearth.cli.trace import report
    from hearth.cli.trace.summary import NotATraceError, summarize

    try:
        summary = summarize(document)
    except NotATraceError as error:
        raise _no_trace(path, str(error)) from None
    if arguments.json:
        output.print_json(report.to_json(path, summary))
    else:
        print(report.to_text(path, summary, arguments.top))


def _load(path: str) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise invalid_argument(f"{path!r} cannot be read: {error.strerror or error}", "use a readable file") from None
    except (ValueError, RecursionError) as error:
        raise _no_trace(path, f"the file is not valid JSON ({error})") from None


def _check_output(file: Path, force: bool) -> None:
    """Raises `ArgumentError` if the output cannot be written.

    Raises it too if the output would overwrite a file other than a trace without `force`.
    """
    if file.is_dir():
        raise invalid_argument(f"the output {str(file)!r} is a directory", "specify a file")
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK):
        raise invalid_argument(f"{str(file.parent)!r} is not a writable directory", "use another --output")
    if force or not file.exists():
        return
    try:
        with file.open("rb") as existing:
            start = existing.read(64).lstrip()
    except OSError:
        start = b"?"
    if start and not (start.startswith(b"{") and b'"traceEvents"' in start):
        raise invalid_argument(
            f"{str(file)!r} exists and is not a trace", "use another --output, or overwrite the file with --force"
        )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows: 1, 2, ...")
    return int(text[:9])


def _no_trace(path: str, reason: str) -> ArgumentError:
    return invalid_argument(
        f"{path!r} is not a trace: {reason}", "use a file written by `hearth trace record`, HEARTH_TRACE or Trace.save"
    )
