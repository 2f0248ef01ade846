"""Parsers of the command line of `hearthd`, in the style of those of `hearth`.

A usage error is one line, which suggests the command or option that is most similar to an unknown one. Options and
positional arguments may be in any order.
"""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from hearthd.cli.failure import USAGE_ERROR


class _Help(argparse.HelpFormatter):
    """Formatter that wraps a text of one line, and keeps the lines of a text of several lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "\n".join(indent + line for line in text.splitlines())


class Parser(argparse.ArgumentParser):
    """Parser of a command, or of a group of commands."""

    _is_intermixed = False
    """True while `parse_known_intermixed_args` calls `parse_known_args`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **options)
        self.set_defaults(run=self._run_without_command)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments. An unknown argument is a usage error, so the second value is an empty list."""
        if self._is_intermixed:
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True
        try:
            if self.commands() is not None:
                parsed, unknown = super().parse_known_args(args, namespace)
            else:
                # argparse alone treats an optional argument as omitted if an option precedes it
                parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False
        if unknown:
            self._refuse(unknown)
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Prints a usage error in one line, and exits with status 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")

    def commands(self) -> argparse._SubParsersAction[Parser] | None:
        """Returns the commands of a group; None for a command."""
        return next((action for action in self._actions if isinstance(action, argparse._SubParsersAction)), None)

    def options(self) -> dict[str, argparse.Action]:
        """Returns the options by each of their names."""
        return {name: action for action in self._actions for name in action.option_strings}

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"there is no command {value!r}{_question(value, action.choices)}")
        super()._check_value(action, value)

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        name = next((argument.partition("=")[0] for argument in unknown if argument.startswith("-")), None)
        if name is None:
            self.error(f"unexpected argument {unknown[0]!r}")
        self.error(f"there is no option {name}{_question(name, self.options())}")

    def _run_without_command(self, _: argparse.Namespace) -> int:
        """Prints the help of a group whose command is missing."""
        self.print_help(sys.stderr)
        return USAGE_ERROR


def _question(name: str, names: Iterable[str]) -> str:
    """Returns a question that suggests the most similar name; an empty string if no name is similar."""
    close = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {close[0]}?" if close else ""


def epilog(statuses: dict[int, str], examples: Sequence[str] = ()) -> str:
    """Returns the text below the options in a command's help.

    Args:
        statuses: The exit statuses of the command, and what each means.
        examples: Command lines, shown with two spaces before them.
    """
    lines = ["examples:", *(f"  {example}" for example in examples), ""] if examples else []
    lines += ["exit status:", *(f"  {status:<3}  {text}" for status, text in sorted(statuses.items()))]
    return "\n".join(lines)


def add_command(
    commands: Any,
    run: Callable[[argparse.Namespace], int],
    name: str,
    summary: str,
    description: str,
    *,
    statuses: dict[int, str] | None = None,
    examples: Sequence[str] = (),
) -> Parser:
    """Adds a command to a group, and returns its parser.

    Args:
        commands: The group: the result of `Parser.add_subparsers`.
        run: Function that runs the command, and returns its exit status.
        name: Name of the command.
        summary: Text in the list of commands.
        description: Text at the top of the command's help.
        statuses: Exit statuses in addition to 0 and 2, or texts that replace the usual texts of these two.
        examples: Command lines for the command's help.
    """
    all_statuses = {0: "success", 2: "usage error: invalid arguments or configuration"} | (statuses or {})
    parser: Parser = commands.add_parser(
        name, help=summary, description=description, epilog=epilog(all_statuses, examples)
    )  # fmt: skip
    parser.set_defaults(run=run)
    return parser


def number_type(kind: type[int | float], unit: str, low: float, high: float) -> Callable[[str], Any]:
    """Returns the type of an argument that is a number of `unit` from `low` to `high`."""

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit} from {low:g} to {high:g}")
        return value

    return parse


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds the option --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
