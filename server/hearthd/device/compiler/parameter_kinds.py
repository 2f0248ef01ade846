"""Kinds of kernel parameters, from PTX: a CUBIN and the driver have only their offsets and sizes. Pure."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$.%]+)\s*\(([^)]*)\)")
_INTEGER = re.compile(r"\.(?:[us](?:8|16|32|64)|b(?:8|32|64))\s")
_FLOAT = re.compile(r"\.f(?:32|64)\s")


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
    return {
        match[1]: "".join(map(_kind, match[2].split(","))) if match[2].strip() else ""
        for match in _ENTRY.finditer(text)
    }


def _kind(parameter: str) -> str:
    """Returns the kind of one parameter.

    An array of bytes is a structure or a number of half precision; a parameter with ``.ptr`` is a pointer.
    """
    if "[" in parameter or ".ptr" in parameter:
        return "?"
    if _INTEGER.search(parameter):
        return "i"
    return "f" if _FLOAT.search(parameter) else "?"
