"""Symbols that the inputs of a link define: a symbol must be defined once.

nvJitLink takes one of several definitions without a message, or crashes, where `nvcc` refuses them. Covers CUBIN and
PTX. Does not cover fatbins, archives and objects of the host. The linker itself checks code for link-time optimization.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hearthd.device.compiler import image_headers
from hearthd.device.compiler.elf import STB_GLOBAL, ElfFile

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
        for symbol in ElfFile(code).symbols():
            if symbol.binding == STB_GLOBAL and symbol.section:
                yield symbol.name.decode(errors="replace")
    elif code.lstrip()[:2] == b"//" or code.lstrip().startswith(b".version"):
        for match in _PTX.finditer(code):
            yield match[1].decode(errors="replace")
