"""Frames between fronts, for pieces of any size and any content."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.front.peers.frames import HEADER, MAX_FRAME, PeerFrameError, PeerFrameReader, encode

bodies = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=20), max_size=5
)


@given(st.lists(bodies, max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_frames_cut_at_any_byte(sent: list[dict[str, Any]], cuts: list[int]) -> None:
    data = b"".join(map(encode, sent))
    reader, got = PeerFrameReader(), []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        got += reader.feed(data[begin:end])
    assert got == sent


@given(st.lists(bodies, min_size=1, max_size=3), st.binary(max_size=60))
def test_garbage_raises_only_frame_errors(sent: list[dict[str, Any]], garbage: bytes) -> None:
    reader = PeerFrameReader(1000)
    assert reader.feed(b"".join(map(encode, sent))) == sent
    try:
        more = reader.feed(garbage)
    except PeerFrameError as error:
        assert len(str(error)) < 300
    else:
        assert all(isinstance(body, dict) for body in more)


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"1", b"null", b'"x"', b"{", b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1}x', b"\xff\xfe{}",
     b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"9" * 5000 + b"}"],
    ids=lambda payload: repr(payload[:12]),
)  # fmt: skip
def test_payloads_that_are_not_objects_are_refused(payload: bytes) -> None:
    with pytest.raises(PeerFrameError):
        PeerFrameReader().feed(HEADER.pack(len(payload)) + payload)


def test_sizes() -> None:
    assert len(encode({"a": "x" * (MAX_FRAME - 8)})) == MAX_FRAME + HEADER.size
    with pytest.raises(PeerFrameError, match=str(MAX_FRAME)):
        encode({"a": "x" * (MAX_FRAME - 7)})
    with pytest.raises(PeerFrameError, match="announced"):
        PeerFrameReader().feed(HEADER.pack(MAX_FRAME + 1))
    with pytest.raises(PeerFrameError):
        PeerFrameReader().feed(b"GET / HTTP/1.1\r\n\r\n")
    small = PeerFrameReader(10)
    with pytest.raises(PeerFrameError, match="the maximum is 10"):
        small.feed(encode({"a": "x" * 20}))
    small = PeerFrameReader(10)
    small.max_bytes = 100
    assert small.feed(encode({"a": "x" * 20})) == [{"a": "x" * 20}]


def test_values_without_json_form_are_not_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"a": float("nan")})
    assert json.loads(encode({"ä": 1})[HEADER.size :]) == {"ä": 1}
