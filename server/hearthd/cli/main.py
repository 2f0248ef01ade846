"""Entry point of `hearthd`: the commands, and their exit statuses.

A command is a module with a function `add_to(commands)`, which describes its arguments and sets `run`. A command
imports other modules only when it runs. Device processes import the main module again, so this module imports nothing
heavy before `main` runs.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from hearth_proto import standard_streams
from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail

if TYPE_CHECKING:
    import argparse

    from hearthd.cli.parser import Parser

_INTERRUPTED = 130
"""Exit status that a shell reports for a command that SIGINT ended."""


def build_parser() -> Parser:
    """Returns the parser of all commands and their arguments."""
    from hearth_proto import VERSION
    from hearthd.cli import (
        audit,
        certificate,
        check_config,
        completion,
        example_config,
        health_check,
        print_config,
        serve,
        service_unit,
        token,
    )
    from hearthd.cli.parser import Parser, add_command, epilog

    statuses = {0: "success", 1: "failure", 2: "usage error: invalid arguments or configuration"}
    parser = Parser(
        prog="hearthd",
        description="The daemon that owns this node's GPUs.",
        epilog=epilog(statuses | {_INTERRUPTED: "interrupted by Ctrl-C"}),
    )
    parser.add_argument("--version", action="version", version=f"hearthd {VERSION}", help="print the version")
    completion.add_to(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (
        serve, check_config, print_config, token, health_check, certificate, audit, example_config, service_unit,
    ):  # fmt: skip
        command.add_to(commands)
    add_command(
        commands, _version, "version", "print the version, as --version does", "Prints the version, as --version does."
    )
    add_command(
        commands,
        _demo,
        "demo",
        "run the demonstration",
        "Starts a daemon on a temporary Unix socket, and a client that runs kernels on it and checks each result.",
        statuses={1: "a step failed"},
    )
    return parser


def main() -> None:
    """Runs the command line: the entry point of the console script.

    Raises:
        SystemExit: Always, with the exit status of the command.
    """
    standard_streams.open_closed()
    try:
        status = _run()
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("hearthd", "hearth_proto"):
            raise
        _abandon_forkserver()
        fail(
            f"the Python package {error.name!r} is not installed; the daemon needs it, unlike the client. "
            "Fix: install the extra hearth-gpu[server], or with GPUs [cuda12] or [cuda13]: in a clone "
            "pip install '.[server]', from a wheel pip install 'hearth-gpu[server] @ file:///PATH/NAME.whl'",
            RUNTIME_ERROR,
        )
    except SystemExit as system_exit:
        if system_exit.code == USAGE_ERROR:
            _abandon_forkserver()  # an invalid flag, or an invalid configuration
        raise
    except KeyboardInterrupt:
        fail("interrupted", _INTERRUPTED)
    except OSError as error:
        if not standard_streams.discard_unwritable(error):
            raise
        if isinstance(error, BrokenPipeError):  # `hearthd print-config | head`: the reader has exited
            raise SystemExit(RUNTIME_ERROR) from None
        fail(f"the output cannot be written: {error.strerror}", RUNTIME_ERROR)
    raise SystemExit(status)


def _run() -> int:
    hangup: Any = None
    if sys.argv[1:2] == ["serve"] and not {"--help", "-h"} & set(sys.argv):
        from hearthd.shared import sighup

        hangup = sighup.begin()
        from hearthd.front.supervisor import forkserver

        forkserver.begin(sys.argv[2:], os.environ)  # first, because its imports take as long as all later steps
    from hearthd.cli import completion

    parser = build_parser()
    if completion.VARIABLE in os.environ:
        return completion.answer(parser, os.environ)
    arguments = parser.parse_args()
    arguments.hangup = hangup
    status: int = arguments.run(arguments)
    return status


def _abandon_forkserver() -> None:
    """Ends the forkserver that `main` started, because nothing will be served."""
    if "hearthd.front.supervisor.forkserver" in sys.modules:
        from hearthd.front.supervisor import forkserver

        forkserver.abandon()


def _version(_: argparse.Namespace) -> int:
    from hearth_proto import VERSION

    print(f"hearthd {VERSION}")
    return 0


def _demo(_: argparse.Namespace) -> int:
    from hearthd.cli import demo

    return demo.main()
