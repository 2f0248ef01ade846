"""Sizes of thread-local variables in an ELF image: a kernel's `__shared__` variables are such (see source.py)."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

_SHT_SYMTAB = 2
_STT_TLS = 6
_LOCAL_NAME = re.compile(rb"_ZZ(.+)E(?:\d.*|s.*)$")


def thread_local_sizes(image: bytes) -> Mapping[str, int]:
    """Bytes of function-local thread-local variables, summed by the mangled name of their function.

    Symbol table layout: ELF-64 Object File Format, figure 6. Empty for an image without symbols.
    """
    sizes: dict[str, int] = {}
    if image[:6] != b"\x7fELF\x02\x01":
        return sizes
    (offset,) = struct.unpack_from("<Q", image, 40)
    entry_size, count = struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * entry_size) for i in range(count)]
    for section in sections:
        _, kind, _, _, start, size, link, _, _, _ = section
        if kind != _SHT_SYMTAB:
            continue
        names = sections[link][4]
        for name, info, _, _, _, length in struct.iter_unpack("<IBBHQQ", image[start : start + size]):
            if info & 0xF != _STT_TLS:
                continue
            text = image[names + name : image.index(b"\0", names + name)]
            match = _LOCAL_NAME.match(text)
            if match is not None:
                function = match[1].decode(errors="replace")
                sizes[function] = sizes.get(function, 0) + length
    return sizes
