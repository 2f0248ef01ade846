"""Extension of griffe, which reads the docstrings for the reference: converts examples and names to Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

import hearth
import hearth.aio

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1(?:>>>|\.\.\.|\S).*)*", re.MULTILINE)
_NAME = re.compile(r"(?<!`)`(hearth\.)?(aio\.)?(\w+)(\.(?!_)\w+)?`(?!`)")


class Docstrings(griffe.Extension):
    """Puts examples (`>>>`) into code blocks, and links the names of public classes and functions."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites a docstring, once for each object that is read."""
        if obj.docstring is not None:
            in_aio = obj.path.startswith("hearth.aio")
            text = _EXAMPLE.sub(_block, obj.docstring.value)
            obj.docstring.value = _NAME.sub(lambda found: _linked(found, in_aio), text)


def _block(found: re.Match[str]) -> str:
    indent, text = found[1], found[0]
    return f"{indent}```pycon\n{text}\n{indent}```"


def _linked(found: re.Match[str], in_aio: bool) -> str:
    """Returns a name as a link. In `hearth.aio`, an unqualified name such as `Device` is that of `hearth.aio`."""
    package, aio, name, member = (part or "" for part in found.groups())
    if name not in hearth.__all__ or not (package or aio or name[0].isupper()):
        return found[0]
    where = "hearth.aio" if aio or (in_aio and not package and name in hearth.aio.__all__) else "hearth"
    return f"[{found[0]}][{where}.{name}{member}]"
