"""Bindings of a dispatch, and every check of them that needs no lookup.

A binding is one kernel parameter. All but `ROLE_VALUE` get a transient buffer of `size` bytes:

============ =========================== =========================== =====================================
role         before the launch           afterwards                  fields
============ =========================== =========================== =====================================
INPUT        filled with the input       discarded                   `size`, `data` or `upload`
OUTPUT       cleared completely          its range is returned       `size`, range, `download`
INPUT_OUTPUT filled with the input       its range is returned       `size`, `data` or `upload`, range,
                                                                     `download`
============ =========================== =========================== =====================================

An input is as long as its buffer; an output's range defaults to the whole buffer. An empty input needs neither data
nor an upload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2

Binding = commands_pb2.Binding


class BindingFailure(NamedTuple):
    """A failed check of one binding."""

    reason: Reason
    text: str


class TransientBuffer(NamedTuple):
    """A buffer that exists only during the dispatch. Sizes and offsets are in bytes; transfer number 0 means inline."""

    binding: int
    """Index of the binding."""
    size: int
    has_input: bool
    """True if the buffer is filled from the host; otherwise it is cleared."""
    upload: int
    has_output: bool
    offset: int
    length: int
    download: int


class PointerTarget(NamedTuple):
    """Target of one pointer parameter of the kernel."""

    binding: int
    handle: int
    """Handle of a buffer or a tensor map; 0: the transient buffer of the binding."""
    tensor_map: bool = False


class DispatchPlan(NamedTuple):
    """The checked bindings of a dispatch.

    `arguments` are for the parameter block; the argument of a transient buffer names no buffer yet.
    """

    arguments: list[commands_pb2.Argument]
    transients: list[TransientBuffer]
    pointer_targets: list[PointerTarget]
    """Targets of the pointers, in the order of the parameters."""
    iterations: int

    @property
    def transfers(self) -> list[int]:
        """Numbers of the transfers that the dispatch names."""
        return [number for slot in self.transients for number in (slot.upload, slot.download) if number]


def read_bindings(
    command: commands_pb2.Dispatch, inputs: Sequence[bytes], max_inline_bytes: int
) -> tuple[DispatchPlan, list[BindingFailure]]:
    """Returns the plan and the faults of the command; a plan with faults must not run.

    `inputs` has the `data` of each binding, because each access to the message would copy the bytes.
    """
    failures: list[BindingFailure] = []
    arguments: list[commands_pb2.Argument] = []
    transients: list[TransientBuffer] = []
    pointer_targets: list[PointerTarget] = []
    for index, (binding, data) in enumerate(zip(command.bindings, inputs, strict=True)):
        faults = [] if is_plain(binding, data) else check_binding(index, binding, data)
        failures += faults
        if binding.role == Binding.ROLE_VALUE:
            value = binding.value
            arguments.append(value)
            if value.HasField("pointer"):
                pointer_targets.append(PointerTarget(index, value.pointer.buffer))
            elif value.HasField("tensor_map"):
                pointer_targets.append(PointerTarget(index, value.tensor_map, tensor_map=True))
            elif value.HasField("structure"):
                pointer_targets += [PointerTarget(index, field.pointer.buffer) for field in value.structure.pointers]
            continue
        read_only = binding.role == Binding.ROLE_INPUT
        arguments.append(commands_pb2.Argument(pointer=commands_pb2.Argument.Pointer(read_only=read_only)))
        if not faults:
            pointer_targets.append(PointerTarget(index, 0))
            transients.append(_transient(index, binding))
    iterations = command.iterations if command.HasField("iterations") else 1
    if not iterations:
        failures.append(
            BindingFailure(Reason.LAUNCH_INVALID, "iterations is 0; a kernel must be launched at least once")
        )
    inline = sum(slot.length for slot in transients if slot.has_output and not slot.download)
    if inline > max_inline_bytes:
        failures.append(
            BindingFailure(
                Reason.MESSAGE_TOO_LARGE,
                f"the outputs returned inline have {inline} bytes together; the maximum is {max_inline_bytes}: "
                "name a download for the large ones",
            )
        )
    plan = DispatchPlan(arguments, transients, pointer_targets, iterations)
    transfers = plan.transfers
    if len(transfers) != len(set(transfers)):
        for number, times in Counter(transfers).items():
            if times > 1:
                text = f"{times} transfers have the number {number}; each transfer needs a separate number"
                failures.append(BindingFailure(Reason.HANDLE_IN_USE, text))
    return plan, failures


def named_transfers(command: commands_pb2.Dispatch) -> list[int]:
    """Returns every transfer that a command names, including those of invalid bindings.

    A client may wait at the other end of such a transfer, too.
    """
    return [number for binding in command.bindings for number in (binding.upload, binding.download) if number]


def refuse(kernel: str, failures: Sequence[BindingFailure], details: dict[str, object] | None = None) -> Refusal:
    """Returns the refusal of a dispatch: the first failure gives the reason, the message lists all."""
    return Refusal(
        failures[0].reason,
        f"dispatch of {kernel}: " + "; ".join(failure.text for failure in failures),
        fix="correct these arguments and dispatch again; nothing was allocated or run",
        details={"kernel": kernel, "failures": len(failures), **(details or {})},
    )


def is_plain(binding: Binding, data: bytes) -> bool:
    """True if a quick check finds no fault in the binding, by far the most frequent case."""
    role, ranged = binding.role, binding.range_offset or binding.HasField("range_size")
    if role == Binding.ROLE_VALUE:
        surplus = ranged or data or binding.size or binding.upload or binding.download
        return not surplus and binding.value.WhichOneof("value") is not None
    if ranged or binding.HasField("value"):
        return False
    if role == Binding.ROLE_OUTPUT:
        return not (data or binding.upload)
    if role != Binding.ROLE_INPUT_OUTPUT and (role != Binding.ROLE_INPUT or binding.download):
        return False
    return not data if binding.upload else len(data) == binding.size


def check_binding(index: int, binding: Binding, data: bytes) -> list[BindingFailure]:
    """Returns every fault of the binding, as texts that contain its index."""
    try:
        role = Binding.Role.Name(binding.role)
    except ValueError:
        role = str(binding.role)
    known_roles = (Binding.ROLE_VALUE, Binding.ROLE_INPUT, Binding.ROLE_OUTPUT, Binding.ROLE_INPUT_OUTPUT)
    if binding.role not in known_roles:
        return [_invalid(index, f"has the role {role}; it must be one of VALUE, INPUT, OUTPUT and INPUT_OUTPUT")]
    role = role.removeprefix("ROLE_")
    faults: list[BindingFailure] = []
    for field in sorted(_set_fields(binding, data) - _FIELDS[binding.role]):
        faults.append(_invalid(index, f"is {_AN.get(role, 'a')} {role} and has a {field}"))
    if binding.role == Binding.ROLE_VALUE:
        if binding.value.WhichOneof("value") is None:
            faults.append(_invalid(index, "is a VALUE without a value"))
        return faults
    if binding.role != Binding.ROLE_OUTPUT:
        faults += _check_input(index, binding, data)
    if binding.role != Binding.ROLE_INPUT:
        faults += _check_range(index, binding)
    return faults


def _check_input(index: int, binding: Binding, data: bytes) -> list[BindingFailure]:
    if data and binding.upload:
        return [_invalid(index, f"has its bytes inline and on upload {binding.upload}; it must use only one of them")]
    if not binding.upload and len(data) != binding.size:
        return [_invalid(index, f"has a buffer of {binding.size} bytes, and {len(data)} are given inline")]
    return []


def _check_range(index: int, binding: Binding) -> list[BindingFailure]:
    start = binding.range_offset
    end = start + binding.range_size if binding.HasField("range_size") else max(start, binding.size)
    if end <= binding.size:
        return []
    return [
        BindingFailure(
            Reason.OUT_OF_BOUNDS,
            f"binding {index} returns bytes [{start}..{end}) of an output of {binding.size}",
        )
    ]


_FIELDS = {
    Binding.ROLE_VALUE: {"value"},
    Binding.ROLE_INPUT: {"size", "data", "upload"},
    Binding.ROLE_OUTPUT: {"size", "range", "download"},
    Binding.ROLE_INPUT_OUTPUT: {"size", "data", "upload", "range", "download"},
}
_AN = {"INPUT": "an", "OUTPUT": "an", "INPUT_OUTPUT": "an"}


def _set_fields(binding: Binding, data: bytes) -> set[str]:
    """Returns the names of the fields that are set; both fields of a range count as "range"."""
    fields = {"value"} if binding.HasField("value") else set()
    if binding.range_offset or binding.HasField("range_size"):
        fields.add("range")
    if data:
        fields.add("data")
    return fields | {field for field in ("size", "upload", "download") if getattr(binding, field)}


def _transient(index: int, binding: Binding) -> TransientBuffer:
    length = binding.range_size if binding.HasField("range_size") else binding.size - binding.range_offset
    has_output = binding.role != Binding.ROLE_INPUT
    return TransientBuffer(
        binding=index,
        size=binding.size,
        has_input=binding.role != Binding.ROLE_OUTPUT,
        upload=binding.upload,
        has_output=has_output,
        offset=binding.range_offset,
        length=length if has_output else 0,
        download=binding.download,
    )


def _invalid(index: int, text: str) -> BindingFailure:
    return BindingFailure(Reason.INVALID_ARGUMENT, f"binding {index} {text}")
