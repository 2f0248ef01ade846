"""Arrays of pointers: buffers with addresses of other buffers, which the daemon writes.

`WritePointers` fills a whole buffer once. After that the buffer is read-only, so that its addresses remain those of its
targets. A launch that is passed the buffer is ordered by its targets as well, also by those that it reaches through
further arrays of pointers: see `Buffer.reaches`. The buffer holds the memory of its targets, as a graph does, until its
own handle is freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from hearth_proto.launches import MAX_PARAMETER_BYTES
from hearth_proto.layouts import RowLayout
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.memory.commands import MemoryCommands
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.buffer import POINTERS, Buffer, Reach
from hearthd.device.session.launch_plan import Q
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.buffer_copy import BufferCopy

COMMAND = "write of pointers"
MAX_POINTERS = 65_536
"""Most pointers in one array, which bounds the time that one command takes this thread: about 30 ms."""
MAX_REACHED = MAX_PARAMETER_BYTES // Q.size
"""Most buffers that one array reaches: as many as a kernel can have as arguments, because each launch is ordered by all
of them."""
MAX_REACHED_BY_SESSION = 16 * MAX_REACHED
"""Most buffers that all arrays of a session reach, counted for each array."""


class PointerCommands:
    """Executes WritePointers. Device-handle thread only."""

    def __init__(self, device: DeviceContext, memory: MemoryCommands) -> None:
        self._device = device
        self._memory = memory

    def write(self, origin: Origin, command: commands_pb2.WritePointers) -> Operation | None:
        """Returns the operation that fills the buffer with `data` and the addresses.

        The targets are held, and order launches of the buffer, from the arrival of the command on. If the command is
        refused, the contents of the buffer are invalid, so that no kernel takes them for addresses.
        """
        buffer = origin.session.buffers.find(command.buffer)
        try:
            targets = self._hold(origin.session, buffer, command)
        except Refusal as refusal:
            origin.fail(refusal, () if buffer.has_pointers else (buffer,))
            return None
        copy = BufferCopy(self._device, origin, buffer, RowLayout(0, len(command.data)))
        operation = Operation(
            origin,
            partial(self._write, copy, command, targets),
            writes=(origin.stream, buffer),
            reads=tuple(dict.fromkeys(target for target in targets if target is not buffer)),
            spoils=(buffer,),
        )
        operation.on_failure = lambda _: self._memory.release_reached(origin.session, buffer)
        return operation

    def _hold(self, session: DeviceSession, buffer: Buffer, command: commands_pb2.WritePointers) -> list[Buffer]:
        """Returns the target of each pointer, and holds all buffers that the array reaches.

        Raises Refusal(INVALID_HANDLE), Refusal(INVALID_ARGUMENT) for a buffer or a place that cannot have pointers, and
        Refusal(QUOTA_EXCEEDED) for too many targets; without effect in these cases.
        """
        targets = [session.buffers.find(target.buffer) for target in command.targets]
        _check(buffer, targets, command)
        reached: dict[Buffer, bool] = {}
        for pointer_target, target in zip(command.targets, targets, strict=True):
            for reached_buffer, only_read in (Reach(target, pointer_target.read_only), *target.reaches):
                reached[reached_buffer] = only_read and reached.get(reached_buffer, True)
        reached.pop(buffer, None)
        _check_number(buffer, len(reached), session.reached)
        self._memory.hold_reached(
            session, buffer, [Reach(reached_buffer, only_read) for reached_buffer, only_read in reached.items()]
        )
        session.shares = True
        session.replay_cache.forget()  # forgets launches with the buffer that are not ordered by its targets
        return targets

    def _write(self, copy: BufferCopy, command: commands_pb2.WritePointers, targets: Sequence[Buffer]) -> bool:
        origin, buffer = copy.origin, copy.buffer
        if origin.stream.track.full:
            return False
        buffer.check_writable(COMMAND)
        copy.locate(COMMAND)
        data = _relocated(command, targets)
        if data and not copy.put(0, data):
            return False
        self._device.telemetry.upload_inline_bytes += len(data)
        buffer.failure = None
        buffer.read_only = POINTERS
        origin.reply()
        return True


def _check(buffer: Buffer, targets: Sequence[Buffer], command: commands_pb2.WritePointers) -> None:
    """Raises Refusal(INVALID_ARGUMENT) if the buffer cannot be an array of pointers to the targets."""
    problem = fix = ""
    size, number = len(command.data), len(command.at)
    variable = next((target for target in targets if target.module is not None), None)
    if buffer.has_pointers:
        problem, fix = POINTERS.why, POINTERS.fix
    elif buffer.durable is not None:
        problem, fix = "is durable, and addresses are not those of a later device process", "use another buffer"
    elif buffer.module is not None:
        problem, fix = "is a variable of a module", "use a buffer that was allocated"
    elif size != buffer.size:
        problem, fix = f"has {buffer.size} bytes, and `data` {size}", "send the contents of the whole buffer"
    elif number > MAX_POINTERS:
        problem, fix = f"would have {number} pointers; the maximum is {MAX_POINTERS}", "use several buffers"
    elif not number == len(command.target) == len(command.offset):
        problem = f"has {number} places of pointers, {len(command.target)} targets and {len(command.offset)} offsets"
        fix = "send one of each for every pointer"
    elif number and max(command.target) >= len(targets):
        problem = f"has a pointer to target {max(command.target)}; there are {len(targets)}"
        fix = "send indexes in `targets`, from 0"
    elif number and (at := _misplaced(command.at, size)) is not None:
        problem = f"has {size} bytes, and a pointer at byte {at}, which overlaps its end or another pointer"
        fix = "name the places of the pointers in ascending order"
    elif variable is not None:
        problem = f"would point to buffer {variable.handle}, a variable of a module, which ends with its module"
        fix = "copy the variable to an array, and use that"
    if problem:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{COMMAND}: buffer {buffer.handle} {problem}",
            fix=fix,
            details={"buffer": buffer.handle, "buffer_size": buffer.size},
        )


def _misplaced(offsets: Sequence[int], size: int) -> int | None:
    """Returns the first place at which no pointer fits into `size` bytes after the one before; None if all fit."""
    for previous, at in pairwise(offsets):
        if at < previous + Q.size:
            return at
    return offsets[-1] if offsets[-1] + Q.size > size else None


def _check_number(buffer: Buffer, number: int, in_use: int) -> None:
    """Raises Refusal(QUOTA_EXCEEDED) if the array reaches too many buffers.

    Args:
        buffer: The array.
        number: Number of buffers that it reaches.
        in_use: Number that the other arrays of the session reach.
    """
    of_session = in_use + number
    if number <= MAX_REACHED and of_session <= MAX_REACHED_BY_SESSION:
        return
    limit = f"an array of pointers reaches at most {MAX_REACHED}"
    if number <= MAX_REACHED:
        limit = f"with its other arrays of pointers the session reaches {of_session}; the maximum is "
        limit += str(MAX_REACHED_BY_SESSION)
    raise Refusal(
        Reason.QUOTA_EXCEEDED,
        f"{COMMAND}: buffer {buffer.handle} reaches {number} buffers, directly or through others; {limit}",
        fix="point to places in a few large buffers, by offsets, or free arrays of pointers",
        details={"buffer": buffer.handle, "requested": number, "in_use": in_use, "allowed": MAX_REACHED},
    )


def _relocated(command: commands_pb2.WritePointers, targets: Sequence[Buffer]) -> bytes:
    """Returns the contents of the buffer with the addresses. Raises Refusal(OUT_OF_BOUNDS) for an offset."""
    data = bytearray(command.data)
    addresses = [target.range(0, 0, COMMAND) for target in targets]
    sizes = [target.size for target in targets]
    put = Q.pack_into
    for at, index, offset in zip(command.at, command.target, command.offset, strict=True):
        if offset > sizes[index]:
            target = targets[index]
            raise Refusal(
                Reason.OUT_OF_BOUNDS,
                f"{COMMAND}: the pointer at byte {at} of buffer {command.buffer} starts at byte {offset} of buffer "
                f"{target.handle}, which has {target.size}",
                fix="stay within the buffer",
                details={"buffer": target.handle, "offset": offset, "buffer_size": target.size},
            )
        put(data, at, addresses[index] + offset)
    return bytes(data)
