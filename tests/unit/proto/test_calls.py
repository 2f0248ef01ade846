"""The head of a call that is sent as frames."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto import calls
from hearth_proto.frames import FrameError

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=50)


@given(TEXT, st.lists(st.tuples(TEXT, TEXT), max_size=5))
def test_heads_round_trip(method: str, metadata: list[tuple[str, str]]) -> None:
    head = calls.pack_head(f"/{method}", metadata)
    assert calls.unpack_head(head) == (f"/{method}", tuple(metadata))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_refused(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        method, metadata = calls.unpack_head(data)
        assert calls.pack_head(method, metadata) == data


@pytest.mark.parametrize("method", ["/a\0b", "/" + "x" * calls.MAX_HEAD, "/\ud800"])
def test_invalid_heads_are_not_packed(method: str) -> None:
    with pytest.raises(FrameError):
        calls.pack_head(method, ())


@pytest.mark.parametrize("head", [b"", b"no slash", b"/m\0name", b"/\xff", b"/" + b"x" * calls.MAX_HEAD])
def test_invalid_heads_are_refused(head: bytes) -> None:
    with pytest.raises(FrameError):
        calls.unpack_head(head)
