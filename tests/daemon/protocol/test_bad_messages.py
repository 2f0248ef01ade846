"""Invalid messages: bytes, batches, numbers and packed launches that the client library never sends.

After every case a checked launch of another session still gives the right result.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto import launches
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.raw import KEEP, Execute, Raw, refused

pytestmark = pytest.mark.usefixtures("unharmed")


def test_the_first_message_is_an_attach(raw: Raw) -> None:
    for first in (b"", b"\xff\xff\xff", device_pb2.ExecuteRequest(batch=c.Batch(seq=1)).SerializeToString(), bytes(99)):
        stream = raw.execute(attach=False)
        stream.send(first)
        assert stream.ended().reason == Reason.MALFORMED_MESSAGE


def test_one_attachment_at_a_time(raw: Raw, stream: Execute) -> None:
    second = raw.execute(attach=False)
    second.attach(raw.token)
    assert second.ended().reason == Reason.HANDLE_IN_USE
    stream.attach(raw.token)  # a second attach on the stream itself is not a batch
    assert stream.protocol_error().reason == Reason.MALFORMED_MESSAGE
    assert stream.ask(c.Command(read=c.Read(buffer=KEEP, size=16))).read.data == bytes(16)


@pytest.mark.parametrize("junk", [b"\xff" * 20, b"\x12\xff\xff\xff\xff\x0f", b"junk", b"\x12\x05\x08"])
def test_junk_between_batches_changes_nothing(stream: Execute, junk: bytes) -> None:
    for _ in range(3):
        stream.send(junk)
        refusal = stream.protocol_error()
        assert refusal.reason == Reason.MALFORMED_MESSAGE and refusal.details["last_seq"] == str(stream.seq)
        assert stream.ask(c.Command(read=c.Read(buffer=KEEP, size=16))).read.data == bytes(16)


def test_numbers_of_batches(stream: Execute) -> None:
    fill = c.Command(fill=c.Fill(buffer=KEEP, size=16, pattern=b"\1"))
    for seq in (0, stream.seq + 2, 2**64 - 1):
        stream.batch(fill, seq=seq)
        refusal = stream.protocol_error()
        assert str(stream.seq + 1) in refusal.message, "the refusal names the next number"
    stream.batch(fill, seq=stream.seq)  # repeated: it has already been executed
    assert stream.ask(c.Command(read=c.Read(buffer=KEEP, size=16))).read.data == bytes(16)


def test_repeated_batches_use_no_window(raw: Raw, stream: Execute) -> None:
    """However many repeated batches there are: neither the window nor the end of the stream waits for their
    acknowledgement."""
    for _ in range(3 * raw.opened.limits.max_batches_in_flight):
        stream.batch(c.Command(flush=c.Flush()), seq=1)
    assert stream.ask(c.Command(read=c.Read(buffer=KEEP, size=16))).read.data == bytes(16)
    last = stream.seq
    stream.close()
    assert raw.execute().attached.last_seq == last


def test_a_batch_that_is_too_large(raw: Raw, stream: Execute) -> None:
    most = raw.opened.limits.max_batch_bytes
    stream.batch(c.Command(write=c.Write(buffer=KEEP, data=bytes(most))))
    refusal = stream.ended()
    assert refusal.reason == Reason.MESSAGE_TOO_LARGE and str(most) in refusal.message
    assert raw.read(KEEP, 16) == bytes(16)  # the session continues


def test_a_message_beyond_grpcs_own_limit(raw: Raw) -> None:
    command = c.LoadModule(module=5, kind=c.CODE_KIND_CUDA_CPP, code=bytes(33 << 20))
    with pytest.raises(grpc.RpcError) as caught:
        raw.call("LoadModule", command)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    command = c.LoadModule(module=5, kind=c.CODE_KIND_CUDA_CPP, code=bytes(raw.opened.limits.max_code_bytes + 1))
    assert refused(raw.call, "LoadModule", command).reason == Reason.MESSAGE_TOO_LARGE


# ---- packed launches ----


def record(function: int, buffer: int = KEEP, n: int = 1) -> bytes:
    """Returns a record of `add_one(buffer, n)`."""
    params = (0).to_bytes(8, "little") + n.to_bytes(4, "little")
    layout = launches.pack_layout([launches.LayoutEntry(0, 8, True), launches.LayoutEntry(8, 4)])
    fields = launches.Record(function, 0, (1, 1, 1), (1, 1, 1), 0, 0, 0, layout, (buffer,), params)
    return launches.pack(fields)


def counted(stream: Execute) -> int:
    data = stream.ask(c.Command(read=c.Read(buffer=KEEP, size=16))).read.data
    return int(np.frombuffer(data, np.int32)[0])


def test_truncated_records(raw: Raw, stream: Execute) -> None:
    function = raw.function(COMMON, "add_one")
    good = record(function)
    for length in range(1, len(good)):
        stream.batch(c.Command(launches=good[:length]))
        (failure,) = stream.failures()
        assert from_status(failure.status).reason == Reason.MALFORMED_MESSAGE, length
    stream.batch(c.Command(launches=good + good[:-8]))
    assert len(stream.failures()) == 1
    assert counted(stream) == 1  # the launch before the truncated one has run


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_garbage_in_records(raw: Raw, stream: Execute, data: st.DataObject) -> None:
    """Every field except the handle of the only function is random: no unintended kernel runs."""
    good = bytearray(record(1 << 40))
    for _ in range(data.draw(st.integers(0, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    junk = data.draw(st.one_of(st.just(bytes(good)), st.binary(max_size=300), st.binary(min_size=64, max_size=64)))
    stream.batch(c.Command(launches=junk))
    failures = stream.failures()
    assert bool(failures) == bool(junk)
    allowed = {Reason.MALFORMED_MESSAGE, Reason.INVALID_HANDLE, Reason.LAUNCH_INVALID, Reason.UNSUPPORTED}
    assert {from_status(failure.status).reason for failure in failures} <= allowed


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    flips=st.lists(st.tuples(st.integers(64, 95), st.integers(0, 255)), max_size=6),
    shared=st.integers(0, 2**32 - 1),
    flags=st.integers(0, 2**16 - 1),
    grid=st.tuples(*[st.sampled_from([0, 1, 2, 70_000, 2**32 - 1])] * 3),
    block=st.tuples(*[st.sampled_from([0, 1, 2, 1025, 2**16, 2**32 - 1])] * 3),
)
def test_a_real_kernel_with_a_wrong_record(
    function_of: Callable[[Raw], int],
    raw: Raw,
    stream: Execute,
    flips: list[tuple[int, int]],
    shared: int,
    flags: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
) -> None:
    """Geometry, flags, layout and handles are random; the parameters are right, so nothing is written."""
    made = record(function_of(raw), n=0)
    parts = next(launches.unpack(made))._replace(shared_mem=shared, flags=flags, grid=grid, block=block)
    bad = bytearray(launches.pack(parts))
    for at, value in flips:
        if at < len(bad) - 16:
            bad[at] = value
    stream.batch(c.Command(launches=bytes(bad)))
    stream.failures()
    assert counted(stream) == 0


@pytest.fixture
def function_of() -> Callable[[Raw], int]:
    """`add_one`, loaded once for a session."""
    made: dict[str, int] = {}

    def function(raw: Raw) -> int:
        if raw.token not in made:
            made[raw.token] = raw.function(COMMON, "add_one")
        return made[raw.token]

    return function


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(message=st.binary(max_size=400))
def test_any_bytes_on_execute(stream: Execute, message: bytes) -> None:
    """Any message is answered, and the stream continues."""
    request = device_pb2.ExecuteRequest()
    try:
        request.ParseFromString(message)
        if request.batch.seq == stream.seq + 1 or request.batch.seq in range(1, stream.seq + 1):
            return
    except DecodeError:
        pass
    stream.send(message)
    assert stream.protocol_error().reason == Reason.MALFORMED_MESSAGE
    assert stream.ask(c.Command(flush=c.Flush())).HasField("done")
