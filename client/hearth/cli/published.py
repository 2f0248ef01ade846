"""`hearth published`: lists the published arrays of the node."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.format import output, units
from hearth.cli.format.printable import printable
from hearth.errors import UnsupportedError

if TYPE_CHECKING:
    from hearth.cli.top.rates import Document


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "published",
        help="published arrays: shape, dtype, size, owner, and how many sessions use them",
        description="Lists the published arrays that this caller may see or attach, on all devices. Of arrays of other "
        "tenants, session and number of attachments are shown to observers only. Opens no session.",
    )
    connect_options.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the arrays. Raises `HearthError`."""
    with connect_options.open_admin(arguments) as admin:
        status = admin.status()
        target = connect_options.target_text(admin.target)
    if "published" not in status:
        raise UnsupportedError(
            f"hearthd {printable(status.get('version', '?'))} at {target} does not list its published arrays.",
            fix="install the same version on both sides.",
        )
    arrays = [_document(entry) for entry in status["published"]]
    output.emit(
        {"target": target, "published": arrays}, arguments.json, "" if arguments.json else _text(arrays, status)
    )
    return 0


def _document(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the array's JSON object. Shape and dtype are None if the publisher gave none, or invalid ones."""
    from hearth import shapes
    from hearth.arrays import described

    array = described.valid(entry.get("shape"), entry.get("dtype"))
    if array is not None and shapes.bytes_of(*array) != entry["bytes"]:
        array = None
    return {
        **entry,
        "shape": None if array is None else list(array[0]),
        "dtype": None if array is None else str(array[1]),
    }


def _text(arrays: list[dict[str, Any]], status: Document) -> str:
    from hearth.cli.format.table import table
    from hearth.cli.top import lines

    if not arrays:
        return "no published arrays"
    now = lines.clock(status)
    header = ["NAME", "TENANT", "SESSION", "DEVICE", "SHAPE", "DTYPE", "SIZE", "ATTACHED", "SINCE"]
    rows = [
        [
            printable(array["name"]),
            printable(array["tenant"]),
            printable(array["session"] or units.NONE),
            str(array["device"]),
            units.NONE if array["shape"] is None else "x".join(map(str, array["shape"])) or "1",
            printable(array["dtype"] or units.NONE),
            units.size(array["bytes"]),
            units.NONE if array["attached"] is None else str(array["attached"]),
            f"{units.duration(now - array['since_unix'])} ago",
        ]
        for array in arrays
    ]
    return table(header, rows, frozenset({3, 6, 7}))
