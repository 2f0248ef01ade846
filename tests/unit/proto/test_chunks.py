"""Hand-encoded transfer messages, compared with the generated classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto import chunks
from hearth_proto.v1 import device_pb2


@given(st.binary(max_size=1000))
def test_uploads(data: bytes) -> None:
    head = device_pb2.UploadRequest(session_token="t", device=1, transfer=2)
    expected = device_pb2.UploadRequest(session_token="t", device=1, transfer=2, data=data)
    assert (
        device_pb2.UploadRequest.FromString(chunks.upload_request(head.SerializeToString(), memoryview(data)))
        == expected
    )


@given(st.integers(0, 2**64 - 1), st.binary(max_size=1000))
def test_downloads(offset: int, data: bytes) -> None:
    message = device_pb2.DownloadResponse(offset=offset, data=data).SerializeToString()
    got, view = chunks.download_response(message)
    assert (got, bytes(view)) == (offset, data)


def test_downloads_with_further_fields() -> None:
    offset, data = chunks.download_response(b"\x1a\x01x\x12\x02ab\x08\x07")
    assert (offset, bytes(data)) == (7, b"ab")


@pytest.mark.parametrize("message", [b"\x12\x05abc", b"\x08\x80", b"\x1a\x05", b"\x12"])
def test_broken_downloads(message: bytes) -> None:
    with pytest.raises(ValueError):
        chunks.download_response(message)


@given(st.binary(max_size=1000), st.booleans())
def test_data_of_uploads(data: bytes, first: bool) -> None:
    message = device_pb2.UploadRequest(data=data)
    if first:
        message.session_token, message.transfer = "t", 2
    assert bytes(chunks.upload_data(message.SerializeToString())) == data


@pytest.mark.parametrize("message", [b"\x22\x05abc", b"\x22\x80", b"\xff"])
def test_broken_uploads(message: bytes) -> None:
    with pytest.raises(ValueError):
        chunks.upload_data(message)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=1000))
def test_heads_of_downloads(offset: int, data: bytes) -> None:
    message = chunks.download_head(offset, len(data)) + data
    assert device_pb2.DownloadResponse.FromString(message) == device_pb2.DownloadResponse(offset=offset, data=data)
