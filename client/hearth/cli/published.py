"""`hearth published`: the arrays that may be attached on the node."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.format import output, units
from hearth.cli.format.printable import printable

if TYPE_CHECKING:
    from hearth.arrays.described import PublishedArray


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "published",
        help="published arrays, and how many sessions use them",
        description="Lists the arrays that this caller may attach, on all devices. Opens a session for that.",
        allow_abbrev=False,
    )
    output.add_arguments(parser)
    connect_options.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the arrays. Raises `HearthError`."""
    from hearth.endpoint import target as targets

    where = connect_options.where(targets.resolve(arguments.target, "the command line"))
    with connect_options.connect(arguments, name="hearth published", lanes=False) as node:
        found = [(device.ordinal, array) for device in node.devices for array in device.published()]
    document = {"target": where, "published": [_document(ordinal, array) for ordinal, array in found]}
    output.emit(document, arguments.json, "" if arguments.json else _text(found))
    return 0


def _document(ordinal: int, array: PublishedArray) -> dict[str, Any]:
    return {
        "name": array.name,
        "tenant": array.tenant,
        "device": ordinal,
        "bytes": array.nbytes,
        "shape": None if array.shape is None else list(array.shape),
        "dtype": None if array.dtype is None else str(array.dtype),
        "attached": array.attached,
    }


def _text(found: list[tuple[int, PublishedArray]]) -> str:
    from hearth.cli.format.table import table

    if not found:
        return "no published arrays"
    header = ["NAME", "TENANT", "DEVICE", "SIZE", "SHAPE", "DTYPE", "ATTACHED"]
    rows = [
        [
            printable(array.name),
            printable(array.tenant),
            str(ordinal),
            units.size(array.nbytes),
            units.NONE if array.shape is None else " x ".join(map(str, array.shape)) or "1",
            units.NONE if array.dtype is None else printable(str(array.dtype)),
            str(array.attached),
        ]
        for ordinal, array in found
    ]
    return table(header, rows, frozenset({2, 3, 6}))
