"""Collectives over several devices of a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hearth import stream as streams
from hearth.array import DeviceArray
from hearth.errors import ArgumentError, DtypeError, UnsupportedError
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.device import Device

_OPS = {
    "sum": commands_pb2.REDUCE_OP_SUM,
    "mean": commands_pb2.REDUCE_OP_MEAN,
    "min": commands_pb2.REDUCE_OP_MIN,
    "max": commands_pb2.REDUCE_OP_MAX,
    "prod": commands_pb2.REDUCE_OP_PROD,
}


class Group:
    """Devices that compute collectives together: ``Group(node.devices)``. One device is a group as well."""

    def __init__(self, devices: Sequence[Device]) -> None:
        devices = list(devices)
        if not devices:
            raise ArgumentError("a group needs a device.", reason="INVALID_ARGUMENT", fix="Group(node.devices)")
        sessions = {id(device._node._session) for device in devices}
        if len(sessions) > 1:
            names = ", ".join(repr(device) for device in devices)
            raise UnsupportedError(
                f"the group spans several nodes or sessions: {names}.",
                reason="UNSUPPORTED",
                fix="this version groups the devices of one connect().",
            )
        ordinals = [device.ordinal for device in devices]
        if len(set(ordinals)) != len(ordinals):
            raise ArgumentError(
                f"a device appears twice in {ordinals}.", reason="INVALID_ARGUMENT", fix="name each device once."
            )
        self.devices = devices
        self._session = devices[0]._node._session
        self._key = tuple(sorted(ordinals))

    def all_reduce(
        self,
        arrays: Sequence[DeviceArray],
        op: str = "sum",
        outs: Sequence[DeviceArray] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Reduces `arrays`, one for each device in the group's order, elementwise, so that each device has the result:
        in place, or in `outs`.

        `op`: ``"sum"``, ``"mean"``, ``"min"``, ``"max"`` or ``"prod"``. Sent one way, on each device's current stream;
        later work on the arrays waits for it. `timeout` in seconds, for all ranks to be there and to finish: what comes
        of it (`CommunicatorError`) surfaces at a sync. Raises `ArgumentError` and `DtypeError` where shapes, dtypes or
        devices do not fit.
        """
        targets = arrays if outs is None else outs
        number = _op(op)
        self._check("arrays", arrays, arrays)
        self._check("outs", targets, arrays)
        if timeout is not None and timeout <= 0:
            raise ArgumentError(f"timeout is {timeout} s.", reason="INVALID_ARGUMENT", fix="give seconds above 0.")
        for array in (*arrays, *targets):
            array._usable()
        if arrays[0].size == 0:
            return
        timeout_ns = 0 if timeout is None else max(1, int(timeout * 1e9))
        with self._session.group_lock:  # the same order on every device, whichever threads and groups take part
            sequence = self._next_sequence()
            for source, target in zip(arrays, targets, strict=True):
                self._present(source, target, sequence, number, source.size, str(source.dtype), timeout_ns)

    def synchronize(self) -> None:
        """Lets later work on each device's current stream wait, on the device, for the collectives so far."""
        for device in self.devices:
            attachment = device._connection.attachment()
            command = commands_pb2.Command(
                stream=streams.resolve(None, device._connection, attachment),
                sync_collective=commands_pb2.SyncCollective(),
            )
            attachment.submit(command)

    def __repr__(self) -> str:
        return f"<hearth.Group of devices {[device.ordinal for device in self.devices]}>"

    def _next_sequence(self) -> int:
        """The number of the set's next operation; `group_lock` is held."""
        counters = self._session.group_sequences
        counters[self._key] = sequence = counters.get(self._key, 0) + 1
        return sequence

    def _present(
        self,
        source: DeviceArray,
        target: DeviceArray,
        sequence: int,
        op: commands_pb2.ReduceOp,
        count: int,
        dtype: str,
        timeout_ns: int,
    ) -> None:
        """One rank's part, unchecked."""
        attachment = source._usable()
        command = commands_pb2.Command(stream=streams.resolve(None, source._connection, attachment))
        part = command.all_reduce
        part.devices.extend(self._key)
        part.sequence = sequence
        part.source, part.source_offset = source._memory.handle, source._offset
        part.destination, part.destination_offset = target._memory.handle, target._offset
        part.count = count
        part.dtype = dtype
        part.op = op
        part.timeout_ns = timeout_ns
        attachment.submit(command)

    def _check(self, what: str, arrays: Sequence[DeviceArray], like: Sequence[DeviceArray]) -> None:
        if len(arrays) != len(self.devices):
            raise ArgumentError(
                f"{what} has {len(arrays)} entries; the group has {len(self.devices)} devices.",
                reason="INVALID_ARGUMENT",
                fix="pass one array for each device, in the group's order.",
            )
        for index, (array, device) in enumerate(zip(arrays, self.devices, strict=True)):
            if not isinstance(array, DeviceArray):
                raise DtypeError(
                    f"{what}[{index}] is a {type(array).__name__}.",
                    reason="INVALID_ARGUMENT",
                    fix="upload it with node.device(i).asarray(...).",
                )
            if array._connection is not device._connection:
                raise ArgumentError(
                    f"{what}[{index}] is {array!r}; rank {index} of the group is device {device.ordinal}.",
                    reason="INVALID_ARGUMENT",
                    fix="pass the arrays in the order of group.devices.",
                )
            if not array.flags.c_contiguous:
                raise ArgumentError(
                    f"{what}[{index}] is {array!r} with strides {array.strides}; a collective takes contiguous memory.",
                    reason="INVALID_ARGUMENT",
                    fix="pass x.copy().",
                )
            if array.shape != like[0].shape or array.dtype != like[0].dtype:
                raise ArgumentError(
                    f"{what}[{index}] is {array.dtype} {array.shape}; rank 0 has {like[0].dtype} {like[0].shape}.",
                    reason="COLLECTIVE_MISMATCH",
                    fix="every rank takes part with the same shape and dtype.",
                )


def _op(op: str) -> commands_pb2.ReduceOp:
    number = _OPS.get(op)
    if number is None:
        raise ArgumentError(f"op is {op!r}.", reason="INVALID_ARGUMENT", fix=f"use one of {', '.join(_OPS)}.")
    return number
