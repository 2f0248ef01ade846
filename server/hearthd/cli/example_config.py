"""`hearthd example-config`: the commented example configurations.

They are files of `deploy/`, which the wheel contains as files of the package.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from hearthd.cli.failure import USAGE_ERROR, fail
from hearthd.cli.parser import add_command

_PACKAGE = Path(__file__).resolve().parents[1]


class Example(NamedTuple):
    """An example configuration."""

    path: str
    """Path of the file in `deploy/`."""
    summary: str
    """One line for the list."""


EXAMPLES = {
    "one-user": Example("examples/one-user.toml", "one user on one machine; no credentials"),
    "team": Example("examples/team.toml", "tenants that share one machine, over TLS and the Unix socket"),
    "cluster-node": Example("examples/cluster-node.toml", "a node of a cluster: mutual TLS, groups over several nodes"),
    "all-settings": Example("hearth.toml", "every setting at its default"),
}
"""The examples by name."""


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser = add_command(
        commands,
        run,
        "example-config",
        "print a commented example configuration",
        "Prints a commented example configuration. Without NAME, lists the examples.",
        examples=("hearthd example-config one-user > hearth.toml",),
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"the example: {', '.join(EXAMPLES)}")


def run(arguments: argparse.Namespace) -> int:
    """Prints the example, or the list. Raises `SystemExit` if there is no such example."""
    name: str | None = arguments.name
    if name is None:
        print(format_list())
    elif name in EXAMPLES:
        print(deploy_file(EXAMPLES[name].path).read_text(), end="")
    else:
        fail(f"there is no example {name!r}. Fix: use one of {', '.join(EXAMPLES)}.", USAGE_ERROR)
    return 0


def format_list() -> str:
    """Returns the list of the examples as text."""
    width = max(map(len, EXAMPLES))
    lines = [f"{name.ljust(width)}  {example.summary}" for name, example in EXAMPLES.items()]
    return "\n".join([*lines, "", "Print one: hearthd example-config NAME > hearth.toml"])


def deploy_file(name: str) -> Path:
    """Returns the path of a file of `deploy/`: in the package of a wheel, else in the clone."""
    packaged = _PACKAGE / "deploy" / name
    return packaged if packaged.exists() else _PACKAGE.parents[1] / "deploy" / name
