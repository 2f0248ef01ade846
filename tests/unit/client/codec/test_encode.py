"""Messages written and read without protobuf, against the generated classes."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from hearth.codec import decode, encode
from hearth_proto import later
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2, status_pb2

U64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
U32 = st.integers(0, 2**32 - 1)


def command(made: encode.Plain) -> commands_pb2.Command:
    read = commands_pb2.Command.FromString(made.SerializeToString())
    assert made.stream == read.stream
    return read


# ---- written ----


@given(U64, U64, U64, U64, st.binary(max_size=300))
def test_commands_of_memory(stream: int, buffer: int, offset: int, size: int, data: bytes) -> None:
    Command, c = commands_pb2.Command, commands_pb2
    assert command(encode.allocate(stream, buffer, size)) == Command(
        stream=stream, allocate=c.Allocate(buffer=buffer, size=size)
    )
    assert command(encode.write(stream, buffer, offset, memoryview(data))) == Command(
        stream=stream, write=c.Write(buffer=buffer, offset=offset, data=data)
    )
    assert command(encode.read(stream, buffer, offset, size)) == Command(
        stream=stream, read=c.Read(buffer=buffer, offset=offset, size=size)
    )
    assert command(encode.fill(stream, buffer, offset, size, data)) == Command(
        stream=stream, fill=c.Fill(buffer=buffer, offset=offset, size=size, pattern=data)
    )


@given(st.lists(U64))
def test_frees(buffers: list[int]) -> None:
    assert command(encode.free(buffers)) == commands_pb2.Command(free=commands_pb2.Free(buffers=buffers))


@given(U64, U64, U64, st.binary(), st.text(), st.sampled_from(["CUDA_CPP", "PTX", "CUBIN", "FATBIN"]))
def test_commands_of_modules(stream: int, module: int, handle: int, code: bytes, name: str, kind: str) -> None:
    Command, c = commands_pb2.Command, commands_pb2
    number = getattr(encode, kind)
    assert number == getattr(c, f"CODE_KIND_{kind}")
    assert command(encode.load_module(stream, module, encode.code(number, code))) == Command(
        stream=stream, load_module=c.LoadModule(module=module, kind=f"CODE_KIND_{kind}", code=code)
    )
    assert command(encode.get_function(stream, handle, module, name)) == Command(
        stream=stream, get_function=c.GetFunction(function=handle, module=module, name=name)
    )
    assert command(encode.unload_module(module)) == Command(unload_module=c.UnloadModule(module=module))


def test_constants() -> None:
    c = commands_pb2
    assert commands_pb2.Command(sync=c.Sync()).SerializeToString() == encode.SYNC
    assert commands_pb2.Command(sync=c.Sync(all_streams=True)).SerializeToString() == encode.SYNC_ALL
    shared, dedicated = node_pb2.ISOLATION_SHARED, node_pb2.ISOLATION_DEDICATED
    assert {None: node_pb2.ISOLATION_UNSPECIFIED, False: shared, True: dedicated} == encode.ISOLATION


@pytest.mark.parametrize("value", [-1, 2**64])
def test_values_out_of_range_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="range"):
        encode.open_session((1, 1), "", "", 0, value)


@given(U32, U32, st.text(), st.text(), st.sampled_from([None, False, True]), U64, st.text())
def test_requests_of_sessions(
    least: int, most: int, version: str, name: str, own: bool | None, limit: int, process: str
) -> None:
    made = encode.open_session((least, most), version, name, encode.ISOLATION[own], limit, process)
    assert node_pb2.OpenSessionRequest.FromString(made.SerializeToString()) == node_pb2.OpenSessionRequest(
        protocol=node_pb2.VersionRange(min=least, max=most),
        client_version=version,
        client_name=name,
        isolation=encode.ISOLATION[own],  # type: ignore[arg-type]
        launch_timeout_ns=limit,
        client_process=process,
    )
    token = encode.of_token(name).SerializeToString()
    assert node_pb2.CloseSessionRequest.FromString(token).session_token == name
    assert node_pb2.RenewSessionRequest.FromString(token).session_token == name


@given(st.text(), U32, U64, st.booleans(), U64, U64)
def test_attach(token: str, device: int, acked: int, resume: bool, generation: int, received: int) -> None:
    data = encode.attach(token, device, acked, resume=resume, generation=generation, received=received)
    attach = device_pb2.Attach(
        session_token=token, device=device, last_seq_acked=acked, resumable=True, resume=resume, generation=generation,
        received=received,
    )  # fmt: skip
    assert device_pb2.ExecuteRequest.FromString(data) == device_pb2.ExecuteRequest(attach=attach)


@given(U64, st.dictionaries(U64, U64, max_size=4))
def test_received(responses: int, transfers: dict[int, int]) -> None:
    told = [device_pb2.TransferProgress(transfer=transfer, bytes=size) for transfer, size in transfers.items()]
    message = device_pb2.Received(responses=responses, transfers=told)
    data = encode.received(responses, transfers)
    assert device_pb2.ExecuteRequest.FromString(data) == device_pb2.ExecuteRequest(received=message)


# ---- read ----


def test_an_opened_session() -> None:
    devices = [
        node_pb2.Device(ordinal=n, properties=node_pb2.DeviceProperties(name=f"gpu{n}", warp_size=32)) for n in (0, 3)
    ]
    message = node_pb2.OpenSessionResponse(
        session_id="id", session_token="secret", protocol=1, server_version="9", lease_ns=30 * 10**9, node="höst",
        limits=node_pb2.SessionLimits(max_inline_bytes=1, max_chunk_bytes=2, max_batch_bytes=300, max_code_bytes=5),
        devices=devices, features=["a", "b"], tenant="t", isolation=node_pb2.ISOLATION_DEDICATED,
    )  # fmt: skip
    opened = decode.Opened.FromString(message.SerializeToString())
    assert isinstance(opened, decode.PartlyRead)
    for name in ("session_id", "session_token", "lease_ns", "protocol", "node", "tenant", "isolation", "features"):
        assert getattr(opened, name) == getattr(message, name), name
    for name in node_pb2.SessionLimits.DESCRIPTOR.fields_by_name:
        assert getattr(opened.limits, name) == getattr(message.limits, name), name
    assert [device.ordinal for device in opened.devices] == [0, 3]
    assert [device.properties for device in opened.devices] == [device.properties for device in devices]
    with pytest.raises(AttributeError):
        _ = opened.nothing_like_it


def test_an_empty_answer_opens_as_the_generated_class_does() -> None:
    opened, message = decode.Opened.FromString(b""), node_pb2.OpenSessionResponse()
    assert (opened.session_id, opened.session_token, opened.lease_ns) == ("", "", 0)
    assert opened.devices == list(message.devices)
    assert opened.limits.max_code_bytes == 0


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05ab", b"\xff" * 12, b"\x0a\x02\xff\xff"])
def test_invalid_answers_raise_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode.Opened.FromString(data)
    with pytest.raises(DecodeError):
        decode.response(data)


def test_unknown_wire_types_are_left_to_protobuf() -> None:
    data = node_pb2.OpenSessionResponse(session_id="x").SerializeToString() + b"\xf9\x07" + bytes(8)  # 64 bits
    assert decode.Opened.FromString(data) == node_pb2.OpenSessionResponse.FromString(data)


OFFER = device_pb2.LaneOffer(path="/run/lane", ticket=b"\xff\0", valid_ns=7)


@pytest.mark.parametrize("lane", [None, OFFER])
def test_attached(lane: device_pb2.LaneOffer | None) -> None:
    message = device_pb2.Attached(
        generation=3, last_seq=500, max_batch_bytes=1 << 20, max_batches_in_flight=8, max_unacked_bytes=1 << 25,
        resumed=True, lane=lane,
    )  # fmt: skip
    response = decode.response(device_pb2.ExecuteResponse(attached=message).SerializeToString())
    assert not isinstance(response, device_pb2.ExecuteResponse)
    assert response.WhichOneof("kind") == "attached"
    for name in set(device_pb2.Attached.DESCRIPTOR.fields_by_name) - {"lane", "durable"}:
        assert getattr(response.attached, name) == getattr(message, name), name
    assert list(response.attached.durable) == []
    for name in ("path", "ticket", "valid_ns"):
        assert getattr(response.attached.lane, name) == getattr(message.lane, name), name


@pytest.mark.parametrize(
    "message",
    [
        device_pb2.ExecuteResponse(attached=device_pb2.Attached(generation=1, durable=[4, 5])),
        device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=9)),
        device_pb2.ExecuteResponse(event=device_pb2.Event(draining=device_pb2.Draining())),
        device_pb2.ExecuteResponse(),
    ],
)
def test_other_responses_are_left_to_protobuf(message: device_pb2.ExecuteResponse) -> None:
    assert decode.response(message.SerializeToString()) == message


@given(st.integers(1, 2**64 - 1), st.binary(min_size=1, max_size=300), U64)
def test_a_read_is_answered(request: int, data: bytes, size: int) -> None:
    result = commands_pb2.Result(request=request, read=commands_pb2.ReadResult(data=data, size=size))
    answer = decode.read_answer(device_pb2.ExecuteResponse(result=result).SerializeToString())
    assert answer is not None
    assert (answer.request, bytes(answer.read.data), answer.read.size) == (request, data, size)
    assert (answer.WhichOneof("kind"), answer.HasField("error")) == ("read", False)


@given(st.binary(max_size=12), st.integers(0, 20), st.integers(0, 255))
def test_fast_decoder_agrees_with_protobuf(more: bytes, at: int, byte: int) -> None:
    result = commands_pb2.Result(request=300, read=commands_pb2.ReadResult(data=b"0123456", size=7))
    data = bytearray(device_pb2.ExecuteResponse(result=result).SerializeToString() + more)
    if at < len(data):
        data[at] = byte
    answer = decode.read_answer(bytes(data))
    if answer is not None:
        there = device_pb2.ExecuteResponse.FromString(bytes(data)).result
        assert (answer.request, bytes(answer.read.data), answer.read.size) == (
            there.request, there.read.data, there.read.size
        )  # fmt: skip


@pytest.mark.parametrize(
    "result",
    [
        commands_pb2.Result(request=1, error=status_pb2.Status(code=5)),
        commands_pb2.Result(request=1, done=commands_pb2.Done()),
        commands_pb2.Result(request=1, read=commands_pb2.ReadResult(size=7)),
        commands_pb2.Result(request=1, error=status_pb2.Status(), read=commands_pb2.ReadResult(data=b"x")),
        commands_pb2.Result(request=1, event=commands_pb2.EventResult(done=True)),
    ],
)
def test_other_results_are_left_to_protobuf(result: commands_pb2.Result) -> None:
    data = device_pb2.ExecuteResponse(result=result).SerializeToString()
    assert decode.read_answer(data) is None
    assert all(decode.read_answer(data[:size]) is None for size in range(len(data)))


def test_done() -> None:
    assert decode.DONE.WhichOneof("kind") == "done" and not decode.DONE.HasField("error")


# ---- later ----


def test_generated_modules_are_imported_at_their_first_use() -> None:
    code = (
        "import sys; from hearth_proto.later import commands_pb2, node_pb2; import hearth.codec.decode;"
        "assert not any(name.startswith('google') for name in sys.modules);"
        "made = commands_pb2.Command(stream=3);"
        "from hearth_proto.v1 import commands_pb2 as real;"
        "assert type(made) is real.Command and commands_pb2.Command is real.Command"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_that_use_one_first_find_the_same() -> None:
    stands: Any = type(later.commands_pb2)
    fresh = stands("hearth_proto.v1.commands_pb2")
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(fresh.Command)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [commands_pb2.Command] * 8
