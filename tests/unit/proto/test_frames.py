"""Frames survive any cut of the byte stream, and invalid bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.frames import HEADER, MAX_PAYLOAD, Frame, FrameError, FrameReader, Kind, encode, header

frames = st.builds(
    Frame,
    kind=st.sampled_from([int(kind) for kind in Kind]),
    flags=st.integers(0, 2**16 - 1),
    channel=st.integers(0, 2**32 - 1),
    id=st.integers(0, 2**64 - 1),
    payload=st.binary(max_size=200),
)


def encoded(frame: Frame) -> bytes:
    return encode(frame.kind, frame.payload, channel=frame.channel, id=frame.id, flags=frame.flags)


@given(st.lists(frames, max_size=20), st.lists(st.integers(1, 400), min_size=1), st.booleans())
def test_any_cut_gives_the_same_frames(sent: list[Frame], cuts: list[int], as_bytes: bool) -> None:
    stream = b"".join(encoded(frame) for frame in sent)
    reader = FrameReader()
    received: list[Frame] = []
    position = 0
    turn = 0
    while position < len(stream):
        piece = stream[position : position + cuts[turn % len(cuts)]]
        received += reader.feed(piece if as_bytes else bytearray(piece))
        position += len(piece)
        turn += 1
    assert received == sent
    assert reader.pending == 0


@given(frames, st.integers(1, 400))
def test_an_unfinished_frame_is_buffered(frame: Frame, missing: int) -> None:
    stream = encoded(frame)
    missing = min(missing, len(stream))
    reader = FrameReader()
    assert reader.feed(stream[:-missing]) == []
    assert reader.feed(stream[-missing:]) == [frame]


def test_a_length_beyond_the_limit_ends_the_link() -> None:
    reader = FrameReader(max_payload=100)
    with pytest.raises(FrameError, match="101 bytes"):
        reader.feed(HEADER.pack(101, Kind.BATCH, 0, 0, 0))


def test_a_payload_that_no_reader_takes_is_not_sent() -> None:
    with pytest.raises(FrameError):
        header(Kind.BATCH, MAX_PAYLOAD + 1)


@given(st.binary(min_size=HEADER.size, max_size=300))
def test_garbage_never_raises_anything_else(data: bytes) -> None:
    reader = FrameReader(max_payload=1000)
    try:
        for frame in reader.feed(data):
            assert len(frame.payload) <= 1000
    except FrameError:
        pass
