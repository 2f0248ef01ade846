"""Static shared memory of each kernel, read from a compiled object.

Counts the thread-local variables that the kernel can reach, because `__shared__` variables are compiled as thread-local
ones (source.py). The relocations of an object file show which functions and variables each function refers to, after
the compiler's optimizations, and through templates, virtual functions and tables of pointers.

Layouts: ELF-64 Object File Format, figures 3 (header), 4 (sections), 6 (symbols) and 7 (relocations); the types of
x86-64's relocations: System V ABI, AMD64 Supplement, table 4.9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\x7fELF"
_SHT_SYMTAB = 2
_SHT_RELA = 4
_STT_SECTION = 3
_STT_TLS = 6
_EM_X86_64 = 62
_FIELD_BYTES = {2: 4, 4: 4}
"""Size in bytes of the relocated field, by relocation type: R_X86_64_PC32 and R_X86_64_PLT32 are relative to the
field's end."""

_OWN_VARIABLES = frozenset({b"_ZN6hearthL4selfE", b"_ZN18cooperative_groups7details16leaders_meetingsE"})
"""Thread-local variables of the backend's own headers: thread.h, cooperative_groups/details/wide_tile.h."""

_TABLE = b"14hearth_kernels"
KERNEL_BYTES = 40
"""sizeof(hearth::Kernel), and the offset of its member `run` (include/hearth/abi.h)."""

RUN_OFFSET = 32


@dataclass(frozen=True)
class _Symbol:
    name: bytes
    kind: int
    section: int
    value: int
    size: int


def static_shared_bytes(code: bytes) -> list[int]:
    """Returns the bytes of static shared memory of each kernel of an object file, in its table's order."""
    references = _Object(code)
    return [references.shared_by(kernel) for kernel in references.kernels()]


class _Object:
    """The functions and variables of an object file, and the references between them."""

    def __init__(self, code: bytes) -> None:
        if code[:6] != MAGIC + b"\x02\x01":  # 64 bits, little-endian
            raise ValueError("the compiler's output is not a little-endian ELF-64 object")
        self._code = code
        (machine,) = struct.unpack_from("<H", code, 18)
        self._field_bytes = _FIELD_BYTES if machine == _EM_X86_64 else {}
        (offset,) = struct.unpack_from("<Q", code, 40)
        size, count = struct.unpack_from("<HH", code, 58)
        self._sections = [struct.unpack_from("<IIQQQQIIQQ", code, offset + i * size) for i in range(count)]
        table = next(section for section in self._sections if section[1] == _SHT_SYMTAB)
        self._symbols = list(self._read_symbols(table))
        self._owners: dict[int, list[_Symbol]] = {}
        for symbol in self._symbols:
            if symbol.size and symbol.kind != _STT_TLS:
                self._owners.setdefault(symbol.section, []).append(symbol)
        self._references: dict[_Symbol, set[_Symbol]] = {}
        self._runs: dict[int, _Symbol] = {}
        for section in self._sections:
            if section[1] == _SHT_RELA:
                self._read_relocations(section)

    def kernels(self) -> Iterator[_Symbol]:
        """Yields the function that runs each kernel's threads, in the order of the table."""
        for offset in range(RUN_OFFSET, 1 + max(self._runs, default=0), KERNEL_BYTES):
            yield self._runs[offset]

    def shared_by(self, function: _Symbol) -> int:
        visited = {function}
        pending = [function]
        while pending:
            unvisited = self._references.get(pending.pop(), set()) - visited
            visited |= unvisited
            pending += unvisited
        return sum(symbol.size for symbol in visited if symbol.kind == _STT_TLS and symbol.name not in _OWN_VARIABLES)

    def _read_symbols(self, section: tuple[int, ...]) -> Iterator[_Symbol]:
        names = self._sections[section[6]][4]
        data = self._code[section[4] : section[4] + section[5]]
        for offset, info, _, index, value, size in struct.iter_unpack("<IBBHQQ", data):
            name = self._code[names + offset : self._code.index(b"\0", names + offset)]
            yield _Symbol(name, info & 0xF, index, value, size)

    def _read_relocations(self, section: tuple[int, ...]) -> None:
        data = self._code[section[4] : section[4] + section[5]]
        for offset, info, addend in struct.iter_unpack("<QQq", data):
            source = self._owner(section[7], offset)
            target: _Symbol | None = self._symbols[info >> 32]
            assert target is not None
            if target.kind == _STT_SECTION:
                target = self._owner(target.section, addend + self._field_bytes.get(info & 0xFFFFFFFF, 0))
            if source is None or target is None:
                continue
            self._references.setdefault(source, set()).add(target)
            if _TABLE in source.name and (offset - source.value) % KERNEL_BYTES == RUN_OFFSET:
                self._runs[offset - source.value] = target

    def _owner(self, section: int, offset: int) -> _Symbol | None:
        """Returns the function or variable that contains an offset of a section."""
        for symbol in self._owners.get(section, ()):
            if symbol.value <= offset < symbol.value + symbol.size:
                return symbol
        return None
