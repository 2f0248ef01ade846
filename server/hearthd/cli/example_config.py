"""`hearthd example-config`: the commented example configurations.

They are files of `deploy/`, which the wheel contains as files of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from hearthd.cli.failure import USAGE_ERROR, fail

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


def add_to(app: typer.Typer) -> None:
    """Adds the command `hearthd example-config` to the typer application."""

    @app.command("example-config")
    def example_config(
        name: Annotated[str | None, typer.Argument(metavar="NAME", help="The example.", show_default=False)] = None,
    ) -> None:
        """Print a commented example configuration.

        Without NAME, list the examples.
        """
        if name is None:
            print(listed())
        elif name in EXAMPLES:
            print(deploy_file(EXAMPLES[name].path).read_text(), end="")
        else:
            fail(f"there is no example {name!r}. Fix: use one of {', '.join(EXAMPLES)}.", USAGE_ERROR)


def listed() -> str:
    """Returns the list of the examples as text."""
    wide = max(map(len, EXAMPLES))
    lines = [f"{name.ljust(wide)}  {example.summary}" for name, example in EXAMPLES.items()]
    return "\n".join([*lines, "", "Print one: hearthd example-config NAME > hearth.toml"])


def deploy_file(name: str) -> Path:
    """Returns the path of a file of `deploy/`: in the package of a wheel, else in the clone."""
    packaged = _PACKAGE / "deploy" / name
    return packaged if packaged.exists() else _PACKAGE.parents[1] / "deploy" / name
