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


def address_table(source: SourceMap, tokens: Sequence[Token], declarations: Declarations) -> str:
    """Returns C++ text that defines `hearth_constants`; empty for a program that does not query address spaces.

    Raises `Refusal` (UNSUPPORTED) for constant memory whose address cannot be listed: a variable of a template or in a
    function.
    """
    if not any(token.kind == "name" and token.text in _QUERIES for token in tokens):
        return ""
    marks = {index for index, token in enumerate(tokens) if token.text == "__constant__"}
    listed_marks: set[int] = set()
    entries: list[str] = []
    for variable in {v.qualified: v for v in declarations.variables}.values():
        start, end = variable.statement
        marks_inside = marks.intersection(range(start, end))
        if marks_inside and tokens[start].text != "template":
            listed_marks |= marks_inside
            name = collisions.qualified_name(variable.qualified)
            entries.append(f"{{(const void *)&{name}, sizeof({name})}}, ")
    if marks - listed_marks:
        file, line = source.location(tokens[min(marks - listed_marks)].start)
        raise refuse("the address space of a __constant__ variable of a template or a function", file, line)
    return (
        f'\nextern "C" {{ extern const ::hearth::Range hearth_constants[] = {{{"".join(entries)}{{nullptr, 0}}}}; }}\n'
    )
