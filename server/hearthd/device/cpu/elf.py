"""Static shared memory of each kernel, read from the image of a module: the thread-local variables in its reach.

`__shared__` variables are thread-local ones (source.py). The linker keeps the relocations of the code
(`--emit-relocs`), so that the image tells which functions and variables each function refers to: exactly what the
compiler left of the program, through templates, virtual functions and tables of pointers.

Layouts: ELF-64 Object File Format, figures 3 (header), 4 (sections), 6 (symbols) and 7 (relocations).
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\x7fELF"
_SHT_SYMTAB = 2
_SHT_RELA = 4
_SHT_DYNSYM = 11
_STT_OBJECT = 1
_STT_FUNC = 2
_STT_TLS = 6
_THREAD_RECORD = "_ZN6hearthL4selfE"
"""The only thread-local variable of a module that is no shared memory (include/hearth/thread.h)."""

_CALL_ADDEND = 4
"""x86-64's relative references are to the end of their 4 bytes."""


@dataclass(frozen=True)
class _Symbol:
    kind: int
    value: int
    size: int


class SharedMemory:
    """The thread-local variables that the functions of an image refer to.

    An image without symbols or relocations has none.
    """

    def __init__(self, image: bytes) -> None:
        self._image = image
        self._owners: list[_Symbol] = []  # functions and objects, by address
        self._references: dict[_Symbol, set[_Symbol]] = {}
        self._sections: list[tuple[int, ...]] = []
        if image[:6] != MAGIC + b"\x02\x01":  # 64 bits, little-endian
            return
        (offset,) = struct.unpack_from("<Q", image, 40)
        size, count = struct.unpack_from("<HH", image, 58)
        self._sections = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * size) for i in range(count)]
        table = next((section for section in self._sections if section[1] == _SHT_SYMTAB), None)
        symbols = [] if table is None else list(self._symbols(table))
        found = {s for s in symbols if s.size and s.kind in (_STT_FUNC, _STT_OBJECT)}
        self._owners = sorted(found, key=lambda symbol: symbol.value)
        self._starts = [symbol.value for symbol in self._owners]
        for section in self._sections:
            if section[1] == _SHT_RELA and self._sections[section[6]][1] == _SHT_SYMTAB:
                self._read_relocations(section, symbols)

    def of(self, address: int) -> int:
        """Bytes of the variables in reach of the function at `address` in the image."""
        start = self._owner(address)
        seen = set() if start is None else {start}
        pending = list(seen)
        while pending:
            fresh = self._references.get(pending.pop(), set()) - seen
            seen |= fresh
            pending += fresh
        return sum(symbol.size for symbol in seen if symbol.kind == _STT_TLS)

    def address_of(self, name: str) -> int:
        """The address of a variable in the image; 0 where there is none of that name."""
        for section in self._sections:
            if section[1] in (_SHT_SYMTAB, _SHT_DYNSYM):
                names = self._sections[section[6]][4]
                for offset, _, _, _, value, _ in self._entries(section):
                    if self._is_named(names + offset, name):
                        return value
        return 0

    def _is_named(self, offset: int, name: str) -> bool:
        return self._image.startswith(name.encode() + b"\0", offset)

    def _entries(self, section: tuple[int, ...]) -> Iterator[tuple[int, int, int, int, int, int]]:
        return struct.iter_unpack("<IBBHQQ", self._image[section[4] : section[4] + section[5]])

    def _symbols(self, section: tuple[int, ...]) -> Iterator[_Symbol]:
        names = self._sections[section[6]][4]
        for offset, info, _, index, value, size in self._entries(section):
            kind = info & 0xF
            if kind == 3 and index < len(self._sections):  # a section's own symbol stands for its start
                value = self._sections[index][3]  # noqa: PLW2901
            if kind == _STT_TLS and self._is_named(names + offset, _THREAD_RECORD):
                size = 0  # noqa: PLW2901
            yield _Symbol(kind, value, size)

    def _read_relocations(self, section: tuple[int, ...], symbols: list[_Symbol]) -> None:
        data = self._image[section[4] : section[4] + section[5]]
        for place, info, addend in struct.iter_unpack("<QQq", data):
            source = self._owner(place)
            if source is None or info >> 32 >= len(symbols):
                continue
            symbol = symbols[info >> 32]
            target = symbol if symbol.size else self._owner(symbol.value + addend + _CALL_ADDEND)
            if target is not None and target != source:
                self._references.setdefault(source, set()).add(target)

    def _owner(self, address: int) -> _Symbol | None:
        """The function or object that holds `address`."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        found = self._owners[at]
        return found if address < found.value + found.size else None

