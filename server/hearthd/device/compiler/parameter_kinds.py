"""Kinds of kernel parameters, from PTX: a CUBIN and the driver have only their offsets and sizes.

PTX has no signed types: NVRTC declares an ``int`` and an ``unsigned`` as ``.u32``. The sign is read from the mangled
name of a kernel (Itanium C++ ABI, "Name Mangling"); the name of an ``extern "C"`` kernel does not have it. Pure.
"""

from __future__ import annotations

import re

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$.%]+)\s*\(([^)]*)\)")
_INTEGER = re.compile(r"\.(?:[us](?:8|16|32|64)|b(?:8|32|64))\s")
_FLOAT = re.compile(r"\.f(?:32|64)\s")
_LENGTH = re.compile(r"\d+")
_TYPE = re.compile(
    r"(?P<pointer>[PROKV]*)"
    r"(?:(?P<parameter>T\d*_)|(?P<substitution>S[0-9A-Z]*_)|(?P<length>\d+)|D[hisnau]|DF16_|(?P<builtin>[vwbcahstijlmxynofdegz]))"
)
_LITERAL = re.compile(r"L[a-z]n?\d+E")
_KINDS = dict.fromkeys("asilx", "i") | dict.fromkeys("htjmy", "u") | {"b": "b"}
"""Kinds of C++'s integer types, by their letter in a mangled name; the sign of ``char`` differs between hosts."""


def parameter_kinds(code: bytes) -> dict[str, str]:
    """Returns the kinds of the parameters of each kernel, as in `Function`, by the name of the kernel.

    A parameter of type ``.b16`` is of an unknown kind, because it may be a half-precision number.

    Args:
        code: PTX.

    Returns:
        A letter for each parameter, by kernel; empty if `code` is no PTX.
    """
    if b".entry" not in code or code.lstrip()[:1] not in (b"/", b"."):
        return {}
    text = _COMMENT.sub("", code.decode(errors="replace"))
    return {match[1]: _kinds(match[1], match[2]) for match in _ENTRY.finditer(text)}


def _kinds(name: str, parameters: str) -> str:
    """Returns the kinds of the parameters of one kernel."""
    kinds = "".join(map(_kind, parameters.split(","))) if parameters.strip() else ""
    mangled = mangled_kinds(name)
    if len(mangled) != len(kinds):
        return kinds
    return "".join(exact if kind == "n" and exact != "?" else kind for kind, exact in zip(kinds, mangled, strict=True))


def _kind(parameter: str) -> str:
    """Returns the kind of one parameter.

    An array of bytes is a structure or a number of half precision; a parameter with ``.ptr`` is a pointer.
    """
    if "[" in parameter or ".ptr" in parameter:
        return "?"
    if _INTEGER.search(parameter):
        return "n"
    return "f" if _FLOAT.search(parameter) else "?"


def mangled_kinds(name: str) -> str:
    """Returns the kinds of a kernel's parameters as far as its mangled name has them.

    Covers functions and function templates outside of namespaces whose parameters have simple types.

    Args:
        name: Name of the kernel in the code.

    Returns:
        A letter for each parameter: ``i``, ``u`` and ``b`` as in `Function`, ``?`` for another type. Empty if the name
        is not mangled or not covered.
    """
    length = _LENGTH.match(name, 2) if name.startswith("_Z") else None
    if length is None:
        return ""
    at = length.end() + int(length[0])
    template: list[str] = []
    if name[at : at + 1] == "I":
        at += 1
        while name[at : at + 1] != "E":
            literal = _LITERAL.match(name, at)
            kind, at = ("?", literal.end()) if literal else _mangled_type(name, at, template)
            if at < 0:
                return ""
            template.append(kind)
        if name[at + 1 : at + 2] != "v":  # the return type, which only the names of templates have
            return ""
        at += 2
    kinds = ""
    while at < len(name):
        kind, at = _mangled_type(name, at, template)
        if at < 0:
            return ""
        kinds += kind
    return kinds


def _mangled_type(name: str, at: int, template: list[str]) -> tuple[str, int]:
    """Returns the kind of the type at position `at` of a mangled name, and the position after it; -1: not covered."""
    match = _TYPE.match(name, at)
    if match is None:
        return "?", -1
    at = match.end()
    if match["length"]:
        at += int(match["length"])
        if at > len(name) or name[at : at + 1] == "I":
            return "?", -1
    if match["pointer"] or (match["builtin"] is None and match["parameter"] is None):
        return "?", at
    if match["builtin"]:
        return _KINDS.get(match["builtin"], "?"), at
    number = match["parameter"][1:-1]
    index = int(number) + 1 if number else 0
    return template[index] if index < len(template) else "?", at
