"""Rows in a buffer: checks of rows, and the division of a transfer's chunks into rows.

On the host and in messages, rows are dense. In the buffer, each row starts `pitch` bytes after the start of the
previous row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hearth_proto.layouts import RowLayout, overlap
from hearth_proto.reasons import Reason, Refusal


class Piece(NamedTuple):
    """Part of a copy that is one driver call: `rows` rows of `width` bytes.

    `host` is the offset on the host's side, `device` the offset from the address of the first row; all in bytes.
    """

    host: int
    device: int
    width: int
    rows: int
    pitch: int


def check_rows(subject: str, offset: int, size: int, width: int, rows: int, pitch: int) -> RowLayout:
    """Returns the rows that a command refers to.

    Raises Refusal(INVALID_ARGUMENT) if the numbers contradict each other.
    """
    if width * rows != size:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{subject}: {rows} rows of {width} bytes are {width * rows} bytes, the command's size is {size}",
            fix="size must be width x rows",
            details={"size": size, "width": width, "rows": rows},
        )
    check_pitch(subject, width, rows, pitch)
    return RowLayout(offset, width, rows, pitch) if rows > 1 and size else RowLayout(offset, size)


def check_pitch(subject: str, width: int, rows: int, pitch: int) -> None:
    """Raises Refusal(INVALID_ARGUMENT) if the rows would overlap."""
    if rows > 1 and pitch < width:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{subject}: rows of {width} bytes every {pitch} bytes run into each other",
            fix="the pitch must be at least the width",
            details={"width": width, "rows": rows, "pitch": pitch},
        )


def check_apart(buffer: int, destination: RowLayout, source: RowLayout) -> None:
    """Raises Refusal(INVALID_ARGUMENT) if a copy within one buffer would overwrite its own source."""
    if overlap(destination, source):
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"copy within buffer {buffer}: bytes {source} and {destination} overlap",
            fix="copy through a third buffer",
            details={
                "buffer": buffer,
                "source": f"[{source.offset}..{source.end})",
                "destination": f"[{destination.offset}..{destination.end})",
            },
        )


def pieces(rows: RowLayout, start: int, size: int) -> Iterator[Piece]:
    """Divides `size` bytes of the rows, starting at byte `start`, into pieces that are one driver call each.

    Yields the rest of a row, whole rows, and the beginning of a row; a single piece if the rows are dense.
    """
    if not size:
        return
    if rows.dense:
        yield Piece(0, start, size, 1, 0)
        return
    width, pitch = rows.width, rows.pitch
    row, column = divmod(start, width)
    done = 0
    if column:
        done = min(width - column, size)
        yield Piece(0, row * pitch + column, done, 1, 0)
        row += 1
    full_rows, remainder = divmod(size - done, width)
    if full_rows:
        yield Piece(done, row * pitch, width, full_rows, pitch)
        done += full_rows * width
        row += full_rows
    if remainder:
        yield Piece(done, row * pitch, remainder, 1, 0)
