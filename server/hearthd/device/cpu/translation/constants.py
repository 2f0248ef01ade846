"""List of constant memory, for a program that queries the address space of a pointer (include/hearth/spaces.h).

`__constant__` variables are ordinary ones on a CPU. Only a program that mentions `__isConstant` or `__isGlobal` gets a
list of their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

from hearthd.device.cpu.translation import collisions
from hearthd.device.cpu.translation.declarations import Declarations
from hearthd.device.cpu.translation.tokens import SourceMap, Token
from hearthd.device.cpu.translation.unsupported import refuse

_QUERIES = frozenset({"__isConstant", "__isGlobal"})


def listed(source: SourceMap, tokens: Sequence[Token], found: Declarations) -> str:
    """Returns C++ text that defines `hearth_constants`; empty for a program that does not query address spaces.

    Raises `Refusal` (UNSUPPORTED) for constant memory whose address cannot be listed: a variable of a template or in a
    function.
    """
    if not any(token.kind == "name" and token.text in _QUERIES for token in tokens):
        return ""
    marks = {index for index, token in enumerate(tokens) if token.text == "__constant__"}
    named: set[int] = set()
    entries: list[str] = []
    for variable in {v.qualified: v for v in found.variables}.values():
        start, end = variable.statement
        inside = marks.intersection(range(start, end))
        if inside and tokens[start].text != "template":
            named |= inside
            place = collisions.place(variable.qualified)
            entries.append(f"{{(const void *)&{place}, sizeof({place})}}, ")
    if marks - named:
        file, line = source.location(tokens[min(marks - named)].start)
        raise refuse("the address space of a __constant__ variable of a template or a function", file, line)
    return (
        f'\nextern "C" {{ extern const ::hearth::Range hearth_constants[] = {{{"".join(entries)}{{nullptr, 0}}}}; }}\n'
    )
