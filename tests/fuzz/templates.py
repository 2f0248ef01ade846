"""Valid commands for the objects of `furniture.py`, in which the fuzzer changes one or two fields."""

from __future__ import annotations

from google.protobuf.message import Message

from hearth_proto.launches import LayoutEntry, Record, pack, pack_layout
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import node_pb2

SMALL, LARGE, SIDE, ELSE = 1, 2, 3, 4
"""Handles: an object of every kind, with a buffer of 16 bytes; a buffer of 4096 bytes; a stream and a module's
variable; the other objects."""
LAYOUT = pack_layout([LayoutEntry(0, 8, True), LayoutEntry(8, 4)])
ONE = pack(Record(SMALL, 0, (1, 1, 1), (1, 1, 1), 0, 0, 0, LAYOUT, (ELSE,), bytes(12)))
"""A packed launch."""

DIM = c.Dim3(x=1, y=1, z=1)
ARGUMENTS = [c.Argument(pointer=c.Argument.Pointer(buffer=SMALL)), c.Argument(int32=1)]
_MEMBERS = [node_pb2.GroupMember(node=0, device=0), node_pb2.GroupMember(node=1, device=0)]
CLOSED = "127.0.0.1:1"
"""An address without a listener: a connection to it fails immediately."""

_BINDINGS = [
    c.Binding(role=c.Binding.ROLE_INPUT_OUTPUT, size=16, data=bytes(16)),
    c.Binding(role=c.Binding.ROLE_VALUE, value=c.Argument(int32=1)),
]

TEMPLATES: dict[str, Message] = {
    message.DESCRIPTOR.name: message
    for message in (
        c.Allocate(buffer=6, size=100),
        c.Free(buffers=[SMALL]),
        c.Write(buffer=LARGE, size=16, data=bytes(16)),
        c.Read(buffer=LARGE, size=16),
        c.Copy(source=LARGE, destination=SMALL, size=16),
        c.Fill(buffer=LARGE, size=4096, pattern=b"x"),
        c.Launch(function=SMALL, grid=DIM, block=DIM, arguments=ARGUMENTS),
        c.Dispatch(function=SMALL, grid=DIM, block=DIM, bindings=_BINDINGS),
        c.CreateTensorMap(
            tensor_map=6, buffer=LARGE, dtype="float32", shape=[16, 16], strides=[64],
            tile=c.CreateTensorMap.Tile(box=[8, 8]),
        ),
        c.AllReduce(
            devices=[0], sequence=1, source=LARGE, destination=LARGE, count=4, dtype="float32", op=c.REDUCE_OP_SUM
        ),
        c.Collective(
            devices=[0], sequence=1,
            operations=[
                c.CollectiveOperation(
                    kind=c.COLLECTIVE_KIND_ALL_REDUCE, source=LARGE, destination=LARGE, count=4, dtype="float32",
                    op=c.REDUCE_OP_SUM,
                )
            ],
        ),
        c.CollectiveOperation(
            kind=c.COLLECTIVE_KIND_ALL_REDUCE, source=SMALL, destination=LARGE, count=4, dtype="float32",
            op=c.REDUCE_OP_PREMUL_SUM, factor=bytes(4),
        ),
        c.CollectiveOperation(
            kind=c.COLLECTIVE_KIND_ALL_GATHER, source=SMALL, destination=LARGE, count=16, dtype="uint8"
        ),
        node_pb2.CreateGroupRequest(members=_MEMBERS, timeout_ns=10**9),
        node_pb2.JoinGroupRequest(
            group=bytes(16), node=1, members=_MEMBERS, timeout_ns=10**9,
            ticket=node_pb2.GroupTicket(addresses=[CLOSED], secret=bytes(16)),
        ),
        node_pb2.LeaveGroupRequest(group=bytes(16)),
        c.LaunchGraph(graph=SMALL, count=2),
        c.UpdateGraph(graph=SMALL, node=0, launch=ONE),
        c.Prepare(prepared=6, launches=ONE),
        c.LaunchPrepared(prepared=SMALL, count=2),
        c.Occupancy(function=SMALL, block=DIM),
        c.GetFunction(function=6, module=SMALL, name="nothing"),
        c.GetGlobal(buffer=6, module=SMALL, name="variable"),
        c.RecordEvent(event=6),
        c.WaitEvent(event=SMALL),
        c.BeginCapture(graph=6),
        c.BeginConditional(buffer=SMALL),
        c.BeginBranch(value=1),
        c.EndProfile(profile=SMALL),
        c.SetDurable(buffers=[SMALL, LARGE], durable=True),
        c.Checkpoint(buffers=[SMALL]),
        c.StartTrace(),
    )
}  # fmt: skip
