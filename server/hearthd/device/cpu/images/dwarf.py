"""Source lines from the debug information of a shared object, including inlined calls.

Reads version 4, in the form written for the race check (`-gdwarf-4 -g1`): the line table (DWARF 4, section 6.2), and
among the entries (section 7.5) those of inlined functions. Not a general reader of debug information.
"""

from __future__ import annotations

import posixpath
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_VERSION = 4
_COMPILE_UNIT = 0x11
_INLINED = 0x1D
_LOW_PC, _HIGH_PC, _STMT_LIST, _RANGES, _COMP_DIR = 0x11, 0x12, 0x10, 0x55, 0x1B
_CALL_FILE, _CALL_LINE = 0x58, 0x59
_STRP = 0x0E
_FIXED = {
    0x01: 8, 0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x0C: 1, 0x0E: 4, 0x10: 4, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8,
    0x17: 4, 0x20: 8,
}  # fmt: skip
"""Size in bytes of a form: addr, data1 to data8, flag, strp, ref_addr, ref1 to ref8, sec_offset, ref_sig8."""

_BLOCKS = {0x0A: 1, 0x03: 2, 0x04: 4}
_SDATA, _UDATA, _REF_UDATA, _STRING, _INDIRECT, _PRESENT, _BLOCK, _EXPRLOC = 0x0D, 0x0F, 0x15, 0x08, 0x16, 0x19, 9, 0x18
_EXTENDED, _COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _CONST_ADD_PC, _FIXED_ADVANCE_PC = 0, 1, 2, 3, 4, 8, 9
_END_SEQUENCE, _SET_ADDRESS = 1, 2
_BASE_ADDRESS = (1 << 64) - 1
"""Marker in a list of ranges: the base of the following ranges comes next."""


class Frame(NamedTuple):
    """A place in a source file."""

    file: str
    line: int


class _Machine(NamedTuple):
    """The fields of a line table's header that its program depends on."""

    instruction_bytes: int
    line_base: int
    line_range: int
    first_special: int
    lengths: list[int]


@dataclass
class _Inlined:
    ranges: list[tuple[int, int]]
    file: int
    line: int
    depth: int


@dataclass
class _Unit:
    base: int = 0
    line_table: int = -1
    directory: str = ""
    inlined: list[_Inlined] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    rows: list[tuple[int, int, int]] = field(default_factory=list)  # address, file, line; file 0 ends a sequence


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def integer(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little")

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.integer(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        start = self.at
        value = self.unsigned()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        value = self.data[self.at : end]
        self.at = end + 1
        return value.decode(errors="replace")


class Lines:
    """Maps addresses of the code to places in the source."""

    def __init__(self, sections: Mapping[str, bytes]) -> None:
        self._info = sections.get(".debug_info", b"")
        self._abbreviations = sections.get(".debug_abbrev", b"")
        self._ranges = sections.get(".debug_ranges", b"")
        self._line = sections.get(".debug_line", b"")
        self._strings = sections.get(".debug_str", b"")
        self._units = list(self._read_units())

    def frames(self, address: int) -> list[Frame]:
        """Returns the places of an address, innermost first; empty if the address is unknown.

        The first is the instruction's own place. The calls through which it was inlined follow.
        """
        for unit in self._units:
            at = bisect_right(unit.rows, (address, _BASE_ADDRESS, 0)) - 1
            if at < 0 or unit.rows[at][1] == 0:
                continue
            _, file, line = unit.rows[at]
            frames = [Frame(unit.files[file], line)]
            calls = [call for call in unit.inlined if any(low <= address < high for low, high in call.ranges)]
            for call in sorted(calls, key=lambda call: -call.depth):
                frames.append(Frame(unit.files[call.file], call.line))
            return frames
        return []

    # ---- entries ----

    def _read_units(self) -> Iterator[_Unit]:
        at = 0
        while at < len(self._info):
            length, version, table = struct.unpack_from("<IHI", self._info, at)
            if version == _VERSION:
                yield self._read_unit(_Reader(self._info, at + 11), at + 4 + length, self._read_abbreviations(table))
            at += 4 + length

    def _read_unit(self, reader: _Reader, end: int, abbreviations: Mapping[int, _Abbreviation]) -> _Unit:
        unit = _Unit()
        depth = 0
        while reader.at < end:
            code = reader.unsigned()
            if code == 0:
                depth -= 1
                continue
            abbreviation = abbreviations[code]
            values = {name: self._value(reader, form) for name, form in abbreviation.attributes}
            if abbreviation.tag == _COMPILE_UNIT:
                unit.base = int(values.get(_LOW_PC, 0))
                unit.line_table = int(values.get(_STMT_LIST, -1))
                directory = values.get(_COMP_DIR, "")
                unit.directory = directory if isinstance(directory, str) else ""
            elif abbreviation.tag == _INLINED:
                ranges = self._ranges_of(unit, values)
                unit.inlined.append(
                    _Inlined(ranges, int(values.get(_CALL_FILE, 0)), int(values.get(_CALL_LINE, 0)), depth)
                )
            depth += abbreviation.has_children
        if unit.line_table >= 0:
            self._read_lines(unit)
        return unit

    def _read_abbreviations(self, at: int) -> dict[int, _Abbreviation]:
        reader = _Reader(self._abbreviations, at)
        abbreviations: dict[int, _Abbreviation] = {}
        while code := reader.unsigned():
            tag, has_children = reader.unsigned(), reader.integer(1)
            attributes = []
            while True:
                name, form = reader.unsigned(), reader.unsigned()
                if name == form == 0:
                    break
                attributes.append((name, form))
            abbreviations[code] = _Abbreviation(tag, has_children != 0, attributes)
        return abbreviations

    def _value(self, reader: _Reader, form: int) -> int | str:
        while form == _INDIRECT:
            form = reader.unsigned()
        value: int | str = 0
        if form == _STRP:
            value = _Reader(self._strings, reader.integer(4)).text()
        elif form in _FIXED:
            value = reader.integer(_FIXED[form])
        elif form in (_UDATA, _REF_UDATA):
            value = reader.unsigned()
        elif form == _SDATA:
            value = reader.signed()
        elif form == _STRING:
            value = reader.text()
        elif form in _BLOCKS or form in (_BLOCK, _EXPRLOC):
            size = reader.integer(_BLOCKS[form]) if form in _BLOCKS else reader.unsigned()
            reader.at += size
        elif form != _PRESENT:
            raise ValueError(f"debug information in a form that is not known: {form:#x}")
        return value

    def _ranges_of(self, unit: _Unit, values: Mapping[int, int | str]) -> list[tuple[int, int]]:
        low = values.get(_LOW_PC)
        if isinstance(low, int):
            return [(low, low + int(values.get(_HIGH_PC, 0)))]
        ranges: list[tuple[int, int]] = []
        at = values.get(_RANGES)
        base = unit.base
        while isinstance(at, int):
            start, end = struct.unpack_from("<QQ", self._ranges, at)
            at += 16
            if start == end == 0:
                break
            if start == _BASE_ADDRESS:
                base = end
            else:
                ranges.append((base + start, base + end))
        return ranges

    # ---- the line table ----

    def _read_lines(self, unit: _Unit) -> None:
        reader = _Reader(self._line, unit.line_table)
        end = reader.integer(4) + reader.at
        if reader.integer(2) != _VERSION:
            return
        header_bytes = reader.integer(4)
        program = reader.at + header_bytes
        instruction_bytes = reader.integer(1)
        reader.at += 2  # operations of an instruction, and the flag that a row begins a statement
        line_base = struct.unpack("b", bytes([reader.integer(1)]))[0]
        line_range, first_special = reader.integer(1), reader.integer(1)
        lengths = [0] + [reader.integer(1) for _ in range(first_special - 1)]
        directories = [unit.directory]
        while name := reader.text():
            directories.append(name)
        unit.files.append("")
        while name := reader.text():
            unit.files.append(_joined(directories, reader.unsigned(), name))
            reader.unsigned()  # time of the last change
            reader.unsigned()  # size of the file
        reader.at = program
        self._run(unit.rows, reader, end, _Machine(instruction_bytes, line_base, line_range, first_special, lengths))
        unit.rows.sort(key=lambda row: row[0])

    @staticmethod
    def _run(rows: list[tuple[int, int, int]], reader: _Reader, end: int, machine: _Machine) -> None:  # noqa: PLR0912 - one case an operation
        instruction_bytes, line_base, line_range, first_special, lengths = machine
        address, file, line = 0, 1, 1
        while reader.at < end:
            code = reader.integer(1)
            if code >= first_special:
                address += (code - first_special) // line_range * instruction_bytes
                line += line_base + (code - first_special) % line_range
                rows.append((address, file, line))
            elif code == _EXTENDED:
                after = reader.unsigned() + reader.at
                kind = reader.integer(1)
                if kind == _END_SEQUENCE:
                    rows.append((address, 0, 0))
                    address, file, line = 0, 1, 1
                elif kind == _SET_ADDRESS:
                    address = reader.integer(8)
                reader.at = after
            elif code == _COPY:
                rows.append((address, file, line))
            elif code == _ADVANCE_PC:
                address += reader.unsigned() * instruction_bytes
            elif code == _ADVANCE_LINE:
                line += reader.signed()
            elif code == _SET_FILE:
                file = reader.unsigned()
            elif code == _CONST_ADD_PC:
                address += (255 - first_special) // line_range * instruction_bytes
            elif code == _FIXED_ADVANCE_PC:
                address += reader.integer(2)
            else:
                for _ in range(lengths[code]):
                    reader.unsigned()


@dataclass
class _Abbreviation:
    tag: int
    has_children: bool
    attributes: list[tuple[int, int]]


def _joined(directories: list[str], index: int, name: str) -> str:
    """Returns a file's path; a file in the compile's own directory, which no longer exists, keeps its name as given."""
    if index == 0 or index >= len(directories) or name.startswith("/"):
        return name
    return posixpath.normpath(posixpath.join(directories[index], name))
