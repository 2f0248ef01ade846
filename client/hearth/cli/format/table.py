"""Plain tables: columns aligned by spaces, for terminals, mails and diffs."""

from __future__ import annotations

from collections.abc import Sequence

from hearth.cli.format.printable import width

_GAP = "  "


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[int] = frozenset()) -> str:
    """Returns the lines of a table as text.

    `numbers`: indices of right-aligned columns. In a row that is shorter than the header, the last cell may be of any
    width.
    """
    widths = [width(name) for name in header]
    for row in rows:
        for column, cell in enumerate(row if len(row) == len(header) else row[:-1]):
            widths[column] = max(widths[column], width(cell))
    return "\n".join(_line(row, widths, numbers) for row in (header, *rows))


def _line(row: Sequence[str], widths: Sequence[int], numbers: frozenset[int]) -> str:
    short = len(row) < len(widths)
    cells = []
    for column, cell in enumerate(row):
        overflows = short and column == len(row) - 1
        fill = " " * (widths[column] - width(cell))
        cells.append(fill + cell if column in numbers and not overflows else cell + fill)
    return _GAP.join(cells).rstrip()


def number(value: float) -> str:
    """Formats a number with three significant digits, or with all digits before the decimal point."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.9995 else f"{value:.3f}"
