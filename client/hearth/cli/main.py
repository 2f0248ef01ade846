"""Entry point of `hearth`: the commands, and their exit statuses.

A command is a module with a function `add_to(commands)`, which describes its arguments and sets `run`. It imports the
modules that it works with only when it runs.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from hearth.cli import completion, devices, operate, published, sessions, status
from hearth.cli.bench import command as bench
from hearth.cli.doctor import command as doctor
from hearth.cli.format.complaint import complain
from hearth.cli.run import command as run
from hearth.cli.top import command as top
from hearth.cli.trace import command as trace
from hearth.errors import ArgumentError, HearthError
from hearth_proto import VERSION, standard_streams

RUNTIME_ERROR = 1
USAGE_ERROR = 2
INTERRUPTED = 130
"""Exit status that a shell reports for a command that SIGINT ended."""

_COMMANDS = (status, top, devices, sessions, published, run, trace, bench, doctor, operate, completion)


_EXIT_STATUSES = """exit status:
  0    success
  1    failure: no daemon answers, the daemon refuses, or (status) it is not ready
  2    usage error: invalid arguments
  130  interrupted by Ctrl-C
"""


class _Parser(argparse.ArgumentParser):
    """Parser that accepts options, unabbreviated, and positional arguments in any order.

    argparse alone treats an optional TARGET as omitted if an option precedes it. A usage error is one line.
    """

    _within = False

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        greedy = (argparse.PARSER, argparse.REMAINDER)
        if self._within or any(action.nargs in greedy for action in self._get_positional_actions()):
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands and their arguments."""
    parser = _Parser(
        prog="hearth",
        description="Works with a Hearth daemon.",
        epilog=_EXIT_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hearth {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    parser.set_defaults(parser=parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit status. Raises `SystemExit` if argparse ends the command."""
    standard_streams.open_closed()
    os.environ.setdefault(
        "GRPC_VERBOSITY", "NONE"
    )  # silences gRPC's log, for example of a refused certificate, which is reported in one line instead
    for stream in (sys.stdout, sys.stderr):  # a client's name may contain characters that the terminal's encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        parsed = build_parser().parse_args(arguments)
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except HearthError as error:
        complain(str(error))
        return USAGE_ERROR if _is_usage_error(error) else RUNTIME_ERROR
    except OSError as error:
        if not standard_streams.discard_unwritable(error):
            raise
        if not isinstance(error, BrokenPipeError):  # `hearth bench | head`: the reader has ended
            complain(f"the output cannot be written: {error.strerror}")
        return RUNTIME_ERROR
    return status


def _is_usage_error(error: HearthError) -> bool:
    """True if the command line is invalid for any daemon. A feature that one daemon lacks is not a usage error."""
    return isinstance(error, ArgumentError) and error.reason == "INVALID_ARGUMENT"


if __name__ == "__main__":
    raise SystemExit(main())
