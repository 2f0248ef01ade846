"""Small HTML tables with which notebooks display Hearth's objects.

The objects pass titles and rows made from values that the client already has, so that a display never waits for the
daemon. Text is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

_MAX_ROWS = 20


def pairs(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Builds a table with a title and rows of a name and a value.

    Args:
        title: Title of the table.
        rows: Name and value of each row.

    Returns:
        The HTML text.
    """
    body = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<div><b>hearth.{_text(title)}</b><table>{body}</table></div>"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Builds a table with a title, a header row and the first twenty rows.

    Args:
        title: Title of the table.
        head: Names of the columns.
        rows: Values of each row, in the order of the columns.

    Returns:
        The HTML text.
    """
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>" for row in rows[:_MAX_ROWS])
    more = len(rows) - _MAX_ROWS
    footer = f"<tr><td colspan={len(head)}>and {more} more</td></tr>" if more > 0 else ""
    content = f"<thead><tr>{cells}</tr></thead><tbody>{body}{footer}</tbody>"
    return f"<div><b>hearth.{_text(title)}</b><table>{content}</table></div>"


def device(ordinal: int, node: str, properties: Any) -> str:
    """Builds a table of a device's properties.

    Args:
        ordinal: Number of the device on its node.
        node: Name of the node.
        properties: The properties: `hearth.types.DeviceProperties`.

    Returns:
        The HTML text.
    """
    shared_mem = properties.shared_mem_per_block_optin or properties.shared_mem_per_block
    rows = [
        ("node", node),
        ("backend", properties.backend),
        ("compute capability", ".".join(map(str, properties.compute_capability))),
        ("memory", size(properties.total_memory)),
        ("multiprocessors", properties.multiprocessor_count),
        ("threads of a block", properties.max_threads_per_block),
        ("shared memory of a block", size(shared_mem)),
    ]
    return pairs(f"Device {ordinal}: {properties.name}", rows)


def size(count: float) -> str:
    """Formats a number of bytes with a binary unit, e.g. ``1.5 MiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" or count == int(count) else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(nanoseconds: float) -> str:
    """Formats nanoseconds with a suitable unit, from ns to s."""
    for unit in ("ns", "µs", "ms"):
        if nanoseconds < 1000:
            return f"{nanoseconds:.3g} {unit}"
        nanoseconds /= 1000
    return f"{nanoseconds:.3f} s"


def _text(value: Any) -> str:
    return html.escape(str(value))
