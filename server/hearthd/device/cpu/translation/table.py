"""Tables appended to a rewritten source: its kernels and variables, and its constant memory.

The first is `hearth_module` in include/hearth/abi.h. The second is for a program that queries the address space of a
pointer (include/hearth/spaces.h): `__constant__` variables are ordinary ones on a CPU, and only a program that mentions
`__isConstant` or `__isGlobal` gets a list of their addresses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.translation import collisions
from hearthd.device.cpu.translation.declarations import Declarations, FunctionDeclaration
from hearthd.device.cpu.translation.tokens import SourceMap, Token, matching
from hearthd.device.cpu.translation.unsupported import refuse

TABLE_FILE = "<kernels>"
EXPRESSION_FILE = "<name expression {}>"
_CASTS = ("(", "static_cast<")
_WORD = re.compile(r"[A-Za-z_]\w*")
_QUERIES = frozenset({"__isConstant", "__isGlobal"})


def module_table(
    tokens: Sequence[Token],
    declarations: Declarations,
    name_of: Callable[[FunctionDeclaration], str],
    name_expressions: Iterable[str],
) -> str:
    """Returns the table of kernels and variables as C++ text, to be appended to the rewritten source.

    It lists `extern "C"` kernels, device variables, and the kernels and variables of `name_expressions`. `name_of`
    returns a kernel's name in the rewritten text. Raises Refusal(COMPILE_FAILED) for an expression that is not a C++
    name.
    """
    functions = {f.name: f for f in declarations.kernels}
    kernels: list[str] = []
    variables: list[str] = []
    lines = [f'\n# 1 "{TABLE_FILE}"']
    for kernel in {k.qualified: k for k in declarations.kernels if k.body is not None}.values():
        if kernel.is_extern_c and not kernel.is_template:
            target = "::".join((*kernel.scope, name_of(kernel)))
            kernels.append(_entry(tokens, [kernel], f"&{collisions.qualified_name(target)}", kernel.name))
    listed_names: set[str] = set()
    for variable in {v.qualified: v for v in declarations.variables}.values():
        target = collisions.qualified_name(variable.qualified)
        for name in (variable.qualified, f"&{variable.qualified}"):
            listed_names.add(name)
            variables.append(f"{{{json.dumps(name)}, (void *)&{target}, sizeof({target})}},")
    for number, expression in enumerate(dict.fromkeys(name_expressions)):
        bare = collisions.local_name(expression.strip().removeprefix("&").strip())
        if not bare or ";" in bare or "\n" in bare or "#" in bare:
            raise Refusal(Reason.COMPILE_FAILED, f"The name expression {expression!r} is not a C++ name.")
        is_cast = bare.startswith(_CASTS)  # which selects one of several functions
        base = bare.split("<")[0].split("::")[-1].strip()
        if is_cast:
            base = next((word for word in reversed(_WORD.findall(bare)) if word in functions), "")
        lines.append(f'# 1 "{EXPRESSION_FILE.format(expression)}"'.replace("\\", ""))
        if base in functions:
            lines.append(f"constexpr auto hearth_expression_{number} = {'' if is_cast else '&'}{bare};")
            lines.append(f'# 1 "{TABLE_FILE}"')
            overloads = [f for f in declarations.kernels if f.name == base and f.body] if is_cast else [functions[base]]
            kernels.append(_entry(tokens, overloads, f"hearth_expression_{number}", expression))
        elif expression not in listed_names:
            lines.append(f"static auto &hearth_expression_{number} = {bare};")
            target = f"hearth_expression_{number}"
            variables.append(f"{{{json.dumps(expression)}, (void *)&{target}, sizeof({target})}},")
    lines.append(f'# 1 "{TABLE_FILE}"')
    lines.append("static constexpr ::hearth::Kernel hearth_kernels[] = {")
    lines += kernels
    lines.append("{nullptr, nullptr, 0, 0, 1, 0, nullptr}};")
    lines.append("static const ::hearth::Global hearth_globals[] = {")
    lines += variables
    lines.append("{nullptr, nullptr, 0}};")
    lines.append(
        'extern "C" __attribute__((visibility("default"))) const ::hearth::Module hearth_module = '
        f"{{::hearth::abi_hash, hearth_kernels, {len(kernels)}, hearth_globals, {len(variables)}}};\n"
    )
    return "\n".join(lines)


def _entry(tokens: Sequence[Token], overloads: Sequence[FunctionDeclaration], value: str, name: str) -> str:
    """Returns the entry of the kernel `value`, which is one of the overloads.

    It has launch bounds only if they are the same for all of them.
    """
    bounds = {_bounds(tokens, kernel) for kernel in overloads}
    text = bounds.pop() if len(bounds) == 1 else ""
    return f"::hearth::describe_kernel<{value}>({json.dumps(name)}, ::hearth::launch_bounds({text})),"


def _bounds(tokens: Sequence[Token], kernel: FunctionDeclaration) -> str:
    """Returns the arguments of `__launch_bounds__`.

    For a template they are empty if they may depend on its parameters.
    """
    at = kernel.statement[0]
    while at < kernel.parameters[0]:
        if tokens[at].text == "__launch_bounds__":
            inside = tokens[at + 2 : matching(tokens, at + 1, kernel.parameters[0])]
            if kernel.is_template and any(token.kind == "name" for token in inside):
                return ""
            return " ".join(token.text for token in inside)
        at += 1
    return ""


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
