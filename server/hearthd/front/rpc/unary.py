"""The single calls: a table from RPC to command and result, and their common implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import Message

from hearth_proto.reasons import Reason, Refusal, within
from hearth_proto.v1 import commands_pb2
from hearthd.front.errors import Context
from hearthd.front.rpc.server_call import Behaviour, StatusError
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.command_queue import CommandQueue

WithChannel = Callable[[Any, Callable[[Channel], Awaitable[Any]], str], Coroutine[Any, Any, Any]]
"""The type of `DeviceService.with_channel`."""

MAX_CALLS = 256
"""Maximum number of single calls of one session that may be under way on one device."""


@dataclass(frozen=True)
class UnaryCall:
    """A single call. `command` is its field in Command, and `result` the field in Result that answers it."""

    rpc: str
    command: str
    result: str
    describe: str = ""
    """A second command on the same handle, which describes the object. Its result is the answer."""

    @property
    def handle(self) -> str:
        """The field that names the object, in the command and in the command that describes the object."""
        return self.describe.removeprefix("describe_")


CALLS = (
    UnaryCall("Allocate", "allocate", "done"),
    UnaryCall("Free", "free", "done"),
    UnaryCall("Copy", "copy", "done"),
    UnaryCall("Fill", "fill", "done"),
    UnaryCall("WritePointers", "write_pointers", "done"),
    UnaryCall("CreateStream", "create_stream", "done"),
    UnaryCall("DestroyStream", "destroy_stream", "done"),
    UnaryCall("RecordEvent", "record_event", "done"),
    UnaryCall("WaitEvent", "wait_event", "done"),
    UnaryCall("QueryEvent", "query_event", "event"),
    UnaryCall("ElapsedTime", "elapsed_time", "event"),
    UnaryCall("DestroyEvent", "destroy_event", "done"),
    UnaryCall("LoadModule", "load_module", "module", describe="describe_module"),
    UnaryCall("UnloadModule", "unload_module", "done"),
    UnaryCall("GetFunction", "get_function", "function", describe="describe_function"),
    UnaryCall("GetGlobal", "get_global", "global"),
    UnaryCall("Launch", "launch", "done"),
    UnaryCall("Sync", "sync", "done"),
    UnaryCall("Flush", "flush", "done"),
    UnaryCall("MemoryUsage", "memory_usage", "memory_usage"),
    UnaryCall("MemoryCleanup", "memory_cleanup", "done"),
    UnaryCall("StartProfile", "start_profile", "done"),
    UnaryCall("EndProfile", "end_profile", "profile"),
    UnaryCall("AllReduce", "all_reduce", "done"),
    UnaryCall("SyncCollective", "sync_collective", "done"),
    UnaryCall("Collective", "collective", "done"),
    UnaryCall("Dispatch", "dispatch", "dispatch"),
    UnaryCall("BeginCapture", "begin_capture", "done"),
    UnaryCall("EndCapture", "end_capture", "graph"),
    UnaryCall("BeginConditional", "begin_conditional", "done"),
    UnaryCall("EndConditional", "end_conditional", "done"),
    UnaryCall("BeginBranch", "begin_branch", "done"),
    UnaryCall("LaunchGraph", "launch_graph", "done"),
    UnaryCall("UpdateGraph", "update_graph", "done"),
    UnaryCall("DestroyGraph", "destroy_graph", "done"),
    UnaryCall("Prepare", "prepare", "done"),
    UnaryCall("LaunchPrepared", "launch_prepared", "done"),
    UnaryCall("DestroyPrepared", "destroy_prepared", "done"),
    UnaryCall("CreateTensorMap", "create_tensor_map", "done"),
    UnaryCall("DestroyTensorMap", "destroy_tensor_map", "done"),
    UnaryCall("Occupancy", "occupancy", "occupancy"),
    UnaryCall("SetAllocationMode", "set_allocation_mode", "done"),
    UnaryCall("StartTrace", "start_trace", "done"),
    UnaryCall("EndTrace", "end_trace", "trace"),
)


def build_command(kind: str, message: Message | None, stream: int) -> commands_pb2.Command:
    """Returns `message` as the command of field `kind`. The request number is set when the command is sent."""
    command = commands_pb2.Command(stream=stream)
    field = getattr(command, kind)
    field.SetInParent()
    if message is not None:
        field.CopyFrom(message)
    return command


async def submit(channel: Channel, command: commands_pb2.Command) -> commands_pb2.Result:
    """Sends a command and returns its result.

    Raises `StatusError` with the device's own status if the command failed. Its paths of invalid fields begin in the
    request of the single call, whose field `command` is the command.
    """
    if channel.calls >= MAX_CALLS:
        raise Refusal(
            Reason.QUEUE_FULL,
            f"{channel.calls} calls of the session are under way on this device; the maximum is {MAX_CALLS}.",
            fix="Wait for some, or send the commands in batches on Execute.",
            details={"requested": channel.calls + 1, "allowed": MAX_CALLS},
            retry_after_s=0.05,
        )
    queue, size = channel.batches.queue, command.ByteSize()
    if queue.full:
        await _wait_for_room(queue)
    queue.count(size)
    try:
        result = await channel.call(command)
    finally:
        queue.release(size)
    if result.HasField("error"):
        raise StatusError(within(result.error, "command"))
    return result


async def _wait_for_room(queue: CommandQueue) -> None:
    try:
        async with asyncio.timeout(queue.call_wait):
            await queue.wait_for_room()
    except TimeoutError:
        raise Refusal(
            Reason.QUEUE_FULL,
            f"{queue.commands} batches and calls of this tenant, {queue.bytes} bytes, have been taken and are not "
            f"executed; there was no room for another within {queue.call_wait:g} s.",
            fix="Wait for some, or ask for a larger quota.",
            details={"commands": queue.commands, "bytes": queue.bytes},
            retry_after_s=1.0,
        ) from None


async def perform(call: UnaryCall, request: Any, channel: Channel) -> Message:
    """Sends the command of a single call and returns its answer."""
    result = await submit(channel, build_command(call.command, request.command, request.target.stream))
    if call.describe:
        command = build_command(call.describe, None, request.target.stream)
        setattr(getattr(command, call.describe), call.handle, getattr(request.command, call.handle))
        result = await submit(channel, command)
    answer: Message = getattr(result, call.result)
    if result.WhichOneof("kind") not in (call.result, None):
        raise Refusal(
            Reason.INTERNAL,
            f"The device process answered {call.rpc} with {result.WhichOneof('kind')} instead of {call.result}.",
        )
    return answer


def behaviour(call: UnaryCall, with_channel: WithChannel) -> Behaviour:
    """Returns the handler of one single call. `with_channel` provides the channel and keeps its session alive."""

    async def handle(request: Any, context: Context) -> Any:
        return await with_channel(request.target, partial(perform, call, request), call.rpc)

    return handle
