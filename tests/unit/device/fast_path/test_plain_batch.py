"""The direct decoding of protobuf messages and the generated classes agree."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.chunks import varint
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.fast_path import plain_batch

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))


def read(data: bytes, seq: int) -> tuple[bytes, int, int, bool] | None:
    """Returns the decoded batch after checking that the generated classes decode the same."""
    plain = plain_batch.read(data, seq)
    if plain is None:
        return None
    request = plain_batch.number(plain.request)
    batch = device_pb2.ExecuteRequest.FromString(data).batch
    *launches, sync = batch.commands
    assert [batch.seq, *((each.WhichOneof("kind"), each.request, each.stream) for each in launches)] == [
        seq,
        *[("launches", 0, 0)] * bool(plain.records),
    ]
    assert b"".join(each.launches for each in launches) == plain.records
    assert sync.WhichOneof("kind") == "sync"
    assert (sync.request, sync.stream, sync.sync.all_streams) == (request, plain.stream, plain.all_streams)
    done = device_pb2.ExecuteResponse(result=c.Result(request=request, done=c.Done()))
    assert plain_batch.done(plain.request) == done.SerializeToString()
    return plain.records, request, plain.stream, plain.all_streams


@given(NUMBERS, st.binary(max_size=20000), NUMBERS, st.integers(0, 300), st.booleans())
def test_plain_batches_of_clients_are_decoded(seq: int, records: bytes, request: int, stream: int, every: bool) -> None:
    launches = [c.Command(launches=records)] if records else []
    sync = c.Command(request=request, stream=stream, sync=c.Sync(all_streams=every))
    data = device_pb2.ExecuteRequest(batch=c.Batch(seq=seq, commands=[*launches, sync])).SerializeToString()
    found = read(data, seq)
    if 0 < request < 1 << 63 and 0 < seq < 1 << 63 and stream < 128 and len(data) < 1 << 14:
        assert found == (records, request, stream, every)
    assert plain_batch.read(data, seq + 1) is None
    assert all(plain_batch.read(data[:size], seq) is None for size in range(min(len(data), 40)))


@given(st.data())
def test_decoded_batches_agree_with_protobuf(data: st.DataObject) -> None:
    """Decodes messages that are not, or almost, plain batches."""
    commands = data.draw(st.lists(st.sampled_from(COMMANDS), max_size=3))
    message = bytearray(device_pb2.ExecuteRequest(batch=c.Batch(seq=5, commands=commands)).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        if message:
            place = data.draw(st.integers(0, len(message) - 1))
            message[place] = data.draw(st.sampled_from([0, 1, 2, 3, 8, 0x10, 0x12, 0x1A, 0x7F, 0x80, 0x81, 0xC2, 0xFF]))
    read(bytes(message), 5)


@given(st.binary(max_size=60), NUMBERS)
def test_other_batches_are_not_decoded(data: bytes, seq: int) -> None:
    read(data, seq)
    copy(data, seq)


# ---- a copy alone ----


def copy(data: bytes, seq: int) -> c.Command | None:
    """Returns the copy that is found after checking that the generated classes find the same, unless they refuse the
    whole message."""
    found = plain_batch.lone_copy(data, seq)
    if found is None:
        return None
    kind = found.kind
    try:
        command = c.Command.FromString(found.data)
    except DecodeError:
        with pytest.raises(DecodeError):
            device_pb2.ExecuteRequest.FromString(data)
        return None
    batch = device_pb2.ExecuteRequest.FromString(data).batch
    assert batch.seq == seq and list(batch.commands) == [command] and kind in ("write", "read")
    if found.request:
        number = plain_batch.number(found.request)
        assert number and found.data == b"\x08" + found.request + found.body
        assert c.Command.FromString(found.body).request in (0, command.request)
        assert c.Command.FromString(found.body).request or command.request == number
    return command if command.WhichOneof("kind") == kind else None


COPIES = st.one_of(
    st.builds(c.Write, buffer=NUMBERS, offset=NUMBERS, data=st.binary(max_size=200)),
    st.builds(c.Write, buffer=NUMBERS, size=NUMBERS, shared=st.builds(c.Shared, segment=NUMBERS, offset=NUMBERS)),
    st.builds(c.Read, buffer=NUMBERS, size=NUMBERS, rows=st.builds(c.Rows, width=NUMBERS, rows=NUMBERS)),
    st.builds(c.Read, buffer=NUMBERS, size=NUMBERS, shared=st.builds(c.Shared, segment=NUMBERS, offset=NUMBERS)),
)


@given(NUMBERS, NUMBERS, NUMBERS, COPIES)
def test_a_copy_alone_is_found(seq: int, request: int, stream: int, what: c.Write | c.Read) -> None:
    kind = "write" if isinstance(what, c.Write) else "read"
    command = c.Command(request=request, stream=stream, **{kind: what})  # type: ignore[arg-type]
    data = device_pb2.ExecuteRequest(batch=c.Batch(seq=seq, commands=[command])).SerializeToString()
    found = copy(data, seq)
    if 0 < seq < 1 << 63:
        assert found == command
        asked = plain_batch.lone_copy(data, seq)
        assert asked is not None and bool(asked.request) == (0 < request < 1 << 63)
    assert plain_batch.lone_copy(data, seq + 1) is None
    assert all(plain_batch.lone_copy(data[:size], seq) is None for size in range(min(len(data), 40)))


@given(st.data())
def test_decoded_copies_agree_with_protobuf(data: st.DataObject) -> None:
    commands = data.draw(st.lists(st.one_of(st.sampled_from(COMMANDS), COPIES.map(_command)), min_size=1, max_size=2))
    message = bytearray(device_pb2.ExecuteRequest(batch=c.Batch(seq=5, commands=commands)).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(message) - 1))
        message[place] = data.draw(st.sampled_from([0, 1, 2, 3, 8, 0x10, 0x12, 0x1A, 0x32, 0x3A, 0x7F, 0x80, 0xFF]))
    copy(bytes(message), 5)


@given(
    st.integers(1, (1 << 63) - 1), st.sampled_from([c.Result(done=c.Done()), c.Result(read=c.ReadResult(size=1 << 62))])
)
def test_encoded_answers_equal_those_of_protobuf(request: int, result: c.Result) -> None:
    written = c.Command(request=request).SerializeToString()[1:]
    rest = result.SerializeToString()
    whole = c.Result(request=request)
    whole.MergeFrom(result)
    assert plain_batch.answered(written, rest) == device_pb2.ExecuteResponse(result=whole).SerializeToString()
    with pytest.raises(ValueError, match="127"):
        plain_batch.answered(written, bytes(127))


@given(st.integers(1, (1 << 64) - 1), st.one_of(st.binary(min_size=1, max_size=300), st.integers(1, 70_000).map(bytes)))
def test_encoded_read_answers_equal_those_of_protobuf(request: int, data: bytes) -> None:
    result = c.Result(request=request, read=c.ReadResult(data=data, size=len(data)))
    expected = device_pb2.ExecuteResponse(result=result).SerializeToString()
    written = varint(request)
    assert plain_batch.read_answer(written, data) == plain_batch.read_answer(written, memoryview(data)) == expected


@given(NUMBERS, st.booleans())
def test_a_sync_is_answered_under_its_number(request: int, every: bool) -> None:
    plain = plain_batch.only_sync(varint(request), 7, every)
    assert (plain.records, plain.stream, plain.all_streams) == (b"", 7, every)
    assert plain_batch.number(plain.request) == request


@given(
    st.binary(max_size=20_000), st.lists(st.sampled_from([c.Command(sync=c.Sync()), c.Command(stream=3)]), max_size=1)
)
def test_batches_of_launches_alone_are_recognized(records: bytes, more: list[c.Command]) -> None:
    commands = [c.Command(launches=records), *more]
    data = device_pb2.ExecuteRequest(batch=c.Batch(seq=5, commands=commands)).SerializeToString()
    if len(data) < 1 << 14:
        assert plain_batch.only_launches(data, 5) == (not more)
    else:
        assert not plain_batch.only_launches(data, 5)
    assert not plain_batch.only_launches(data, 6) and not plain_batch.only_launches(data[:-1], 5)


def _command(what: c.Write | c.Read) -> c.Command:
    return c.Command(write=what) if isinstance(what, c.Write) else c.Command(read=what)


COMMANDS: list[Any] = [
    c.Command(launches=b"\x12\x02\x08\x01" * 4),
    c.Command(launches=b""),
    c.Command(request=3, launches=b"12345678"),
    c.Command(sync=c.Sync()),
    c.Command(request=7, sync=c.Sync()),
    c.Command(request=300, stream=9, sync=c.Sync(all_streams=True)),
    c.Command(request=7, flush=c.Flush()),
    c.Command(request=7, stream=2, query_event=c.QueryEvent(event=1)),
    c.Command(),
]
