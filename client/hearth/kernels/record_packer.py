"""Packers of the variable part of a launch record: code generated for each list of argument types.

A loop over the arguments takes about as long as the rest of the client's work for a launch; unrolled code takes a third
of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hearth.session.memory import Space

Packer = Callable[[Sequence[Any], "Space"], bytes | None]
"""Packs the arguments to the part of the record that follows the layout: (arguments, space that their memory must be
in) -> bytes. Returns None if the memory of an argument cannot be used. Raises `struct.error` for a number out of
range."""

MAX_UNROLLED = 64
"""Maximum number of arguments for which code is generated; for more, or a struct with pointers, the packer loops."""


def packer(
    count: int,
    pointers: Sequence[int],
    structs: Sequence[int],
    raw: Sequence[int],
    pack: Callable[..., bytes],
    raw_bytes: Callable[[Any], bytes],
    types: Sequence[type] = (),
) -> Packer:
    """Builds the packer for a list of arguments.

    Args:
        count: Number of arguments.
        pointers: Positions of arguments on the device.
        structs: Positions of structs with pointers.
        raw: Positions of other arguments that `raw_bytes` converts.
        pack: Packs (handle of each pointer..., offset or value of each argument...) to bytes.
        raw_bytes: Converts an argument for which `struct` has no code.
        types: Type of each argument: the packer then also returns None for an argument of another type, and raises
            ValueError for another number of arguments. Empty: types are not checked. Only for arguments for which code
            is generated.

    Returns:
        The packer.
    """
    if structs or count > MAX_UNROLLED:
        return _looping(pointers, structs, raw, pack, raw_bytes)
    values = [f"a{index}" for index in range(count)]
    lines = ["def unrolled(args, space):", f"    [{', '.join(values)}] = args"]
    if types:
        mismatch = " or ".join(f"type(a{index}) is not T{index}" for index in range(count))
        lines += [f"    if {mismatch}:", "        return None"]
    lines += [f"    m{index} = a{index}._memory" for index in pointers]
    if pointers:
        foreign = " or ".join(f"m{index}.owner is not space" for index in pointers)
        lines += [f"    if {foreign}:", "        return None"]
    for index in pointers:
        values[index] = f"a{index}._offset"
    for index in raw:
        values[index] = f"raw_bytes(a{index})"
    handles = [f"m{index}.handle" for index in pointers]
    lines.append(f"    return pack({', '.join(handles + values)})")
    names: dict[str, Any] = {"pack": pack, "raw_bytes": raw_bytes}
    names.update({f"T{index}": kind for index, kind in enumerate(types)})
    exec("\n".join(lines), names)  # the code contains only numbers and fixed names
    unrolled: Packer = names["unrolled"]
    return unrolled


def _looping(
    pointers: Sequence[int],
    structs: Sequence[int],
    raw: Sequence[int],
    pack: Callable[..., bytes],
    raw_bytes: Callable[[Any], bytes],
) -> Packer:
    with_addresses = sorted((*pointers, *structs))
    if structs:
        from hearth.kernels.pointers import struct_of  # imported here, because few launches pass pointers in structs

    def pack_one_by_one(args: Sequence[Any], space: Space) -> bytes | None:
        """Packs the arguments one by one; see `Packer`.

        Args:
            args: The arguments of the launch.
            space: The space that the memory of arrays must be in.

        Returns:
            The part of the record; None if the memory of an array is not in `space`.
        """
        values, handles = list(args), []
        for index in with_addresses:
            arg = values[index]
            if index in structs:
                contents = struct_of(arg)
                assert contents is not None
                for _, operand in contents.pointers:
                    if operand._memory.owner is not space:
                        return None
                    handles.append(operand._memory.handle)
                values[index] = contents.with_offsets()
            else:
                if arg._memory.owner is not space:
                    return None
                handles.append(arg._memory.handle)
                values[index] = arg._offset
        for index in raw:
            values[index] = raw_bytes(values[index])
        return pack(*handles, *values)

    return pack_one_by_one
