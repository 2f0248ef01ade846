"""The table of kernels and variables that is appended to a rewritten source (`hearth_module` in include/hearth/abi.h).

Here it is decided what each kernel needs, from the names that its body and all functions in its reach mention: fibers
where it may synchronise, the thread's record where functions other than itself ask for their indices, its output
flushed where it may print.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence, Set

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu import collisions
from hearthd.device.cpu.declarations import Declarations, Function
from hearthd.device.cpu.tokens import Token, matching

TABLE_FILE = "<kernels>"
EXPRESSION_FILE = "<name expression {}>"

BUILTINS = {"threadIdx": "thread_idx", "blockIdx": "block_idx", "blockDim": "block_dim", "gridDim": "grid_dim"}
"""The built-in variables, and the functions that stand for them outside kernels (include/hearth/builtins.h)."""

_SYNCHRONISING = re.compile(
    r"__syncthreads(_\w+)?|__syncwarp|__shfl_\w+|__(ballot|any|all|uni)_sync|__match_\w+|__reduce_\w+_sync|active_here"
    r"|__activemask|__nanosleep|cooperative_groups|this_thread_block|tiled_partition|coalesced_threads|this_grid"
    r"|binary_partition|labeled_partition"
)
_REPORTING = frozenset({"__trap", "__brkpt", "hearth_assert_failed"})  # say which thread they were reached by
_PRINTING = frozenset(
    {"printf", "vprintf", "fprintf", "vfprintf", "puts", "fputs", "putchar", "putc", "fputc", "fwrite"}
)


class Table:
    """The appended table of what a module offers."""

    def __init__(
        self,
        tokens: Sequence[Token],
        found: Declarations,
        renamed: Callable[[Function], str],
        slow_kernels: Set[str],
        shared_in: Set[str],
    ) -> None:
        self.tokens = tokens
        self.found = found
        self.renamed = renamed  # a kernel's name in the rewritten text
        self.slow_kernels = slow_kernels
        self.shared_in = shared_in
        self.reach: dict[str, set[str]] = {}
        self.always: set[str] = set()
        for function in found.functions:
            if function.body is None:
                continue
            names = self._names((function.parameters[0], function.body[1]))
            member = function.owner is not None and function.name in (function.owner, "operator")
            if member and function.owner:
                self.reach.setdefault(function.owner, set()).update(names)  # run without being named
            elif function.name == "operator":
                self.always |= names
            else:
                self.reach.setdefault(function.name, set()).update(names)
        for name, span in found.others:
            self.reach.setdefault(name, set()).update(self._names(span) - {name})
        self.kernels = {k.name: k for k in found.kernels if k.body is not None}

    def text(self, name_expressions: Iterable[str]) -> str:
        functions = {f.name: f for f in self.found.kernels}
        kernels: list[str] = []
        variables: list[str] = []
        lines = [f'\n# 1 "{TABLE_FILE}"']
        for kernel in {k.qualified: k for k in self.found.kernels if k.body is not None}.values():
            if kernel.is_extern_c and not kernel.is_template:
                place = "::".join((*kernel.scope, self.renamed(kernel)))
                kernels.append(self._entry(kernel, f"&{collisions.place(place)}", kernel.name))
        for variable in {v.qualified: v for v in self.found.variables}.values():
            place = collisions.place(variable.qualified)
            for name in {variable.qualified, f"&{variable.qualified}"}:
                variables.append(f"{{{_quoted(name)}, (void *)&{place}, sizeof({place})}},")
        known = {v.qualified for v in self.found.variables} | {f"&{v.qualified}" for v in self.found.variables}
        for number, expression in enumerate(dict.fromkeys(name_expressions)):
            bare = collisions.local(expression.strip().removeprefix("&").strip())
            if not bare or ";" in bare or "\n" in bare or "#" in bare:
                raise Refusal(Reason.COMPILE_FAILED, f"The name expression {expression!r} is not a C++ name.")
            base = bare.split("<")[0].split("::")[-1].strip()
            lines.append(f'# 1 "{EXPRESSION_FILE.format(expression)}"'.replace("\\", ""))
            function = functions.get(base)
            if function is not None:
                lines.append(f"constexpr auto hearth_expression_{number} = &{bare};")
                lines.append(f'# 1 "{TABLE_FILE}"')
                kernels.append(self._entry(function, f"hearth_expression_{number}", expression))
            elif expression not in known:
                lines.append(f"static auto &hearth_expression_{number} = {bare};")
                place = f"hearth_expression_{number}"
                variables.append(f"{{{_quoted(expression)}, (void *)&{place}, sizeof({place})}},")
        lines.append(f'# 1 "{TABLE_FILE}"')
        lines.append("static constexpr ::hearth::Kernel hearth_kernels[] = {")
        lines += kernels
        lines.append("{nullptr, nullptr, 0, 0, 1, 0, 0, 0, nullptr, nullptr, nullptr}};")
        lines.append("static const ::hearth::Global hearth_globals[] = {")
        lines += variables
        lines.append("{nullptr, nullptr, 0}};")
        lines.append(
            'extern "C" __attribute__((visibility("default"))) const ::hearth::Module hearth_module = '
            f"{{::hearth::abi_hash, hearth_kernels, {len(kernels)}, hearth_globals, {len(variables)}}};\n"
        )
        return "\n".join(lines)

    def _names(self, span: tuple[int, int]) -> set[str]:
        return {token.text for token in self.tokens[span[0] : span[1]] if token.kind == "name"}

    def _entry(self, kernel: Function, value: str, name: str) -> str:
        own = set[str]()
        for each in self.found.kernels:
            if each.name == kernel.name:
                own |= self._names((each.parameters[0], each.body[1] if each.body else each.parameters[1]))
        names, entered = own | self.always, set[str]()
        reached = set[str]()  # what functions other than the kernel mention
        pending = list(names)
        while pending:
            name_ = pending.pop()
            if name_ in entered or name_ not in self.reach or name_ == kernel.name:
                continue
            entered.add(name_)
            fresh = self.reach[name_] - names
            reached |= self.reach[name_]
            names |= fresh
            pending += fresh
        fibers = any(_SYNCHRONISING.fullmatch(each) for each in names)
        needs_record = kernel.name in self.slow_kernels or not reached.isdisjoint(BUILTINS)
        needs_record |= not names.isdisjoint(_REPORTING)
        holders = (entered | {kernel.name}) & self.shared_in
        shared_in = " ".join(sorted(self.renamed(kernel) if each == kernel.name else each for each in holders))
        bounds = f"::hearth::launch_bounds({self._bounds(kernel)})"
        prints = not names.isdisjoint(_PRINTING)
        return (
            f"::hearth::describe_kernel<{value}, {_flag(fibers)}, {_flag(needs_record)}>"
            f"({_quoted(name)}, {bounds}, {_flag(prints)}, {_quoted(shared_in)}),"
        )

    def _bounds(self, kernel: Function) -> str:
        """The arguments of `__launch_bounds__`; those of a template may depend on its parameters and are left out."""
        at = kernel.statement[0]
        while at < kernel.parameters[0]:
            if self.tokens[at].text == "__launch_bounds__":
                inside = self.tokens[at + 2 : matching(self.tokens, at + 1, kernel.parameters[0])]
                if kernel.is_template and any(token.kind == "name" for token in inside):
                    return ""
                return " ".join(token.text for token in inside)
            at += 1
        return ""


def _flag(value: bool) -> str:
    return str(value).lower()


def _quoted(text: str) -> str:
    return json.dumps(text)
