"""Rows that commands request, and the pieces into which chunks of a transfer are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.layouts import RowLayout
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.transfers.layout import check_apart, check_pitch, check_rows, pieces


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.lists(st.integers(1, 30), max_size=12))
def test_chunks_that_end_anywhere_put_every_byte_in_its_place(
    width: int, count: int, gap: int, cuts: list[int]
) -> None:
    rows = RowLayout(0, width, count, width + gap)
    data = bytes(range(256)) * 2
    memory = bytearray(rows.extent)
    written = [0] * rows.extent
    start = 0
    for cut in [*cuts, rows.size]:
        size = min(cut, rows.size - start)
        chunk = data[start : start + size]
        row_pieces = list(pieces(rows, start, size))
        assert (
            len(row_pieces) <= (1 if rows.dense else 3)
            and sum(piece.width * piece.rows for piece in row_pieces) == size
        )
        for piece in row_pieces:
            assert piece.rows == 1 or (piece.width, piece.pitch) == (width, rows.pitch)
            for row in range(piece.rows):
                at, source_start = piece.device + row * piece.pitch, piece.host + row * piece.width
                memory[at : at + piece.width] = chunk[source_start : source_start + piece.width]
                for byte in range(at, at + piece.width):
                    written[byte] += 1
        start += size
    assert max(written) == 1
    contents = b"".join(memory[row * rows.pitch : row * rows.pitch + width] for row in range(count))
    assert contents == data[: rows.size]


def test_empty_layouts_have_no_pieces() -> None:
    assert list(pieces(RowLayout(0, 0), 0, 0)) == [] == list(pieces(RowLayout(0, 4, 3, 8), 5, 0))
    assert list(pieces(RowLayout(0, 4, 3, 4), 5, 3)) == [(0, 5, 3, 1, 0)]


def test_rows_of_a_command() -> None:
    assert check_rows("write", 7, 12, 4, 3, 10) == RowLayout(7, 4, 3, 10)
    assert check_rows("write", 7, 4, 4, 1, 0) == RowLayout(7, 4)
    assert check_rows("write", 7, 0, 0, 0, 0) == check_rows("write", 7, 0, 9, 0, 0) == RowLayout(7, 0)
    for size, width, rows, pitch in ((11, 4, 3, 10), (12, 4, 3, 3), (12, 4, 3, 0), (1, 2**63, 2, 2**63), (5, 0, 0, 0)):
        with pytest.raises(Refusal) as caught:
            check_rows("write", 0, size, width, rows, pitch)
        assert caught.value.reason is Reason.INVALID_ARGUMENT and caught.value.fix
        assert str(width) in caught.value.message
    check_pitch("copy", 2**64 - 1, 1, 0)
    with pytest.raises(Refusal, match="run into each other"):
        check_pitch("copy", 9, 2, 8)


def test_both_ranges_of_an_overlap_are_named() -> None:
    check_apart(3, RowLayout(0, 10), RowLayout(10, 10))
    check_apart(3, RowLayout(0, 4, 5, 8), RowLayout(4, 4, 5, 8))
    with pytest.raises(Refusal) as caught:
        check_apart(3, RowLayout(5, 10), RowLayout(0, 10))
    assert "[0..10) and [5..15)" in caught.value.message
    assert (caught.value.details["source"], caught.value.details["destination"]) == ("[0..10)", "[5..15)")
