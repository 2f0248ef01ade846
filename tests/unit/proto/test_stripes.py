"""Division into chunks, frames of stripes, and the pipes that carry them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto import frames
from hearth_proto.frames import HEADER, FrameError, Kind
from hearth_proto.pipes import Pipe, PipeEnded, PipeStalled
from hearth_proto.stripes import HEAD, OFFSET, StripeCut, announce, chunk_head, credit, read_head, taken

KINDS = frozenset({Kind.STRIPE, Kind.TAKEN, Kind.CREDIT, Kind.UPLOAD, Kind.ABORT, Kind.LIVE})


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 24), st.data())
def test_a_cut_covers_every_byte_once(size: int, chunk: int, data: st.DataObject) -> None:
    cut = StripeCut(size, chunk)
    assert cut.span(0)[0] == 0 and sum(cut.span(cut.count - 1)) == size
    index = data.draw(st.integers(0, cut.count - 1))
    offset, length = cut.span(index)
    assert 0 < length <= chunk and cut.index(offset, length) == index
    if index:
        assert sum(cut.span(index - 1)) == offset


@given(st.integers(0, 1000), st.integers(1, 100), st.integers(-200, 2000), st.integers(-10, 200))
def test_invalid_chunks_are_refused(size: int, chunk: int, offset: int, length: int) -> None:
    cut = StripeCut(size, chunk)
    spans = [cut.span(index) for index in range(cut.count)]
    if (offset, length) in spans:
        assert cut.span(cut.index(offset, length)) == (offset, length)
    else:
        with pytest.raises(ValueError, match="not a chunk"):
            cut.index(offset, length)


def test_frames_round_trip() -> None:
    for frame, kind, flags, length in (
        (chunk_head(7, 1 << 40, 100) + b"x" * 100, Kind.STRIPE, 0, 108),
        (taken(7, 5), Kind.TAKEN, 0, 8),
        (credit(7, 3), Kind.CREDIT, 3, 0),
        (announce(Kind.UPLOAD, 7, 1 << 20), Kind.UPLOAD, 0, 8),
    ):
        head = read_head(frame[:HEAD], 100, KINDS)
        assert head == (length, kind, flags, 7) and len(frame) == HEAD + length
        assert frames.FrameReader().feed(frame)[0].kind == kind  # the general reader accepts the frame too


@given(st.binary(min_size=HEAD, max_size=HEAD))
def test_any_header_is_sound_or_refused(head: bytes) -> None:
    try:
        read = read_head(head, 1 << 20, KINDS)
    except FrameError:
        return
    assert read.kind in KINDS and read.length <= OFFSET + (1 << 20)


@given(st.integers(0, 1 << 32))
def test_a_chunk_too_long_is_refused(length: int) -> None:
    head = HEADER.pack(length & 0xFFFFFFFF, Kind.STRIPE, 0, 0, 1)
    if OFFSET < length & 0xFFFFFFFF <= OFFSET + 4096:
        assert read_head(head, 4096, KINDS).length == length & 0xFFFFFFFF
    else:
        with pytest.raises(FrameError):
            read_head(head, 4096, KINDS)


# ---- pipes ----


@pytest.fixture
def ends() -> Iterator[tuple[Pipe, socket.socket]]:
    ours, theirs = socket.socketpair()
    pipe = Pipe(ours, stall=0.2)
    yield pipe, theirs
    pipe.close()
    theirs.close()


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=8), st.lists(st.integers(1, 60_000), min_size=1))
def test_bytes_come_whole_whatever_the_cuts(parts: list[int], cuts: list[int]) -> None:
    data = [os.urandom(size) for size in parts]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe, other = Pipe(ours, 5.0), Pipe(theirs, 5.0)
        sender = threading.Thread(target=pipe.send, args=(data,))
        sender.start()
        got, whole, index = b"", b"".join(data), 0
        while len(got) < len(whole):
            piece = bytearray(min(cuts[index % len(cuts)], len(whole) - len(got)))
            other.receive(memoryview(piece))
            got += piece
            index += 1
        sender.join()
        assert got == whole


def test_close_wakes_the_receiver(ends: tuple[Pipe, socket.socket]) -> None:
    pipe, _ = ends
    failures: list[BaseException] = []

    def receive() -> None:
        try:
            pipe.receive(memoryview(bytearray(10)), lambda: True)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    pipe.shutdown()
    thread.join(5)
    assert isinstance(failures[0], PipeEnded)


def test_stalled_peer_raises_pipe_stalled(ends: tuple[Pipe, socket.socket]) -> None:
    pipe, theirs = ends
    with pytest.raises(PipeStalled):
        pipe.receive(memoryview(bytearray(10)))
    asked: list[int] = []

    def patient() -> bool:
        asked.append(1)
        if len(asked) == 2:
            theirs.sendall(b"0123")
        return True

    with pytest.raises(PipeStalled):  # `patient` applies before the first byte only, not in the middle
        pipe.receive(memoryview(bytearray(10)), patient)
    assert len(asked) == 2
    with pytest.raises(PipeStalled):
        pipe.send([b"x" * (8 << 20)])
