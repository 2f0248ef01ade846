"""Entry point of `hearth`: the commands, and how each of them ends.

A command is a module with `add_to(commands)`, which describes its arguments and sets `run`; what it works with is
imported when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
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
from hearth.version import __version__

RUNTIME_ERROR = 1
USAGE_ERROR = 2
INTERRUPTED = 130
"""Exit status that a shell reports for a command that SIGINT ended."""

_COMMANDS = (status, top, devices, sessions, published, run, trace, bench, doctor, operate, completion)


_ENDS = """exit status:
  0    fine
  1    it did not work: no daemon answers, it refuses, or (status) it is not ready
  2    wrong use: arguments that cannot be right, whatever the daemon
  130  Ctrl-C
"""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


class _Command(_Parser):
    """Takes options and other arguments in any order; argparse by itself takes an optional TARGET as left out at the
    first option that stands before it."""

    _within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = (argparse.PARSER, argparse.REMAINDER)
        if self._within or any(action.nargs in given for action in self._get_positional_actions()):
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False


def build_parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = _Parser(
        prog="hearth",
        description="Works with a Hearth daemon.",
        epilog=_ENDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hearth {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Command)
    for command in _COMMANDS:
        command.add_to(commands)
    parser.set_defaults(parser=parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; its exit status. Raises `SystemExit` where argparse ends it."""
    os.environ.setdefault(
        "GRPC_VERBOSITY", "NONE"
    )  # gRPC's own log of a refused certificate, say: it is shown in one line
    for stream in (sys.stdout, sys.stderr):  # a client's name may hold what the terminal's encoding has not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        parsed = build_parser().parse_args(arguments)
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `hearth bench | head`: the reader has ended
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush at the end
        return RUNTIME_ERROR
    except HearthError as error:
        complain(str(error))
        return USAGE_ERROR if _ours(error) else RUNTIME_ERROR
    return status


def _ours(error: HearthError) -> bool:
    """Returns whether the command line is invalid for any daemon. A missing feature of one daemon is no usage error."""
    return isinstance(error, ArgumentError) and error.reason == "INVALID_ARGUMENT"


if __name__ == "__main__":
    raise SystemExit(main())
