"""Single calls: each one reaches the device as its command, and returns as its result."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, explained, from_status, stream_failures
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2, status_pb2
from hearthd.front.errors import MAX_DETAILS, MAX_MESSAGE, fitted
from hearthd.front.rpc.unary import CALLS, UnaryCall
from tests.support.front.fixture import ended, front, refused, run, until


def test_the_table_covers_the_service() -> None:
    service = device_pb2.DESCRIPTOR.services_by_name["DeviceService"]
    streams = {"Execute", "Upload", "Download", "AttachmentStatus", "TransferStatus", "Write", "Read", "OpenBulk"}
    streams.add("Cancel")
    published = {"Publish", "Unpublish", "AttachBuffer", "ListPublished", "ExportIpc", "ReleaseIpc"}
    assert {call.rpc for call in CALLS} | streams | published == {method.name for method in service.methods}
    fields = commands_pb2.Command.DESCRIPTOR.fields_by_name
    results = commands_pb2.Result.DESCRIPTOR.fields_by_name
    for call in CALLS:
        method = service.methods_by_name[call.rpc]
        assert method.output_type.name == results[call.result].message_type.name
        assert method.input_type.fields_by_name["command"].message_type.name == fields[call.command].message_type.name


def test_every_single_call_is_mapped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            for call in CALLS:
                request = getattr(device_pb2, f"{call.rpc}Request")(target=f.target(device=1, stream=5))
                request.command.SetInParent()
                if call.describe:
                    setattr(request.command, call.handle, 42)
                answer = await getattr(f.devices, call.rpc)(request)
                command = f.device(1).commands[-2 if call.describe else -1]
                assert command.WhichOneof("kind") == call.command
                assert command.request and command.stream == 5
                if call.describe:
                    described = f.device(1).commands[-1]
                    assert described.WhichOneof("kind") == call.describe
                    assert getattr(getattr(described, call.describe), call.handle) == 42
                assert (
                    type(answer).__name__
                    == commands_pb2.Result.DESCRIPTOR.fields_by_name[call.result].message_type.name
                )

    run(scenario())


def test_a_refused_command_becomes_the_status_with_its_details(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            f.launcher.refusals["free"] = Refusal(
                Reason.INVALID_HANDLE, "Buffer 7 is not live.", fix="Allocate it.", details={"buffer": 7}
            )
            refusal = await refused(f.devices.Free(device_pb2.FreeRequest(target=f.target())))
            assert refusal.reason == Reason.INVALID_HANDLE
            assert (refusal.message, refusal.fix, refusal.details) == (
                "Buffer 7 is not live.", "Allocate it.", {"buffer": "7"},
            )  # fmt: skip
            f.launcher.refusals["describe_module"] = Refusal(
                Reason.COMPILE_FAILED, "no", details={"log": "x" * 100_000}
            )
            refusal = await refused(f.devices.LoadModule(device_pb2.LoadModuleRequest(target=f.target())))
            assert refusal.reason == Reason.COMPILE_FAILED
            assert refusal.details["log"].endswith("cut")

    run(scenario())


def test_code_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, limits__max_code_bytes="1KiB") as f:
            await f.open()
            command = commands_pb2.LoadModule(module=1, code=b"x" * 1025)
            refusal = await refused(
                f.devices.LoadModule(device_pb2.LoadModuleRequest(target=f.target(), command=command))
            )
            assert refusal.reason == Reason.MESSAGE_TOO_LARGE

    run(scenario())


def test_calls_without_a_session_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            refusal = await refused(f.devices.Sync(device_pb2.SyncRequest()))
            assert refusal.reason == Reason.SESSION_EXPIRED

    run(scenario())


def test_cancelled_call_leaves_no_state(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            f.launcher.unanswered = {"sync"}
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await f.devices.Sync(device_pb2.SyncRequest(target=f.target()), timeout=0.1)
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            link = f.daemon.supervisor.find(0).running[0].link
            assert link is not None
            await until(lambda: not link.pending_calls)
            [session] = list(f.daemon.sessions)
            await until(lambda: session.connections == 0)

    run(scenario())


def test_number_of_running_calls_is_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            f.launcher.unanswered = {"sync"}
            calls = [f.devices.Sync(device_pb2.SyncRequest(target=f.target())) for _ in range(256)]
            await until(lambda: len(f.device().commands) == 256)
            refusal = await refused(f.devices.Sync(device_pb2.SyncRequest(target=f.target())))
            assert refusal.reason == Reason.QUEUE_FULL
            assert refusal.retry_after_s
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    run(scenario())


def test_long_statuses_are_cut_to_fit_the_metadata() -> None:
    log = Refusal(Reason.COMPILE_FAILED, "m" * 5000, fix="f" * 9000, details={"log": "l" * 90_000, "line": 3})
    small = fitted(log.to_status())
    assert small.code == log.to_status().code
    assert small.ByteSize() <= MAX_MESSAGE + MAX_DETAILS + 256
    failures = [
        status_pb2.CommandFailure(command=f"launch {n}", status=Refusal(Reason.LAUNCH_FAILED, "x" * 900).to_status())
        for n in range(100)
    ]
    small = fitted(Refusal(Reason.LAUNCH_FAILED, "many").to_status(failures))
    assert small.ByteSize() <= MAX_MESSAGE + MAX_DETAILS + 256
    assert stream_failures(small)[0].command == "launch 0"
    fields = [f"arguments[{n}]" for n in range(100)]
    small = fitted(Refusal(Reason.LAUNCH_INVALID, "m" * 900, fix="f" * 900, fields=fields).to_status())
    whole = explained(small)
    assert len(whole.message) <= MAX_MESSAGE and whole.ByteSize() <= MAX_MESSAGE + MAX_DETAILS
    assert whole.message.startswith("LAUNCH_INVALID: mmm") and whole.message.endswith("fff ... cut")
    assert from_status(whole).fix.endswith("fff ... cut") and "Fix" not in from_status(whole).message
    short = Refusal(Reason.INTERNAL, "short").to_status()
    assert fitted(short) is short


def test_sessions_are_described_listed_renewed_and_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, limits__max_chunk_bytes="64KiB") as f:
            protocol = node_pb2.VersionRange(min=1, max=9)
            opened = await f.node.OpenSession(node_pb2.OpenSessionRequest(protocol=protocol, client_name="me"))
            assert opened.protocol == 1
            assert opened.lease_ns == 30 * 10**9
            assert opened.limits.max_chunk_bytes == 64 << 10
            assert [d.properties.name for d in opened.devices] == ["fake", "fake"]
            f.token = opened.session_token
            await f.devices.Sync(device_pb2.SyncRequest(target=f.target(1)))
            [info] = (await f.node.ListSessions(node_pb2.ListSessionsRequest())).sessions
            assert (info.session_id, info.client_name, list(info.devices)) == (opened.session_id, "me", [1])
            assert not info.connected and 0 < info.lease_left_ns <= 30 * 10**9
            renew = await f.node.RenewSession(node_pb2.RenewSessionRequest(session_token=f.token))
            assert renew.lease_ns == 30 * 10**9
            stream = await f.attach()
            await f.node.CloseSession(node_pb2.CloseSessionRequest(session_token=f.token))
            assert len(f.device(0).closed) == len(f.device(1).closed) == 1
            assert (await ended(stream)).reason == Reason.SESSION_EXPIRED
            again = await refused(f.node.CloseSession(node_pb2.CloseSessionRequest(session_token=f.token)))
            assert again.reason == Reason.SESSION_EXPIRED
            too_new = node_pb2.VersionRange(min=5, max=9)
            refusal = await refused(f.node.OpenSession(node_pb2.OpenSessionRequest(protocol=too_new)))
            assert refusal.reason == Reason.VERSION_UNSUPPORTED
            assert (refusal.details["requested"], refusal.details["allowed"]) == ("5 to 9", "1 to 1")
            await f.open()
            assert (await f.node.Drain(node_pb2.DrainRequest())).sessions == 1
            refusal = await refused(f.node.OpenSession(node_pb2.OpenSessionRequest()))
            assert refusal.reason == Reason.DRAINING and refusal.retry_after_s
            await f.devices.Sync(device_pb2.SyncRequest(target=f.target()))

    run(scenario())


def test_an_abandoned_session_is_closed_when_its_lease_runs_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, sessions__lease="100ms") as f:
            session = await f.open_with_lease(30.0)
            stream = await f.attach()
            session.lease = 0.1
            await asyncio.sleep(0.3)  # longer than the lease: a connected session does not expire
            assert len(f.daemon.sessions) == 1 and not f.daemon.sessions.expired()
            stream.cancel()
            await until(lambda: f.device().closed)
            assert len(f.daemon.sessions) == 0

    run(scenario())


def test_close_waits_a_bounded_time_for_an_unresponsive_device(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            await f.devices.Sync(device_pb2.SyncRequest(target=f.target()))
            f.launcher.closes = False
            [session] = list(f.daemon.sessions)
            await f.daemon.sessions.close(session, "test", time_limit=0.05)
            assert f.device().closed and not len(f.daemon.sessions)

    run(scenario())


def test_a_call_that_waits_for_room_is_refused_when_its_session_closes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            f.launcher.closes = False  # the device process has not confirmed the close when there is room
            await f.open()
            await f.devices.Sync(device_pb2.SyncRequest(target=f.target()))
            [session] = list(f.daemon.sessions)
            session.queue.set_limits(1, 0)
            session.queue.count(10)  # a batch of another session of the tenant
            call = asyncio.ensure_future(refused(f.devices.Flush(device_pb2.FlushRequest(target=f.target()))))
            await until(lambda: session.connections)
            closing = asyncio.create_task(f.daemon.sessions.close(session, "an operator ended it"))
            await until(lambda: f.device().closed)
            session.queue.release(10)
            refusal = await call
            assert refusal.reason == Reason.SESSION_EXPIRED and "an operator ended it" in refusal.message
            assert session.queue.commands == session.queue.bytes == 0
            assert [command.WhichOneof("kind") for command in f.device().commands] == ["sync"]
            f.device().send(Kind.CLOSED, channel=f.device().closed[0])
            await closing

    run(scenario())


def test_an_object_is_not_described_after_its_session_has_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            f.launcher.closes, f.launcher.unanswered = False, {"get_function"}
            await f.open()
            request = device_pb2.GetFunctionRequest(target=f.target())
            call = asyncio.ensure_future(refused(f.devices.GetFunction(request)))
            await until(lambda: f.device().commands)
            [session] = list(f.daemon.sessions)
            closing = asyncio.create_task(f.daemon.sessions.close(session, "an operator ended it"))
            await until(lambda: f.device().closed)
            number = f.device().commands[0].request
            f.device().send(Kind.RESULT, commands_pb2.Result(request=number).SerializeToString(), channel=1, id=number)
            assert (await call).reason == Reason.SESSION_EXPIRED
            assert len(f.device().commands) == 1
            f.device().send(Kind.CLOSED, channel=1)
            await closing

    run(scenario())


def test_call_names_its_handle() -> None:
    assert UnaryCall("GetFunction", "get_function", "function", describe="describe_function").handle == "function"
