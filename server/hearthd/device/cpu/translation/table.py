"""The table of kernels and variables appended to a rewritten source: `hearth_module` in include/hearth/abi.h."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.translation import collisions
from hearthd.device.cpu.translation.declarations import Declarations, FunctionDeclaration
from hearthd.device.cpu.translation.tokens import Token, matching

TABLE_FILE = "<kernels>"
EXPRESSION_FILE = "<name expression {}>"


class ModuleTable:
    """The appended table of the kernels and variables of a module."""

    def __init__(
        self,
        tokens: Sequence[Token],
        declarations: Declarations,
        name_of: Callable[[FunctionDeclaration], str],
    ) -> None:
        self.tokens = tokens
        self.declarations = declarations
        self.name_of = name_of  # returns a kernel's name in the rewritten text

    def text(self, name_expressions: Iterable[str]) -> str:
        """Returns the table as C++ text, to be appended to the rewritten source.

        It lists `extern "C"` kernels, device variables, and the kernels and variables of `name_expressions`. Raises
        Refusal(COMPILE_FAILED) for an expression that is not a C++ name.
        """
        functions = {f.name: f for f in self.declarations.kernels}
        kernels: list[str] = []
        variables: list[str] = []
        lines = [f'\n# 1 "{TABLE_FILE}"']
        for kernel in {k.qualified: k for k in self.declarations.kernels if k.body is not None}.values():
            if kernel.is_extern_c and not kernel.is_template:
                target = "::".join((*kernel.scope, self.name_of(kernel)))
                kernels.append(self._entry(kernel, f"&{collisions.qualified_name(target)}", kernel.name))
        for variable in {v.qualified: v for v in self.declarations.variables}.values():
            target = collisions.qualified_name(variable.qualified)
            for name in {variable.qualified, f"&{variable.qualified}"}:
                variables.append(f"{{{_quoted(name)}, (void *)&{target}, sizeof({target})}},")
        listed_names = {v.qualified for v in self.declarations.variables} | {
            f"&{v.qualified}" for v in self.declarations.variables
        }
        for number, expression in enumerate(dict.fromkeys(name_expressions)):
            bare = collisions.local_name(expression.strip().removeprefix("&").strip())
            if not bare or ";" in bare or "\n" in bare or "#" in bare:
                raise Refusal(Reason.COMPILE_FAILED, f"The name expression {expression!r} is not a C++ name.")
            base = bare.split("<")[0].split("::")[-1].strip()
            lines.append(f'# 1 "{EXPRESSION_FILE.format(expression)}"'.replace("\\", ""))
            function = functions.get(base)
            if function is not None:
                lines.append(f"constexpr auto hearth_expression_{number} = &{bare};")
                lines.append(f'# 1 "{TABLE_FILE}"')
                kernels.append(self._entry(function, f"hearth_expression_{number}", expression))
            elif expression not in listed_names:
                lines.append(f"static auto &hearth_expression_{number} = {bare};")
                target = f"hearth_expression_{number}"
                variables.append(f"{{{_quoted(expression)}, (void *)&{target}, sizeof({target})}},")
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

    def _entry(self, kernel: FunctionDeclaration, value: str, name: str) -> str:
        bounds = f"::hearth::launch_bounds({self._bounds(kernel)})"
        return f"::hearth::describe_kernel<{value}>({_quoted(name)}, {bounds}),"

    def _bounds(self, kernel: FunctionDeclaration) -> str:
        """Returns the arguments of `__launch_bounds__`.

        For a template they are empty if they may depend on its parameters.
        """
        at = kernel.statement[0]
        while at < kernel.parameters[0]:
            if self.tokens[at].text == "__launch_bounds__":
                inside = self.tokens[at + 2 : matching(self.tokens, at + 1, kernel.parameters[0])]
                if kernel.is_template and any(token.kind == "name" for token in inside):
                    return ""
                return " ".join(token.text for token in inside)
            at += 1
        return ""


def _quoted(text: str) -> str:
    return json.dumps(text)
