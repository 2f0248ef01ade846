"""Sections and symbols of ELF-64 files, little-endian (System V ABI, "Object Files"). Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"\x7fELF"
SECTION = struct.Struct("<IIQQQQIIQQ")
"""Fields of `SectionHeader`."""

SHT_SYMTAB, SHT_RELA, SHT_NOBITS = 2, 4, 8
STB_GLOBAL = 1
STT_SECTION, STT_TLS = 3, 6

_HEADER = struct.Struct("<40xQ10xHHH")
"""Offset of the section headers, their size, their number, and the index of the section of their names."""
_SYMBOL = struct.Struct("<IBBHQQ")


class SectionHeader(NamedTuple):
    """Header of a section. `name` is an offset in the section of names; `offset` and `size` locate the content."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Symbol(NamedTuple):
    """A symbol; `section` is the index of the section that it is in, 0 if it is undefined."""

    name: bytes
    binding: int
    kind: int
    section: int
    value: int
    size: int


class ElfFile:
    """The sections of a file, which is not checked for damage."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        offset, size, count, self._names = _HEADER.unpack_from(code)
        self.sections = [SectionHeader(*SECTION.unpack_from(code, offset + index * size)) for index in range(count)]

    def content(self, section: SectionHeader) -> bytes:
        """Returns the bytes of a section; none for one that takes no space in the file."""
        return b"" if section.kind == SHT_NOBITS else self._code[section.offset : section.offset + section.size]

    def name(self, section: SectionHeader) -> str:
        """Returns the name of a section."""
        return _text(self.content(self.sections[self._names]), section.name).decode(errors="replace")

    def symbols(self) -> Iterator[Symbol]:
        """Yields the symbols of the symbol table, in order."""
        for section in self.sections:
            if section.kind == SHT_SYMTAB and section.link < len(self.sections):
                names = self.content(self.sections[section.link])
                table = self.content(section)
                for name, info, _, index, value, size in _SYMBOL.iter_unpack(
                    table[: len(table) // _SYMBOL.size * _SYMBOL.size]
                ):
                    yield Symbol(_text(names, name), info >> 4, info & 0xF, index, value, size)


def _text(strings: bytes, offset: int) -> bytes:
    return strings[offset : strings.find(b"\0", offset)]
