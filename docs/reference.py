"""Writes the reference of the client, from its docstrings, as HTML: ``python docs/reference.py build/reference``.

pdoc shows what a class inherits as a list of names, and leaves out what comes from modules that it does not document.
The client's classes are put together of parts, one concern a file, which is nothing that a reader has to know: here
their methods stand in the class.
"""

from __future__ import annotations

import sys
import warnings
from functools import cached_property
from pathlib import Path

import pdoc
from pdoc import doc

import hearth

_FIRST = (
    "connect", "Node", "Device", "DeviceArray", "RawModule", "Function", "Stream", "Event", "Graph", "Prepared",
    "Profile", "Trace", "Group", "PendingDispatch", "In", "Out", "InOut",
)  # fmt: skip
"""What a reader comes for; then the rest by name, errors last."""


def _rank(name: str) -> tuple[int, bool, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name.endswith("Error"), name)


def _members(self: doc.Class) -> list[doc.Doc[object]]:
    """Own ones first, then those of the parts; what a class of the reference brings stands there."""
    found = []
    for member in self.members.values():
        module, name = member.taken_from
        origin = name.rpartition(".")[0]
        if module.split(".")[0] == "hearth" and (origin == self.obj.__name__ or origin not in hearth.__all__):
            found.append(member)
    return sorted(found, key=lambda member: member.taken_from[1].rpartition(".")[0] != self.obj.__name__)


def write(into: Path) -> None:
    """All pages, into a directory that is made if need be."""
    hearth.__all__.sort(key=_rank)
    own = cached_property(_members)
    own.__set_name__(doc.Class, "own_members")
    doc.Class.own_members = own  # type: ignore[assignment, method-assign]
    doc.Class.inherited_members = {}  # type: ignore[assignment]
    pdoc.render.configure(docformat="google", show_source=False, footer_text="Hearth")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Error parsing type annotation")  # of private attributes
        pdoc.pdoc("hearth", "hearth.aio", output_directory=into)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
