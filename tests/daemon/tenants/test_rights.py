"""The matrix of rights: each operation for each right and each owner of the handle, by single calls and in batches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

import hearth
from hearth_proto import reasons, rights
from hearth_proto.launches import LayoutEntry, Record, pack, pack_layout
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import Right
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, node_pb2
from tests.support.daemon.harness import DaemonProcess, StartDaemon, needs_devices
from tests.support.daemon.raw import TIMEOUT, Execute, Raw, refused
from tests.support.daemon.tenants import tenant, tenants

SOURCE = 'extern "C" __device__ float g; extern "C" __global__ void k(float* x) { x[0] = 1; }'
OTHERS = 770_001
"""The handle of every object of the other tenant."""
ABSENT = 770_002
"""A handle that does not exist."""
RIGHTS = [str(right) for right in Right]
CLOSED = "127.0.0.1:1"
"""An address at which nothing listens."""
SPARE = 880_000
"""Offset of the handles that operations may create, above the handles that are tested."""


def command(kind: str, handle: int) -> c.Command:
    """Returns the operation on a handle, if it takes one."""
    one = c.Dim3(x=1, y=1, z=1)
    pointer = c.Argument(pointer=c.Argument.Pointer(buffer=handle))
    record = c.Launch(function=handle, grid=one, block=one, arguments=[pointer])
    fields: dict[str, Any] = {
        "launches": packed(handle),
        "allocate": c.Allocate(buffer=handle, size=16),
        "free": c.Free(buffers=[handle]),
        "write": c.Write(buffer=handle, data=b"abcd"),
        "read": c.Read(buffer=handle, size=4),
        "copy": c.Copy(destination=handle, source=handle, size=4, source_offset=8),
        "fill": c.Fill(buffer=handle, size=4, pattern=b"\1"),
        "write_pointers": c.WritePointers(buffer=handle, data=bytes(16)),
        "cancel": c.Cancel(),
        "create_stream": c.CreateStream(stream=handle),
        "destroy_stream": c.DestroyStream(stream=handle),
        "record_event": c.RecordEvent(event=handle),
        "wait_event": c.WaitEvent(event=handle),
        "query_event": c.QueryEvent(event=handle),
        "elapsed_time": c.ElapsedTime(start=handle, end=handle),
        "destroy_event": c.DestroyEvent(event=handle),
        "publish_event": c.PublishEvent(event=handle, name=f"event {handle}", replace=True),
        "attach_event": c.AttachEvent(event=handle + SPARE, name=f"event {handle}"),
        "load_module": c.LoadModule(module=handle, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE.encode()),
        "unload_module": c.UnloadModule(module=handle),
        "get_function": c.GetFunction(function=handle + SPARE, module=handle, name="k"),
        "get_global": c.GetGlobal(buffer=handle + SPARE, module=handle, name="g"),
        "describe_module": c.DescribeModule(module=handle),
        "describe_function": c.DescribeFunction(function=handle),
        "launch": record,
        "sync": c.Sync(),
        "flush": c.Flush(),
        "memory_usage": c.MemoryUsage(),
        "memory_cleanup": c.MemoryCleanup(),
        "start_profile": c.StartProfile(profile=handle),
        "end_profile": c.EndProfile(profile=handle),
        "all_reduce": c.AllReduce(
            devices=[0], sequence=1, source=handle, destination=handle, count=1, dtype="float32", op=c.REDUCE_OP_SUM
        ),
        "sync_collective": c.SyncCollective(),
        "collective": c.Collective(
            devices=[0],
            sequence=1,
            operations=[
                c.CollectiveOperation(
                    kind=c.COLLECTIVE_KIND_ALL_REDUCE,
                    source=handle,
                    destination=handle,
                    count=1,
                    dtype="float32",
                    op=c.REDUCE_OP_SUM,
                )
            ],
        ),
        "dispatch": c.Dispatch(
            function=handle, grid=one, block=one, bindings=[c.Binding(role=c.Binding.ROLE_VALUE, value=pointer)]
        ),
        "begin_capture": c.BeginCapture(graph=handle),
        "end_capture": c.EndCapture(graph=handle, discard=True),
        "begin_conditional": c.BeginConditional(buffer=handle),
        "end_conditional": c.EndConditional(),
        "begin_branch": c.BeginBranch(value=1),
        "launch_graph": c.LaunchGraph(graph=handle, count=1),
        "update_graph": c.UpdateGraph(graph=handle, launch=packed(handle)),
        "destroy_graph": c.DestroyGraph(graph=handle),
        "prepare": c.Prepare(prepared=handle, launches=packed(handle)),
        "launch_prepared": c.LaunchPrepared(prepared=handle, count=1),
        "destroy_prepared": c.DestroyPrepared(prepared=handle),
        "create_tensor_map": c.CreateTensorMap(
            tensor_map=handle, buffer=handle, dtype="float32", shape=[4], tile=c.CreateTensorMap.Tile(box=[4])
        ),
        "destroy_tensor_map": c.DestroyTensorMap(tensor_map=handle),
        "occupancy": c.Occupancy(function=handle, block=one),
        "set_allocation_mode": c.SetAllocationMode(mode=c.ALLOCATION_MODE_AUTO),
        "start_trace": c.StartTrace(max_events=8),
        "end_trace": c.EndTrace(),
        "set_durable": c.SetDurable(buffers=[handle], durable=False),
        "checkpoint": c.Checkpoint(buffers=[handle]),
    }
    message = fields[kind]
    # On the handle's stream, because the operation would change the default stream for later operations.
    stream = handle if kind in ("begin_capture", "end_capture") else 0
    return c.Command(stream=stream, **{kind: message})


def packed(handle: int) -> bytes:
    layout = pack_layout([LayoutEntry(0, 8, pointer=True)])
    return pack(Record(handle, 0, (1, 1, 1), (1, 1, 1), 0, 0, 0, layout, (handle,), bytes(8)))


def rpc_of(kind: str) -> str | None:
    """Returns the name of the single call of a command, or None if it has none. `Cancel` is none: it names commands of
    the session's stream."""
    name = "".join(part.capitalize() for part in kind.split("_"))
    known = device_pb2.DESCRIPTOR.services_by_name["DeviceService"].methods_by_name
    return name if name in known and "target" in known[name].input_type.fields_by_name else None


def single(raw: Raw, kind: str, handle: int) -> Refusal | None:
    """Executes the operation as a single call; returns its refusal, if it was refused."""
    sent = command(kind, handle)
    try:
        raw.call(rpc_of(kind) or "", getattr(sent, kind), stream=sent.stream)
    except grpc.RpcError as error:
        return told(error)
    return None


def told(error: Any) -> Refusal:
    for key, value in error.trailing_metadata() or ():
        if key == reasons.STATUS_DETAILS_KEY:
            from hearth_proto.v1 import status_pb2

            return reasons.from_status(status_pb2.Status.FromString(value))
    raise AssertionError(f"no details: {error.code()} {error.details()}")


def batched(stream: Execute, kind: str, handle: int) -> Refusal | None:
    """Executes the operation in a batch; returns its refusal, if it was refused."""
    sent = command(kind, handle)
    if kind == "launches":  # packed launches are one-way: the next sync reports their failures
        stream.batch(sent)
        result = stream.ask(c.Command(sync=c.Sync()))
        failures = reasons.stream_failures(result.error)
        return reasons.from_status(failures[0].status) if failures else None
    result = stream.ask(sent)
    return reasons.from_status(result.error) if result.HasField("error") else None


class Holder(Raw):
    """A session with one object of every kind, under the handle `OTHERS`."""

    def fill(self) -> None:
        one = c.Dim3(x=1, y=1, z=1)
        for kind in ("allocate", "create_stream", "record_event", "load_module", "start_profile"):
            self.call(str(rpc_of(kind)), getattr(command(kind, OTHERS), kind))
        self.call("GetFunction", c.GetFunction(function=OTHERS, module=OTHERS, name="k"))
        self.call("Fill", c.Fill(buffer=OTHERS, size=16, pattern=b"\0"))
        self.call("Prepare", c.Prepare(prepared=OTHERS, launches=packed(OTHERS)))
        self.call("BeginCapture", c.BeginCapture(graph=OTHERS), stream=OTHERS)
        argument = c.Argument(pointer=c.Argument.Pointer(buffer=OTHERS))
        launch = c.Launch(function=OTHERS, grid=one, block=one, arguments=[argument])
        self.call("Launch", launch, stream=OTHERS)
        self.call("EndCapture", c.EndCapture(graph=OTHERS), stream=OTHERS)


class World:
    """A daemon with a tenant for each single right, one without rights, and one with all rights and a session full of
    objects."""

    def __init__(self, cache: Path) -> None:
        tables = [tenant(f"only-{right}", rights=[right]) for right in RIGHTS]
        config, self.tokens = tenants("holder", tenant("nothing", rights=[]), *tables, devices={"isolation": "shared"})
        config["sessions"] = {**config.get("sessions", {}), "lease": "600s"}  # no connection renews the holder's lease
        self.daemon = DaemonProcess(cache, config, 1)
        self._open = ExitStack()
        self._sessions: dict[str, tuple[Raw, Execute]] = {}
        try:
            self.holder = self._open.enter_context(Holder(self.daemon.unix, self.tokens["holder"]))
            self.holder.fill()
        except BaseException:
            self.close()
            raise

    def session(self, name: str) -> tuple[Raw, Execute]:
        """Returns a tenant's session, and an Execute stream of the session."""
        if name not in self._sessions:
            raw = self._open.enter_context(Raw(self.daemon.unix, self.tokens[name]))
            self._sessions[name] = raw, self._open.enter_context(raw.execute())
        return self._sessions[name]

    def close(self) -> None:
        self._open.close()
        code = self.daemon.stop()
        log, left = self.daemon.log(), self.daemon.left_behind()
        self.daemon.remove()
        assert code == 0, log[-4000:]
        assert not left


@pytest.fixture(scope="module")
def world(cache: Path) -> Iterator[World]:
    built = World(cache)
    yield built
    built.close()


def check_cell(refusal: Refusal | None, kind: str, who: str, has: set[str]) -> None:
    """Checks that the operation is denied by name if a right is missing, and is not denied otherwise."""
    lacking = [right for right in rights.COMMANDS[kind] if right not in has]
    if not lacking:
        assert refusal is None or refusal.reason != Reason.PERMISSION_DENIED, refusal
        return
    assert refusal is not None, f"{who} may {kind}"
    assert refusal.reason == Reason.PERMISSION_DENIED, refusal
    assert refusal.details["tenant"] == who and refusal.details["right"] == ", ".join(lacking)
    assert who in refusal.fix


def normal(refusal: Refusal | None) -> object:
    """Returns a refusal's text in which the handle's number is replaced."""
    if refusal is None:
        return None
    text = f"{refusal.reason} {refusal.message} {refusal.fix} {sorted(refusal.details.items())}"
    return re.sub(rf"\b({OTHERS}|{ABSENT}|{OTHERS + SPARE}|{ABSENT + SPARE})\b", "N", text)


@pytest.mark.parametrize("right", [*RIGHTS, "nothing"])
@pytest.mark.parametrize("kind", sorted(rights.COMMANDS))
def test_commands(world: World, kind: str, right: str) -> None:
    """Tests each single right: the allowed operations, and the same answer for another tenant's handle as for an absent
    one."""
    who = right if right == "nothing" else f"only-{right}"
    has = set() if right == "nothing" else {right}
    raw, stream = world.session(who)
    ways = [lambda handle: batched(stream, kind, handle)]
    if rpc_of(kind):
        ways.append(lambda handle: single(raw, kind, handle))
    for way in ways:
        others, absent = way(OTHERS), way(ABSENT)
        check_cell(others, kind, who, has)
        check_cell(absent, kind, who, has)
        assert normal(others) == normal(absent) or kind == "start_trace", "which takes no handle, and works once"


HANDLES = {"buffer": ("read", "write", "fill", "copy", "write_pointers"),
           "function": ("launch", "launches", "occupancy"),
           "module": ("get_function", "describe_module"), "event": ("wait_event", "query_event"),
           "graph": ("launch_graph",), "prepared list": ("launch_prepared",), "profile": ("end_profile",)}  # fmt: skip


@pytest.mark.parametrize("kind", sorted({kind for kinds in HANDLES.values() for kind in kinds}))
def test_handles_of_other_sessions(world: World, kind: str) -> None:
    """The answers are the same for a session with all rights, of another tenant or of the holder's own tenant."""
    for who in ("only-admin", "holder"):
        has = {"admin"} if who == "only-admin" else set(rights.ORDINARY)
        with Raw(world.daemon.unix, world.tokens[who]) as raw, raw.execute() as stream:
            for way in (batched(stream, kind, OTHERS), batched(stream, kind, ABSENT)):
                check_cell(way, kind, who, has)
                if who == "holder":
                    assert way is not None and way.reason in (Reason.INVALID_HANDLE, Reason.PROFILE_INVALID), way
            assert normal(batched(stream, kind, OTHERS)) == normal(batched(stream, kind, ABSENT))


@pytest.mark.parametrize("kind", sorted({kind for kinds in HANDLES.values() for kind in kinds} - {"end_profile"}))
def test_holder_of_handles_may_use_them(world: World, kind: str) -> None:
    if rpc_of(kind):
        assert single(world.holder, kind, OTHERS) is None


# ---- transfers and published buffers ----

STREAMS = {"Upload": device_pb2.UploadRequest, "Download": device_pb2.DownloadRequest,
           "TransferStatus": device_pb2.TransferStatusRequest}  # fmt: skip
BY_TOKEN = {"AttachmentStatus": device_pb2.AttachmentStatusRequest}


@pytest.mark.parametrize("right", [*RIGHTS, "nothing"])
@pytest.mark.parametrize("method", sorted(set(rights.CALLS) - {"Execute", "OpenBulk"}))
def test_other_calls(world: World, method: str, right: str) -> None:
    who = right if right == "nothing" else f"only-{right}"
    raw, _ = world.session(who)
    lacking = [each for each in rights.CALLS[method] if each != right]
    if method in STREAMS:
        request: Any = STREAMS[method](session_token=raw.token, device=0, transfer=5)
    elif method in BY_TOKEN:
        request = BY_TOKEN[method](session_token=raw.token, device=0)
    else:
        request = getattr(device_pb2, f"{method}Request")(target=raw.target())
        for field in ("name", "buffer"):
            if field in request.DESCRIPTOR.fields_by_name:
                setattr(request, field, "weights" if field == "name" else OTHERS)
    call = getattr(raw.device, method)
    if not lacking and method in ("Upload", "Download"):
        return  # allowed transfers wait for their command: see the tests of transfers
    try:
        answer = call(iter([request]) if method == "Upload" else request, timeout=TIMEOUT)
        if method == "Download":
            list(answer)
    except grpc.RpcError as error:
        refusal = told(error)
        assert (refusal.reason == Reason.PERMISSION_DENIED) == bool(lacking), refusal
        if lacking:
            assert refusal.details == {"operation": method, "right": ", ".join(lacking), "tenant": who}
    else:
        assert not lacking


# ---- the node ----


@pytest.mark.parametrize("right", [*RIGHTS, "nothing"])
def test_the_node(world: World, right: str) -> None:
    """Only operators may end, drain and restart sessions and devices of others; only they and observers may see
    them."""
    who = right if right == "nothing" else f"only-{right}"
    raw, _ = world.session(who)
    metadata = (("hearth-session", raw.token),)
    node, operator = raw.node, right == "admin"

    assert node.Describe(node_pb2.DescribeRequest(), metadata=metadata).devices[0].ordinal == 0
    listed = node.ListSessions(node_pb2.ListSessionsRequest(), metadata=metadata).sessions
    seen = {session.tenant for session in listed}
    assert seen >= {who, "holder"} if operator or right == "observe" else seen == {who}

    def end(session_id: str) -> Refusal:
        return refused(node.EndSession, node_pb2.EndSessionRequest(session_id=session_id), metadata=metadata)

    absent = end("0badc0de")
    assert absent.reason == Reason.INVALID_HANDLE
    if not operator:
        others = end(world.holder.opened.session_id)
        if right == "observe":
            assert others.reason == Reason.PERMISSION_DENIED and others.details["right"] == "admin"
        else:
            assert str(others).replace(world.holder.opened.session_id, "0badc0de") == str(absent)
        for call, request in (
            (node.Drain, node_pb2.DrainRequest()),
            (node.RestartDevice, node_pb2.RestartDeviceRequest(device=0)),
        ):
            refusal = refused(call, request, metadata=metadata)
            assert refusal.reason == Reason.PERMISSION_DENIED and refusal.details["right"] == "admin"
        assert not node.Describe(node_pb2.DescribeRequest(), metadata=metadata).draining

    with Raw(world.daemon.unix, world.tokens[who]) as own:  # use of the caller's own session needs no right
        node.EndSession(node_pb2.EndSessionRequest(session_id=own.opened.session_id), metadata=metadata)
        gone = refused(own.call, "MemoryUsage", c.MemoryUsage())
        assert gone.reason == Reason.SESSION_EXPIRED

    request = node_pb2.OpenSessionRequest(isolation=node_pb2.ISOLATION_DEDICATED)
    if right != "dedicated":
        refusal = refused(node.OpenSession, request, metadata=raw.metadata)
        assert refusal.reason == Reason.PERMISSION_DENIED and refusal.details["right"] == "dedicated"


@pytest.mark.parametrize("right", [*RIGHTS, "nothing"])
def test_groups_over_daemons(world: World, right: str) -> None:
    """A tenant with the right to collectives may create and join groups; describing and leaving them needs no right."""
    who = right if right == "nothing" else f"only-{right}"
    raw, _ = world.session(who)
    members = [node_pb2.GroupMember(node=0, device=0), node_pb2.GroupMember(node=1, device=0)]
    ticket = node_pb2.GroupTicket(addresses=[CLOSED], secret=bytes(32))
    create = node_pb2.CreateGroupRequest(session_token=raw.token, members=members, timeout_ns=10**9)
    join = node_pb2.JoinGroupRequest(
        session_token=raw.token, group=bytes(16), node=1, members=members, ticket=ticket, timeout_ns=10**9
    )
    leave = node_pb2.LeaveGroupRequest(session_token=raw.token, group=bytes(16))
    told = {"JoinGroup": refused(raw.node.JoinGroup, join, timeout=TIMEOUT)}
    if right == "collective":
        group = raw.node.CreateGroup(create, timeout=TIMEOUT).group
        assert told["JoinGroup"].reason != Reason.PERMISSION_DENIED, "the peer was absent"
        described = raw.node.DescribeGroups(node_pb2.DescribeGroupsRequest(session_token=raw.token), timeout=TIMEOUT)
        assert [each.state for each in described.groups if each.group == group] == ["forming"]
        leave_ours = node_pb2.LeaveGroupRequest(session_token=raw.token, group=group)
        raw.node.LeaveGroup(leave_ours, timeout=TIMEOUT)
    else:
        told["CreateGroup"] = refused(raw.node.CreateGroup, create, timeout=TIMEOUT)
        for method, refusal in told.items():
            assert refusal.reason == Reason.PERMISSION_DENIED, refusal
            assert refusal.details == {"operation": method, "right": "collective", "tenant": who}
        described = raw.node.DescribeGroups(node_pb2.DescribeGroupsRequest(session_token=raw.token), timeout=TIMEOUT)
        assert not [each for each in described.groups if each.group]
    assert refused(raw.node.LeaveGroup, leave, timeout=TIMEOUT).reason == Reason.INVALID_HANDLE


def test_operators(start_daemon: StartDaemon) -> None:
    config, tokens = tenants("alice", tenant("operator", rights=["admin"]))
    daemon = start_daemon(**config)
    with daemon.connect(token=tokens["operator"]) as operator, daemon.connect(token=tokens["alice"]) as node:
        assert {session.tenant for session in operator.sessions()} == {"alice", "operator"}
        x = node.device(0).ones(4)
        assert x.get().sum() == 4
        with daemon.connect(token=tokens["alice"]) as second:
            operator.end_session(second.session_id)
            with pytest.raises(hearth.SessionExpiredError):
                second.describe()
        generation = operator.describe().devices[0].generation
        operator.restart_device(0)
        with pytest.raises((hearth.DeviceLostError, hearth.BufferLostError)):
            x.get()
        assert node.device(0).ones(4).get().sum() == 4
        assert operator.describe().devices[0].generation >= generation
        with pytest.raises(hearth.AuthenticationError, match="admin"):
            node.restart_device(0)
        operator.drain()
        assert node.describe().draining
        with pytest.raises(hearth.UnavailableError):
            daemon.connect(token=tokens["alice"])


# ---- devices ----


def test_devices_of_other_tenants_are_reported_as_absent(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(tenant("second", devices=[1]), "both")
    daemon = start_daemon(cpu_count=2, **config)
    needs_devices(daemon, 2)
    with daemon.connect(token=tokens["second"]) as node, daemon.connect(token=tokens["both"]) as both:
        assert [device.ordinal for device in node.devices] == [1]
        assert [device.ordinal for device in both.devices] == daemon.ordinals()
        assert [device.ordinal for device in node.describe().devices] == [1]
        assert node.device(1).ones(2).get().sum() == 2
        with pytest.raises(hearth.ArgumentError, match="has no device 0"):
            node.device(0)
    with Raw(daemon.unix, tokens["second"]) as raw:
        answers = []
        for ordinal in (0, 77):
            answers.append(refused(raw.call, "MemoryUsage", c.MemoryUsage(), device=ordinal))
            with Execute(raw, ordinal, attach=False) as stream:
                stream.attach(raw.token, ordinal)
                answers.append(stream.ended())
        texts = {str(answer).replace("Device 0 ", "Device 77 ") for answer in answers}
        assert len(texts) == 1 and answers[0].reason == Reason.DEVICE_NOT_FOUND, texts
        assert answers[0].details["allowed"] == "1"


def test_copies_between_devices_need_the_right_of_a_copy_and_collectives_their_own(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(tenant("copier", rights=["allocate", "read", "write"]), tenant("reader", rights=["read"]))
    daemon = start_daemon(cpu_count=2, **config)
    needs_devices(daemon, 2)
    first, second = daemon.ordinals()[:2]
    with daemon.connect(token=tokens["copier"]) as node:
        here, there = node.device(first), node.device(second)
        x = here.asarray([[1, 2, 3], [4, 5, 6]])
        y = there.zeros((2, 3), x.dtype)
        y.copy_from(x)
        x[:, 0] = y[:, 2]
        assert there.asarray(x).get().tolist() == [[3, 2, 3], [6, 5, 6]] and y.get().tolist() == [[1, 2, 3], [4, 5, 6]]
        hearth.Group([here, there]).all_reduce([x, y])
        with pytest.raises(hearth.AuthenticationError, match="collective"):
            here.synchronize()
        with pytest.raises(hearth.AuthenticationError, match="collective"):
            there.synchronize()
    kind, operation = c.COLLECTIVE_KIND_SEND, c.CollectiveOperation
    send = operation(kind=kind, source=1, count=1, dtype="uint8", peer=1)
    one = c.Collective(devices=[first, second], sequence=1, operations=[send])
    told = {}
    with Raw(daemon.unix, tokens["reader"]) as raw, raw.execute() as stream:
        for name, asked in {
            "copy": one,
            "two": c.Collective(devices=[first, second], sequence=1, operations=[send, send]),
            "group": c.Collective(group=bytes(16), sequence=1, operations=[send]),
            "all": c.Collective(devices=[first, second], sequence=1, operations=[operation(source=1, destination=1)]),
        }.items():
            told[name] = reasons.from_status(stream.ask(c.Command(collective=asked)).error)
    assert {name: each.details["right"] for name, each in told.items()} == {
        "copy": "allocate", "two": "collective", "group": "collective", "all": "collective",
    }  # fmt: skip
