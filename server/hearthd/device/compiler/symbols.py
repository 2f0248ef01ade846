"""Symbols that the inputs of a link define: a symbol must be defined once.

nvJitLink takes one of several definitions without a message, or crashes, where `nvcc` refuses them. Covers CUBIN and
PTX. Does not cover fatbins, archives and objects of the host. The linker itself checks code for link-time optimization.
Pure.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence

from hearthd.device.compiler import image_headers

_HEADER = struct.Struct("<40xQ10xHHH")
"""Offset of the section headers, their size, number and the section of their names."""
_SECTION = struct.Struct("<4xI16xQQI4x8x8x")
"""Type, offset, size and link of a section."""
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_SYMTAB = 2
_STB_GLOBAL = 1
_PTX = re.compile(
    rb"^[ \t]*\.visible[ \t]+\.(?:entry|func|global|const)\b"
    rb"(?:[ \t]*\([^)]*\)|[ \t]*\.\w+(?:[ \t]+\d+)?)*[ \t]*([\w$%]+)",
    re.MULTILINE,
)


def duplicates(inputs: Sequence[bytes]) -> list[tuple[str, list[int]]]:
    """Returns each symbol that more than one input defines, with the indices of these inputs."""
    places: dict[str, list[int]] = {}
    for index, code in enumerate(inputs):
        for name in set(defined(code)):
            places.setdefault(name, []).append(index)
    return [(name, indices) for name, indices in sorted(places.items()) if len(indices) > 1]


def defined(code: bytes) -> Iterator[str]:
    """Yields the global symbols that an input defines: none for a format that is not covered.

    Raises Refusal(MODULE_INVALID) for a damaged CUBIN.
    """
    if code.startswith(image_headers.ELF_MAGIC):
        if int.from_bytes(code[18:20], "little") != image_headers.EM_CUDA:
            return  # an object of the host
        image_headers.read_cubin(code)  # checks that all sections are inside the file
        yield from _of_cubin(code)
    elif code.lstrip()[:2] == b"//" or code.lstrip().startswith(b".version"):
        for match in _PTX.finditer(code):
            yield match[1].decode(errors="replace")


def _of_cubin(code: bytes) -> Iterator[str]:
    start, size, count, _ = _HEADER.unpack_from(code)
    sections = [_SECTION.unpack_from(code, start + index * size) for index in range(count)]
    for kind, offset, length, link in sections:
        if kind != _SHT_SYMTAB or link >= count:
            continue
        _, names_at, names_size, _ = sections[link]
        names = code[names_at : names_at + names_size]
        for name, info, _, section, _, _ in _SYMBOL.iter_unpack(code[offset : offset + length // 24 * 24]):
            if info >> 4 == _STB_GLOBAL and section:
                yield names[name : names.find(b"\0", name)].decode(errors="replace")
