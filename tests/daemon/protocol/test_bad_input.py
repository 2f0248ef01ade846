"""Messages that the client library never sends: refused by name, without effect on other sessions.

After every case a checked launch of another session still gives the right result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hearth_proto import PROTOCOL_MAX
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, node_pb2
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.raw import KEEP, TIMEOUT, Execute, Raw, refused

Build = Callable[[int], c.Command]
pytestmark = pytest.mark.usefixtures("unharmed")


@pytest.fixture
def other(daemon: DaemonProcess) -> Iterator[int]:
    """A handle under which another session has one object of every kind."""
    handle = 4242
    with Raw(daemon.unix) as session, session.execute() as stream:
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=handle, size=64)),
            c.Command(create_stream=c.CreateStream(stream=handle)),
            c.Command(record_event=c.RecordEvent(event=handle)),
            c.Command(load_module=c.LoadModule(module=handle, kind=c.CODE_KIND_CUDA_CPP, code=COMMON.encode())),
            c.Command(get_function=c.GetFunction(function=handle, module=handle, name="add_one")),
            c.Command(start_profile=c.StartProfile(profile=handle)),
        )
        assert stream.failures() == []
        yield handle


def launch(function: int = 0, buffer: int = KEEP, stream: int = 0) -> c.Command:
    dim = c.Dim3(x=1, y=1, z=1)
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=buffer)), c.Argument(int32=1)]
    return c.Command(stream=stream, launch=c.Launch(function=function, grid=dim, block=dim, arguments=arguments))


def reduce(source: int, destination: int) -> c.Command:
    return c.Command(
        all_reduce=c.AllReduce(
            devices=[0], sequence=1, source=source, destination=destination, count=1, dtype="int8",
            op=c.REDUCE_OP_SUM,
        )
    )  # fmt: skip


def gather(source: int, destination: int) -> c.Command:
    part = c.CollectiveOperation(
        kind=c.COLLECTIVE_KIND_ALL_GATHER, source=source, destination=destination, count=1, dtype="int8"
    )
    return c.Command(collective=c.Collective(devices=[0], sequence=1, operations=[part]))


HANDLES: dict[str, tuple[str, Build]] = {
    "Free.buffers": ("Free", lambda h: c.Command(free=c.Free(buffers=[h]))),
    "Write.buffer": ("Write", lambda h: c.Command(write=c.Write(buffer=h, data=b"x"))),
    "Read.buffer": ("Read", lambda h: c.Command(read=c.Read(buffer=h, size=1))),
    "Copy.destination": ("Copy", lambda h: c.Command(copy=c.Copy(destination=h, source=KEEP, size=1))),
    "Copy.source": ("Copy", lambda h: c.Command(copy=c.Copy(destination=KEEP, source=h, size=1))),
    "Fill.buffer": ("Fill", lambda h: c.Command(fill=c.Fill(buffer=h, size=1, pattern=b"x"))),
    "DestroyStream": ("DestroyStream", lambda h: c.Command(destroy_stream=c.DestroyStream(stream=h))),
    "WaitEvent": ("WaitEvent", lambda h: c.Command(wait_event=c.WaitEvent(event=h))),
    "QueryEvent": ("QueryEvent", lambda h: c.Command(query_event=c.QueryEvent(event=h))),
    "ElapsedTime": ("ElapsedTime", lambda h: c.Command(elapsed_time=c.ElapsedTime(start=h, end=h))),
    "DestroyEvent": ("DestroyEvent", lambda h: c.Command(destroy_event=c.DestroyEvent(event=h))),
    "UnloadModule": ("UnloadModule", lambda h: c.Command(unload_module=c.UnloadModule(module=h))),
    "GetFunction": ("GetFunction", lambda h: c.Command(get_function=c.GetFunction(function=9, module=h, name="f"))),
    "GetGlobal": ("GetGlobal", lambda h: c.Command(get_global=c.GetGlobal(buffer=9, module=h, name="v"))),
    "DescribeModule": ("", lambda h: c.Command(describe_module=c.DescribeModule(module=h))),
    "DescribeFunction": ("", lambda h: c.Command(describe_function=c.DescribeFunction(function=h))),
    "Launch.function": ("Launch", launch),
    "EndProfile": ("EndProfile", lambda h: c.Command(end_profile=c.EndProfile(profile=h))),
    "AllReduce.source": ("AllReduce", lambda h: reduce(h, KEEP)),
    "AllReduce.destination": ("AllReduce", lambda h: reduce(KEEP, h)),
    "Collective.source": ("Collective", lambda h: gather(h, KEEP)),
    "Collective.destination": ("Collective", lambda h: gather(KEEP, h)),
}
ON_STREAM = ["Allocate", "Free", "Write", "Read", "Copy", "Fill", "RecordEvent", "LoadModule", "GetFunction",
             "GetGlobal", "Launch", "Sync", "Flush", "StartProfile", "EndProfile", "AllReduce",
             "SyncCollective", "Collective"]  # fmt: skip


def freed(stream: Execute) -> int:
    """A handle under which the session had one object of every kind, all of which have been destroyed."""
    h = 77
    stream.batch(
        c.Command(allocate=c.Allocate(buffer=h, size=64)),
        c.Command(create_stream=c.CreateStream(stream=h)),
        c.Command(record_event=c.RecordEvent(event=h)),
        c.Command(load_module=c.LoadModule(module=h, kind=c.CODE_KIND_CUDA_CPP, code=COMMON.encode())),
        c.Command(get_function=c.GetFunction(function=h, module=h, name="add_one")),
        c.Command(start_profile=c.StartProfile(profile=h)),
    )
    assert not stream.ask(c.Command(end_profile=c.EndProfile(profile=h))).HasField("error")
    stream.batch(
        c.Command(free=c.Free(buffers=[h])),
        c.Command(destroy_stream=c.DestroyStream(stream=h)),
        c.Command(destroy_event=c.DestroyEvent(event=h)),
        c.Command(unload_module=c.UnloadModule(module=h)),
    )
    assert stream.failures() == []
    return h


def unary(raw: Raw, rpc: str, command: c.Command) -> Any:
    return refused(raw.call, rpc, getattr(command, command.WhichOneof("kind") or ""), stream=command.stream)


@pytest.mark.parametrize("field", HANDLES)
def test_every_handle_of_every_command(raw: Raw, stream: Execute, other: int, field: str) -> None:
    rpc, build = HANDLES[field]
    handles = {"unknown": 31337, "of another session": other, "freed": freed(stream), "zero": 0,
               "largest": 2**64 - 1, "a pointer": id(raw)}  # fmt: skip
    for kind, handle in handles.items():
        expected = {Reason.INVALID_HANDLE}
        if field == "DestroyStream" and handle == 0:
            expected = {Reason.INVALID_ARGUMENT}  # the default stream exists, and cannot be destroyed
        refusal = from_status(stream.ask(build(handle)).error)
        assert refusal.reason in expected, f"{field}, {kind}: {refusal}"
        assert refusal.fix and (not handle or str(handle) in refusal.message)
        if rpc:
            assert unary(raw, rpc, build(handle)).reason in expected, f"{field}, {kind}"
    assert stream.failures() == []


def test_buffers_of_launches(raw: Raw, stream: Execute, other: int) -> None:
    function = raw.function(COMMON, "add_one")
    for handle in (31337, other, freed(stream), 0, 2**64 - 1):
        command = launch(function, handle)
        assert from_status(stream.ask(command).error).reason == Reason.INVALID_HANDLE
        assert unary(raw, "Launch", command).reason == Reason.INVALID_HANDLE


@pytest.mark.parametrize("rpc", ON_STREAM)
def test_unknown_streams_are_refused(raw: Raw, stream: Execute, other: int, rpc: str) -> None:
    message = getattr(c, rpc)()
    for handle in (31337, other, 2**64 - 1):
        assert unary_on(raw, rpc, message, handle).reason == Reason.INVALID_HANDLE


def unary_on(raw: Raw, rpc: str, message: Any, stream: int) -> Any:
    return refused(raw.call, rpc, message, stream=stream)


@pytest.mark.parametrize(
    "command",
    [
        c.Command(allocate=c.Allocate(size=8)),
        c.Command(create_stream=c.CreateStream()),
        c.Command(load_module=c.LoadModule(code=b"", kind=c.CODE_KIND_CUDA_CPP)),
        c.Command(start_profile=c.StartProfile()),
        c.Command(record_event=c.RecordEvent()),
    ],
    ids=lambda command: command.WhichOneof("kind"),
)
def test_handle_zero_is_refused(stream: Execute, command: c.Command) -> None:
    assert from_status(stream.ask(command).error).reason in (Reason.INVALID_ARGUMENT, Reason.INVALID_HANDLE)


def test_a_handle_in_use_is_not_taken_again(stream: Execute) -> None:
    for command in (
        c.Command(allocate=c.Allocate(buffer=KEEP, size=8)),
        c.Command(create_stream=c.CreateStream(stream=5)),
        c.Command(start_profile=c.StartProfile(profile=5)),
        c.Command(load_module=c.LoadModule(module=5, kind=c.CODE_KIND_CUDA_CPP, code=COMMON.encode())),
        c.Command(get_function=c.GetFunction(function=5, module=5, name="add_one")),
    ):
        stream.ask(command)
        assert from_status(stream.ask(command).error).reason == Reason.HANDLE_IN_USE
    assert stream.ask(c.Command(read=c.Read(buffer=KEEP, size=16))).read.data == bytes(16)


HUGE = [17, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("value", HUGE)
def test_sizes_and_offsets_beyond_the_buffer(raw: Raw, stream: Execute, value: int) -> None:
    commands = [
        c.Command(write=c.Write(buffer=KEEP, offset=value, data=b"x")),
        c.Command(write=c.Write(buffer=KEEP, size=value, transfer=value % 1000 + 1)),
        c.Command(read=c.Read(buffer=KEEP, size=value)),
        c.Command(read=c.Read(buffer=KEEP, offset=value, size=1)),
        c.Command(read=c.Read(buffer=KEEP, offset=value, size=value)),
        c.Command(copy=c.Copy(destination=KEEP, source=KEEP, size=value)),
        c.Command(copy=c.Copy(destination=KEEP, destination_offset=value, source=KEEP, size=1)),
        c.Command(copy=c.Copy(destination=KEEP, source=KEEP, source_offset=value, size=1)),
        c.Command(fill=c.Fill(buffer=KEEP, size=value, pattern=b"x")),
        c.Command(fill=c.Fill(buffer=KEEP, offset=value, size=1, pattern=b"x")),
    ]
    for command in commands:
        refusal = from_status(stream.ask(command).error)
        assert refusal.reason in (Reason.OUT_OF_BOUNDS, Reason.MESSAGE_TOO_LARGE, Reason.INVALID_ARGUMENT), command
        kind = command.WhichOneof("kind") or ""
        if kind != "write":
            assert unary(raw, kind.capitalize(), command).reason in (Reason.OUT_OF_BOUNDS, Reason.INVALID_ARGUMENT)
    assert stream.ask(c.Command(read=c.Read(buffer=KEEP, size=16))).read.data == bytes(16)
    assert unary(raw, "Write", c.Command(write=c.Write(buffer=KEEP, offset=value, data=b"x"))).reason == "OUT_OF_BOUNDS"


@pytest.mark.parametrize("size", [2**40, 2**63 - 1, 2**63, 2**64 - 1])
def test_impossible_allocations_are_refused(raw: Raw, stream: Execute, size: int) -> None:
    refusal = from_status(stream.ask(c.Command(allocate=c.Allocate(buffer=9, size=size))).error)
    assert refusal.reason == Reason.OUT_OF_MEMORY and refusal.details["requested"] == str(size)
    assert unary(raw, "Allocate", c.Command(allocate=c.Allocate(buffer=10, size=size))).reason == Reason.OUT_OF_MEMORY


def test_patterns(stream: Execute) -> None:
    for pattern, size, offset in ((b"", 8, 0), (b"abc", 9, 0), (bytes(32), 32, 0), (b"ab", 7, 0), (b"abcd", 8, 2)):
        command = c.Command(fill=c.Fill(buffer=KEEP, size=size, offset=offset, pattern=pattern))
        assert from_status(stream.ask(command).error).reason == Reason.INVALID_ARGUMENT


def test_requests_without_a_number(stream: Execute) -> None:
    stream.batch(
        c.Command(sync=c.Sync()), c.Command(flush=c.Flush()), c.Command(read=c.Read(buffer=KEEP, size=1)),
        c.Command(), c.Command(request=0, end_profile=c.EndProfile(profile=1)),
    )  # fmt: skip
    assert len(stream.failures()) == 5


@pytest.mark.parametrize("key", ["", "no such token", "x" * 50_000, "\0"])
def test_tokens(raw: Raw, key: str) -> None:
    target = device_pb2.Target(session_token=key)
    calls = [
        (raw.device.Allocate, device_pb2.AllocateRequest(target=target)),
        (raw.device.Read, device_pb2.ReadRequest(target=target)),
        (raw.device.Write, iter([device_pb2.WriteRequest(target=target, command=c.Write(buffer=1))])),
        (raw.device.Upload, iter([device_pb2.UploadRequest(session_token=key, transfer=1)])),
        (raw.device.Download, device_pb2.DownloadRequest(session_token=key, transfer=1)),
        (raw.node.RenewSession, node_pb2.RenewSessionRequest(session_token=key)),
        (raw.node.CloseSession, node_pb2.CloseSessionRequest(session_token=key)),
    ]
    for method, request in calls:
        assert refused(method, request, timeout=TIMEOUT).reason == Reason.SESSION_EXPIRED
    stream = raw.execute(attach=False)
    stream.attach(key)
    assert stream.ended().reason == Reason.SESSION_EXPIRED


def test_unknown_devices_are_refused(raw: Raw) -> None:
    for ordinal in (77, 2**32 - 1):
        stream = raw.execute(attach=False)
        stream.attach(raw.token, ordinal)
        refusal = stream.ended()
        assert refusal.reason == Reason.DEVICE_NOT_FOUND and str(ordinal) in refusal.message
        assert refused(raw.call, "Sync", c.Sync(), device=ordinal).reason == Reason.DEVICE_NOT_FOUND
        upload = device_pb2.UploadRequest(session_token=raw.token, device=ordinal, transfer=1)
        assert refused(raw.device.Upload, iter([upload])).reason == Reason.DEVICE_NOT_FOUND


@pytest.mark.parametrize(("low", "high"), [(PROTOCOL_MAX + 1, PROTOCOL_MAX + 5), (5, 2), (2**32 - 1, 2**32 - 1)])
def test_incompatible_protocol_versions_are_refused(raw: Raw, low: int, high: int) -> None:
    request = node_pb2.OpenSessionRequest(protocol=node_pb2.VersionRange(min=low, max=high))
    refusal = refused(raw.node.OpenSession, request, timeout=TIMEOUT)
    assert refusal.reason in (Reason.VERSION_UNSUPPORTED, Reason.INVALID_ARGUMENT) and refusal.fix
