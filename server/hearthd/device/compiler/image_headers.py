"""Headers of CUBIN, fatbin and PTX: checks that an image is complete and that a device can run it.

Images that the driver would refuse without an explanation, or fail on, are refused here with the requested and the
actual architecture. A CUBIN is an ELF-64 file (System V ABI, "Object Files") of machine EM_CUDA; LLVM's
`BinaryFormat/ELF.h` documents where its flags hold the architecture. The CUDA C++ Programming Guide's "Application
Compatibility" specifies which device runs which code. The layout of fatbin files is not published: the part known here
(see `_ENTRY`) was observed in files of CUDA 11 to 13. Entries of other kinds are skipped, and files of other versions
are left to the driver to check.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.compiler import elf

Capability = tuple[int, int]

ELF_MAGIC = elf.MAGIC
LTO_IR_MAGIC = b"\xed\x43\x4e\x7f"
ARCHIVE_MAGIC = b"!<arch>\n"
FATBIN_MAGIC = b"\x50\xed\x55\xba"
FATBIN_WRAPPER_MAGIC = b"\xb1\x43\x62\x46"
"""Magic of the wrapper that nvcc puts into a program. The wrapper holds the address of a fatbin, which is valid only in
that program."""
_NAMES = {
    FATBIN_MAGIC: "a fatbin",
    FATBIN_WRAPPER_MAGIC: "the wrapper of a fatbin",
    LTO_IR_MAGIC: "code for link-time optimization (LTO-IR)",
    ARCHIVE_MAGIC: "an archive",
}
BINARY_MAGICS = (ELF_MAGIC, *_NAMES)
"""The first bytes of every format other than PTX."""

EM_CUDA = 190
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ET_REL = 1
_ABI_V1, _ABI_V2 = 51, 65
"""Values of e_ident[EI_OSABI]: with the first, the architecture is in bits 0 to 7 of e_flags; with the second, in bits
8 to 15."""

_FATBIN_HEADER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQIIHHI")
"""Kind, version, size of this header, size of the code as stored, two more sizes, minor and major version,
architecture. Sizes in bytes."""
_PTX_ENTRY, _ELF_ENTRY = 1, 2
_MAX_ENTRIES = 4096

_PTX_HEAD = 64 << 10
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VERSION = re.compile(rb"\s*\.version\s+(\d{1,3})\.(\d{1,3})\s")
_TARGET = re.compile(rb"\s*\.target\s+([^\n;]*)")
_ARCHITECTURE = re.compile(r"(?:sm|compute)_(\d{2,3})([af]?)")


class Cubin(NamedTuple):
    """Header of a CUBIN.

    `architecture` is the number as in sm_90; None if this module does not know the file's kind.
    """

    architecture: int | None
    relocatable: bool


class Fatbin(NamedTuple):
    """Contents of a fatbin: the architectures for which there is machine code, and PTX.

    `is_known_version` is False for an unknown version of the format.
    """

    cubins: tuple[int, ...]
    ptx: tuple[int, ...]
    is_known_version: bool


class Ptx(NamedTuple):
    """Header of PTX: `version` of the instruction set; `architecture` and `variant` ("", "a" or "f") as in sm_90a."""

    version: tuple[int, int]
    architecture: int
    variant: str


def check(code: bytes, capability: Capability) -> bool:
    """True if `code` must be assembled before it can run on a device of `capability`.

    This is true for PTX, and for a fatbin in which only the PTX fits. Raises Refusal(MODULE_INVALID).
    """
    if not code:
        raise _invalid("There is no code in it.")
    if code.startswith(ELF_MAGIC):
        _check_cubin(read_cubin(code), capability)
        return False
    if code.startswith(FATBIN_MAGIC):
        return _check_fatbin(read_fatbin(code), capability)
    if code.startswith(FATBIN_WRAPPER_MAGIC):
        raise _invalid(
            "This is the wrapper that nvcc links into programs: it only points at a fatbin.",
            fix="send the fatbin itself, as `nvcc -fatbin` writes it",
        )
    _check_ptx(read_ptx(code), capability)
    return True


def check_input(code: bytes, capability: Capability) -> None:
    """Raises Refusal(MODULE_INVALID) for an input of a link that does not fit the device or is in no known format.

    Code for link-time optimization, archives and objects of the host are left to the linker.
    """
    if code.startswith((LTO_IR_MAGIC, ARCHIVE_MAGIC)):
        return
    if code.startswith(ELF_MAGIC):
        if int.from_bytes(code[18:20], "little") == EM_CUDA:
            _check_cubin(read_cubin(code)._replace(relocatable=False), capability)
        return
    check(code, capability)


def describe(code: bytes) -> str:
    """Returns a short description of the code, which may be incomplete."""
    if code.startswith(ELF_MAGIC):
        try:
            cubin = read_cubin(code)
        except Refusal:
            machine = int.from_bytes(code[18:20], "little")
            return "a damaged CUBIN" if machine == EM_CUDA else "an ELF file of the host, or an incomplete one"
        return "a CUBIN" if cubin.architecture is None else f"a CUBIN for sm_{cubin.architecture}"
    known = next((name for magic, name in _NAMES.items() if code.startswith(magic)), "")
    if known:
        return known
    try:
        ptx = read_ptx(code)
    except Refusal:
        return "neither PTX, CUBIN nor fatbin" if code else "empty"
    return f"PTX for sm_{ptx.architecture}{ptx.variant}"


# ---- CUBIN ----


def read_cubin(code: bytes) -> Cubin:
    """Returns the header of a CUBIN.

    Raises Refusal(MODULE_INVALID) if the file is truncated, or for another machine.
    """
    if len(code) < _ELF_HEADER.size:
        raise _truncated("CUBIN", "its header", _ELF_HEADER.size, len(code))
    ident, kind, machine, _, _, segments, sections, flags, header, *tables = _ELF_HEADER.unpack_from(code)
    segment_size, segment_count, section_size, section_count, names = tables
    if ident[4:6] != b"\x02\x01" or header != _ELF_HEADER.size:
        raise _invalid("It is an ELF file, but not one of 64 bits, little-endian, as CUBIN files are.")
    if machine != EM_CUDA:
        raise _invalid(
            f"It is an ELF file for machine {machine}; a CUBIN is for EM_CUDA, {EM_CUDA}.",
            details={"requested": machine, "allowed": EM_CUDA},
        )
    if segment_count:
        _check_table(code, "program headers", segments, segment_count, segment_size, _SEGMENT.size)
        for _, _, offset, _, _, size, _, _ in _SEGMENT.iter_unpack(
            code[segments : segments + segment_count * segment_size]
        ):
            _check_range(code, "a segment", offset, size)
    if not sections:
        raise _invalid("It is an ELF file without sections, so there is no code in it.")
    if not section_count:  # there are too many for the field: the first section holds the number
        _check_table(code, "section headers", sections, 1, section_size, elf.SECTION.size)
        section_count = elf.SECTION.unpack_from(code, sections)[5]
    _check_table(code, "section headers", sections, section_count, section_size, elf.SECTION.size)
    for _, type_, _, _, offset, size, *_ in elf.SECTION.iter_unpack(
        code[sections : sections + section_count * section_size]
    ):
        if type_ != elf.SHT_NOBITS:
            _check_range(code, "a section", offset, size)
    if names >= section_count and names != 0xFFFF:  # SHN_XINDEX: the index is stored elsewhere
        raise _invalid(f"Section {names} should contain the names of its {section_count} sections.")
    shift = {_ABI_V1: 0, _ABI_V2: 8}.get(ident[7])
    return Cubin(None if shift is None else flags >> shift & 0xFF, kind == _ET_REL)


def _check_table(code: bytes, entries: str, offset: int, count: int, size: int, expected: int) -> None:
    if size != expected:
        raise _invalid(f"Its {entries} have {size} bytes each; they have {expected} in a CUBIN.")
    _check_range(code, f"the table of {entries}", offset, count * size)


def _check_range(code: bytes, item: str, offset: int, size: int) -> None:
    if offset + size > len(code):
        raise _truncated("CUBIN", item, offset + size, len(code))


def _check_cubin(cubin: Cubin, capability: Capability) -> None:
    if cubin.relocatable:
        raise _invalid(
            "It is relocatable device code, which has yet to be linked.",
            fix='link it here, code=[cubin, ...] or options=("-rdc=true",), or compile without -rdc',
        )
    if cubin.architecture is not None and not runs(cubin.architecture, capability):
        raise _other_device(f"It is a CUBIN for sm_{cubin.architecture}", capability)


def runs(architecture: int, capability: Capability) -> bool:
    """True if machine code for sm_`architecture` runs on a device of `capability`.

    It does if its major number is equal and its minor number not higher.
    """
    major, minor = divmod(architecture, 10)
    return major == capability[0] and minor <= capability[1]


# ---- fatbin ----


def read_fatbin(code: bytes) -> Fatbin:
    """Returns the contents of a fatbin.

    Raises Refusal(MODULE_INVALID) if the file is truncated or its entries exceed it.
    """
    if len(code) < _FATBIN_HEADER.size:
        raise _truncated("fatbin", "its header", _FATBIN_HEADER.size, len(code))
    _, version, header, size = _FATBIN_HEADER.unpack_from(code)
    if version != 1 or header < _FATBIN_HEADER.size:
        return Fatbin((), (), False)
    end = header + size
    if end > len(code):
        raise _truncated("fatbin", "its code", end, len(code))
    at = header
    cubins: list[int] = []
    ptx: list[int] = []
    for _ in range(_MAX_ENTRIES):
        if at + _ENTRY.size > end:
            break
        kind, _, entry_header, code_size, _, _, _, _, architecture = _ENTRY.unpack_from(code, at)
        if entry_header < _ENTRY.size or at + entry_header + code_size > end:
            raise _invalid(
                f"The fatbin is damaged: its entry at byte {at} would have {entry_header} and {code_size} bytes, and "
                f"the file ends at {end}.",
                details={"offset": at, "size": len(code)},
            )
        if kind == _ELF_ENTRY:
            cubins.append(architecture)
            if code.startswith(ELF_MAGIC, at + entry_header):  # not compressed
                read_cubin(code[at + entry_header : at + entry_header + code_size])
        elif kind == _PTX_ENTRY:
            ptx.append(architecture)
        at += entry_header + code_size
    return Fatbin(tuple(cubins), tuple(ptx), True)


def _check_fatbin(fatbin: Fatbin, capability: Capability) -> bool:
    if not fatbin.is_known_version or any(runs(architecture, capability) for architecture in fatbin.cubins):
        return False
    if any(architecture <= _architecture_number(capability) for architecture in fatbin.ptx):
        return True
    contents = [f"sm_{architecture}" for architecture in fatbin.cubins] + [
        f"PTX for compute_{architecture}" for architecture in fatbin.ptx
    ]
    raise _other_device(f"It is a fatbin with {', '.join(contents) or 'nothing in it'}", capability)


# ---- PTX ----


def read_ptx(code: bytes) -> Ptx:
    """Returns the header of PTX.

    Raises Refusal(MODULE_INVALID) if the code does not begin as PTX does, with .version and .target.
    """
    head = _COMMENT.sub(b" ", code[:_PTX_HEAD])
    version = _VERSION.match(head)
    if version is None:
        raise _invalid(
            f"It is neither a CUBIN nor a fatbin, and does not begin with .version as PTX does: {code[:40]!r}."
        )
    target = _TARGET.match(head, version.end() - 1)
    text = target[1].decode(errors="replace").strip() if target else ""
    architecture = _ARCHITECTURE.search(text)
    if architecture is None:
        raise _invalid(
            f"It is PTX for {text or 'nothing'!r}; .target names an architecture, e.g. sm_80.",
            details={"requested": text},
        )
    return Ptx((int(version[1]), int(version[2])), int(architecture[1]), architecture[2])


def _check_ptx(ptx: Ptx, capability: Capability) -> None:
    target = f"sm_{ptx.architecture}{ptx.variant}"
    number = _architecture_number(capability)
    if ptx.variant == "a":
        fits, rule = ptx.architecture == number, "PTX for an 'a' architecture runs on that one only"
    elif ptx.variant == "f":
        fits, rule = runs(ptx.architecture, capability), "PTX for an 'f' architecture runs on its family only"
    else:
        fits, rule = ptx.architecture <= number, "PTX runs on its architecture and later ones"
    if not fits:
        raise _other_device(f"It is PTX for {target}; {rule}", capability)


# ---- refusals ----


def _architecture_number(capability: Capability) -> int:
    return 10 * capability[0] + capability[1]


def _truncated(kind: str, item: str, needed: int, size: int) -> Refusal:
    return _invalid(
        f"The {kind} is cut short: {item} would end at byte {needed}, and there are {size}.",
        fix="send the complete file",
        details={"requested": needed, "size": size},
    )


def _other_device(description: str, capability: Capability) -> Refusal:
    major, minor = capability
    return _invalid(
        f"{description}; this device is sm_{major}{minor} (compute capability {major}.{minor}).",
        fix=f"compile for sm_{major}{minor}, or send PTX for an architecture that is no later, or CUDA C++ source",
        details={"device": f"sm_{major}{minor}"},
    )


def _invalid(message: str, *, fix: str = "", details: dict[str, object] | None = None) -> Refusal:
    return Refusal(
        Reason.MODULE_INVALID,
        message,
        fix=fix or "give CUBIN or fatbin built for this device, PTX, or CUDA C++ source to compile here",
        details=details,
    )
