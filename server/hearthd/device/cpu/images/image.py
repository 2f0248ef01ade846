"""The image of a module: a shared object, followed by the static shared memory of each of its kernels.

A loader ignores data after a shared object. The static shared memory is read from the object file that the shared
object is linked from: it counts the thread-local variables that the kernel can reach, because `__shared__` variables
are compiled as thread-local ones (source.py). The relocations of an object file show which functions and variables each
function refers to, after the compiler's optimizations, and through templates, virtual functions and tables of pointers.

Layout of relocations: ELF-64 Object File Format, figure 7; the types of x86-64's relocations: System V ABI, AMD64
Supplement, table 4.9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hearthd.device.compiler.elf import MAGIC, SHT_RELA, STT_SECTION, STT_TLS, ElfFile, SectionHeader, Symbol

_MARK = b"HEARTH-1"
_END = struct.Struct("<I8s")
_EM_X86_64 = 62
_FIELD_BYTES = {2: 4, 4: 4}
"""Size in bytes of the relocated field, by relocation type: R_X86_64_PC32 and R_X86_64_PLT32 are relative to the
field's end."""

_OWN_VARIABLES = frozenset(
    {
        b"_ZL9threadIdx",
        b"_ZL8blockIdx",
        b"_ZL8blockDim",
        b"_ZL7gridDim",
        b"_ZN6hearthL4selfE",
        b"_ZN18cooperative_groups7details16leaders_meetingsE",
    }
)
"""Thread-local variables of the backend's own headers: thread.h, cooperative_groups/details/wide_tile.h."""

_TABLE = b"14hearth_kernels"
KERNEL_BYTES = 40
"""sizeof(hearth::Kernel), and the offset of its member `run` (include/hearth/abi.h)."""

RUN_OFFSET = 32


def pack(library: bytes, linked_object: bytes) -> bytes:
    """Returns the image of a shared object that was linked from an object file."""
    shared_bytes = static_shared_bytes(linked_object)
    return library + struct.pack(f"<{len(shared_bytes)}I", *shared_bytes) + _END.pack(len(shared_bytes), _MARK)


def shared_bytes(image: bytes) -> tuple[int, ...] | None:
    """Returns the bytes of static shared memory of each kernel of an image; None if `image` is not a valid image."""
    if len(image) < _END.size:
        return None
    count, mark = _END.unpack_from(image, len(image) - _END.size)
    start = len(image) - _END.size - 4 * count
    return struct.unpack_from(f"<{count}I", image, start) if mark == _MARK and start > 0 else None


def static_shared_bytes(code: bytes) -> list[int]:
    """Returns the bytes of static shared memory of each kernel of an object file, in its table's order."""
    references = _Object(code)
    return [references.shared_by(kernel) for kernel in references.kernels()]


class _Object:
    """The functions and variables of an object file, and the references between them."""

    def __init__(self, code: bytes) -> None:
        if code[:6] != MAGIC + b"\x02\x01":  # 64 bits, little-endian
            raise ValueError("the compiler's output is not a little-endian ELF-64 object")
        self._file = ElfFile(code)
        (machine,) = struct.unpack_from("<H", code, 18)
        self._field_bytes = _FIELD_BYTES if machine == _EM_X86_64 else {}
        self._symbols = list(self._file.symbols())
        self._owners: dict[int, list[Symbol]] = {}
        for symbol in self._symbols:
            if symbol.size and symbol.kind != STT_TLS:
                self._owners.setdefault(symbol.section, []).append(symbol)
        self._references: dict[Symbol, set[Symbol]] = {}
        self._runs: dict[int, Symbol] = {}
        for section in self._file.sections:
            if section.kind == SHT_RELA:
                self._read_relocations(section)

    def kernels(self) -> Iterator[Symbol]:
        """Yields the function that runs each kernel's threads, in the order of the table."""
        for offset in range(RUN_OFFSET, 1 + max(self._runs, default=0), KERNEL_BYTES):
            yield self._runs[offset]

    def shared_by(self, function: Symbol) -> int:
        visited = {function}
        pending = [function]
        while pending:
            unvisited = self._references.get(pending.pop(), set()) - visited
            visited |= unvisited
            pending += unvisited
        return sum(symbol.size for symbol in visited if symbol.kind == STT_TLS and symbol.name not in _OWN_VARIABLES)

    def _read_relocations(self, section: SectionHeader) -> None:
        for offset, info, addend in struct.iter_unpack("<QQq", self._file.content(section)):
            source = self._owner(section.info, offset)
            target: Symbol | None = self._symbols[info >> 32]
            assert target is not None
            if target.kind == STT_SECTION:
                target = self._owner(target.section, addend + self._field_bytes.get(info & 0xFFFFFFFF, 0))
            if source is None or target is None:
                continue
            self._references.setdefault(source, set()).add(target)
            if _TABLE in source.name and (offset - source.value) % KERNEL_BYTES == RUN_OFFSET:
                self._runs[offset - source.value] = target

    def _owner(self, section: int, offset: int) -> Symbol | None:
        """Returns the function or variable that contains an offset of a section."""
        for symbol in self._owners.get(section, ()):
            if symbol.value <= offset < symbol.value + symbol.size:
                return symbol
        return None
