"""Packers of the variable part of a launch record: code generated for each list of argument types.

A loop over the arguments takes about as long as all else that a launch costs its client; written out, it is a third of
that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hearth.session.memory import Space

Packer = Callable[[Sequence[Any], "Space"], bytes | None]
"""(arguments, where their memory has to be) -> all of the record that follows the layout; None where the memory of one
cannot be used. Raises `struct.error` for a number that does not fit."""

WRITTEN_OUT = 64
"""Arguments; for more there is the loop."""


def packer(
    count: int,
    pointers: Sequence[int],
    raw: Sequence[int],
    pack: Callable[..., bytes],
    raw_bytes: Callable[[Any], bytes],
    types: Sequence[type] = (),
) -> Packer:
    """Builds the packer of `count` arguments; those at `pointers` lie on the device, those at `raw` are passed as
    `raw_bytes` says.

    `pack`: (handle of each pointer..., offset or value of each argument...) -> bytes. With `types`, of which there are
    as many as arguments, it also answers None where an argument has another, and raises ValueError for another number
    of arguments.
    """
    if count > WRITTEN_OUT:
        return _looping(pointers, raw, pack, raw_bytes)
    values = [f"a{index}" for index in range(count)]
    lines = ["def written(args, space):", f"    [{', '.join(values)}] = args"]
    if types:
        other = " or ".join(f"type(a{index}) is not T{index}" for index in range(count))
        lines += [f"    if {other}:", "        return None"]
    lines += [f"    m{index} = a{index}._memory" for index in pointers]
    if pointers:
        away = " or ".join(f"m{index}.owner is not space" for index in pointers)
        lines += [f"    if {away}:", "        return None"]
    for index in pointers:
        values[index] = f"a{index}._offset"
    for index in raw:
        values[index] = f"raw_bytes(a{index})"
    handles = [f"m{index}.handle" for index in pointers]
    lines.append(f"    return pack({', '.join(handles + values)})")
    names: dict[str, Any] = {"pack": pack, "raw_bytes": raw_bytes}
    names.update({f"T{index}": kind for index, kind in enumerate(types)})
    exec("\n".join(lines), names)  # nothing in it but numbers
    written: Packer = names["written"]
    return written


def _looping(
    pointers: Sequence[int], raw: Sequence[int], pack: Callable[..., bytes], raw_bytes: Callable[[Any], bytes]
) -> Packer:
    def looping(args: Sequence[Any], space: Space) -> bytes | None:
        values, handles = list(args), []
        for index in pointers:
            array = values[index]
            if array._memory.owner is not space:
                return None
            handles.append(array._memory.handle)
            values[index] = array._offset
        for index in raw:
            values[index] = raw_bytes(values[index])
        return pack(*handles, *values)

    return looping
