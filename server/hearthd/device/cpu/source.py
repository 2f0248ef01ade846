"""CUDA C++ to C++: what the language extensions of a kernel source become for an ordinary C++ compiler.

Works on preprocessed text (so that macros and `#if` are settled) and changes it in place, line by line, so that the
compiler's messages name the user's own lines:

- A kernel gets a hidden first parameter that holds `threadIdx` and its like, and copies of them under their own names
  in its body; elsewhere these names read the thread's record.
- `__shared__` variables become thread-local ones: all threads of a block run on one operating system thread, and
  another block never runs there meanwhile. `extern __shared__` arrays become pointers to the block's dynamic memory.
- A table of kernels and variables is appended (`hearth_module` in include/hearth/abi.h). Whether a kernel needs its
  threads as fibers is decided here: it does if a synchronising function can be reached from it by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hearth_proto.reasons import Reason, Refusal

from hearthd.device.cpu import unsupported
from hearthd.device.cpu.declarations import SPACE_MARKERS, Declarations, Function, scan
from hearthd.device.cpu.tokens import SourceMap, Token, matching, tokenize

TABLE_FILE = "<kernels>"
EXPRESSION_FILE = "<name expression {}>"

_BUILTINS = {"threadIdx": "thread_idx", "blockIdx": "block_idx", "blockDim": "block_dim", "gridDim": "grid_dim"}
_SYNCHRONISING = re.compile(
    r"__syncthreads(_\w+)?|__syncwarp|__shfl_\w+|__(ballot|any|all|uni)_sync|__match_\w+|__reduce_\w+_sync|active_here"
    r"|__activemask|__nanosleep|cooperative_groups|this_thread_block|tiled_partition|coalesced_threads|this_grid"
    r"|binary_partition|labeled_partition"
)
_REPORTING = frozenset({"__trap", "__brkpt", "hearth_assert_failed"})  # say which thread they were reached by
# Kernels by these names would be overloads of what every kernel can call, and their address ambiguous.
_TAKEN = frozenset(
    """abort abs acos acosh asin asinh atan atan2 atanh atexit bcmp bcopy bsearch bzero calloc cbrt ceil clock copysign
    cos cosh cospi difftime div drem erf erfc erfcinv erfcx erfinv exit exp exp10 exp2 expm1 fabs fdim fdivide finite
    floor fma fmax fmin fmod fopen free frexp gamma getc getenv hypot ilogb index isfinite isinf isnan j0 j1 jn labs
    ldexp ldiv lgamma llabs lldiv llrint llround log log10 log1p log2 logb lrint lround main malloc max memchr memcmp
    memcpy memmove memset min modf mulhi mul24 nan nearbyint nextafter norm norm3d norm4d normcdf normcdfinv pow printf
    putc puts qsort rand random rcbrt read realloc remainder remove rename rewind rhypot rindex rint round rsqrt
    saturate scalb scalbn select sin sincos sincospi sinh sinpi sqrt strcmp system tan tanh tgamma time trunc umin umax
    y0 y1 yn""".split()
)
RENAMED = "hearth_kernel_"
_ARCHITECTURE_MARKS = frozenset({"__device__", "__host__", "__constant__", "__managed__", "__global__"})
_CALL_MARKS = frozenset({"__launch_bounds__", "__cluster_dims__", "__maxnreg__"})
_HERE = "const ::hearth::Here hearth_here"
_PROLOGUE = (
    " const ::uint3 threadIdx = ::hearth::uint3_of(hearth_here.thread_idx),"
    " blockIdx = ::hearth::uint3_of(hearth_here.block_idx);"
    " const ::dim3 blockDim = ::hearth::dim3_of(hearth_here.block_dim),"
    " gridDim = ::hearth::dim3_of(hearth_here.grid_dim); "
)


@dataclass(frozen=True)
class Translation:
    """C++ text, and what is needed to explain its errors."""

    text: str
    kernels: tuple[str, ...]


def translate(preprocessed: str, name_expressions: Sequence[str] = ()) -> Translation:
    """Rewrite a preprocessed CUDA source to C++ with its table of kernels and variables.

    Raises `Refusal`: UNSUPPORTED for what cannot run here, by name and line; COMPILE_FAILED for a kernel that is not
    one.
    """
    source = SourceMap(preprocessed)
    tokens = tokenize(source)
    unsupported.check(source, tokens)
    found = scan(tokens)
    rewriter = _Rewriter(source, tokens, found)
    rewriter.rewrite()
    table = _Table(tokens, found, rewriter)
    return Translation(rewriter.result() + table.text(name_expressions), tuple(k.qualified for k in found.kernels))


class _Rewriter:
    def __init__(self, source: SourceMap, tokens: Sequence[Token], found: Declarations) -> None:
        self.source = source
        self.tokens = tokens
        self.found = found
        self.edits: list[tuple[int, int, str]] = []
        self.slow_kernels: set[str] = set()  # those that read the thread's record instead of copies
        self.shared_in: set[str] = set()  # functions that declare static shared memory

    def rewrite(self) -> None:
        copied: list[tuple[int, int]] = []
        for kernel in self.found.kernels:
            self._kernel(kernel, copied)
        for variable in self.found.variables:
            if variable.is_extern_c and self.tokens[variable.statement[0]].text == "extern":
                self._drop_extern_c(variable.statement[0])  # there `extern` would make it a mere declaration
        self._shared()
        in_copy = iter(sorted(copied))
        current = next(in_copy, None)
        for index, token in enumerate(self.tokens):
            if token.kind != "name":
                continue
            while current is not None and index >= current[1]:
                current = next(in_copy, None)
            text = token.text
            if text in _BUILTINS:
                inside = current is not None and current[0] <= index
                if not inside and self.tokens[index - 1].text not in (".", "->", "::"):
                    self._replace(index, f"::hearth::{_BUILTINS[text]}()")
            elif text in _ARCHITECTURE_MARKS:
                self._replace(index, "")
            elif text in _CALL_MARKS and index + 1 < len(self.tokens) and self.tokens[index + 1].text == "(":
                self._blank(index, matching(self.tokens, index + 1, len(self.tokens)) + 1)
            elif text == "__noinline__" and self.tokens[index - 1].text not in ("(", ","):
                self._replace(index, "__attribute__((noinline))")

    def result(self) -> str:
        parts: list[str] = []
        at = 0
        for start, end, replacement in sorted(self.edits, key=lambda edit: (edit[0], edit[1])):
            if start < at:  # inside something that has been replaced as a whole
                continue
            parts += (self.source.text[at:start], replacement)
            at = end
        parts.append(self.source.text[at:])
        return "".join(parts)

    def _replace(self, index: int, text: str) -> None:
        self.edits.append((self.tokens[index].start, self.tokens[index].end, text))

    def _blank(self, first: int, end: int, text: str = "") -> None:
        """Replace a range of tokens, keeping its line breaks so that what follows stays on its line."""
        start, stop = self.tokens[first].start, self.tokens[end - 1].end
        kept = self.source.text[start:stop]
        if "\n#" in kept or "\n #" in kept:  # a line marker within: keep it, or the lines after it would be wrong
            tail = "\n" + "\n".join(line for line in kept.split("\n")[1:] if line.lstrip().startswith("#")) + "\n"
        else:
            tail = "\n" * kept.count("\n")
        self.edits.append((start, stop, text + tail))

    def _drop_extern_c(self, index: int) -> None:
        self._replace(index, "")
        self._replace(index + 1, "")

    @staticmethod
    def renamed(kernel: Function) -> str:
        """The name that `kernel` has in the C++ text."""
        plain = kernel.is_extern_c and not kernel.is_template
        return RENAMED + kernel.name if plain and kernel.name in _TAKEN else kernel.name

    def _kernel(self, kernel: Function, copied: list[tuple[int, int]]) -> None:
        tokens = self.tokens
        start, _ = kernel.statement
        opening, closing = kernel.parameters
        if tokens[start].text == "extern" and tokens[start + 1].kind == "string":
            # The linkage would only make a kernel's name meet a C function's; it is exported under its name anyway.
            self._drop_extern_c(start)
        if self.renamed(kernel) != kernel.name:
            self._replace(opening - 1, self.renamed(kernel))
        parameters = tokens[opening + 1 : closing - 1]
        if [token.text for token in parameters] == ["void"]:
            self._replace(opening + 1, "")
            parameters = []
        at = tokens[opening].end
        self.edits.append((at, at, _HERE + (", " if parameters else "")))
        head = {token.text for token in tokens[start:opening]}
        instantiation = tokens[start].text == "template" and tokens[start + 1].text != "<"
        mark = next(i for i in range(start, opening) if tokens[i].text == "__global__")
        inline = "" if instantiation or "inline" in head else "inline "
        self._replace(mark, "" if instantiation else f"{inline}__attribute__((always_inline))")
        if kernel.body is None:
            return
        body = tokens[kernel.body[0] : kernel.body[1]]
        # Local classes and lambdas without captures cannot see a function's variables.
        opaque = any(
            token.text in ("struct", "class", "union")
            or (token.text == "[" and body[i + 1].text == "]" and body[i + 2].text in ("(", "{", "<", "__device__"))
            for i, token in enumerate(body[:-2])
        )
        if opaque:
            self.slow_kernels.add(kernel.name)
        else:
            self.edits.append((body[0].end, body[0].end, _PROLOGUE))
            copied.append(kernel.body)

    def _shared(self) -> None:
        bodies = [(f.body, f.name) for f in self.found.functions if f.body is not None]
        for index, token in enumerate(self.tokens):
            if token.text != "__shared__":
                continue
            start = index
            while start > 0 and self.tokens[start - 1].text not in (";", "{", "}", ":") and start > index - 16:
                if self.tokens[start - 1].kind == "directive":
                    break
                start -= 1
            end = index
            while end < len(self.tokens) - 1 and self.tokens[end].text != ";":
                end = matching(self.tokens, end, len(self.tokens)) if self.tokens[end].text in "([{" else end
                end += 1
            words = [t.text for t in self.tokens[start:end]]
            inside = next((name for body, name in bodies if body[0] <= index < body[1]), None)
            if "extern" in words:
                self._dynamic_shared(start, end, inside)
            else:
                self._replace(index, "thread_local" if "static" in words else "static thread_local")
                if inside is not None:
                    self.shared_in.add(inside)

    def _dynamic_shared(self, start: int, end: int, inside: str | None) -> None:
        """`extern __shared__ T name[];` in the tokens from `start` to the semicolon at `end`."""
        tokens = self.tokens
        kept: list[int] = []
        at = start
        while at < end:
            text = tokens[at].text
            if text in ("__attribute__", "alignas", "__align__"):
                at = matching(tokens, at + 1, end)
            elif text not in ("extern", "__shared__", "static") and tokens[at].kind != "string":
                kept.append(at)
            at += 1
        bracket = next((i for i, k in enumerate(kept) if tokens[k].text == "["), len(kept))
        if bracket == 0 or tokens[kept[bracket - 1]].kind != "name":
            return
        name = tokens[kept[bracket - 1]].text
        kind = " ".join(tokens[k].text for k in kept[: bracket - 1])
        closing = matching(tokens, kept[bracket], end) if bracket < len(kept) else end
        inner = "".join(tokens[k].text for k in kept if k > closing)  # the further dimensions
        alias = f"hearth_dynamic_{name}"
        declared = f"typedef {kind} (*{alias}){inner};" if inner else f"typedef {kind} *{alias};"
        value = f"(({alias})hearth_tls.dynamic_shared)"
        if bracket == len(kept):
            value = f"(*{value})"
        if inside is None:
            self._blank(start, end + 1, declared)
            self._replace_uses(name, value, end + 1)
        else:
            reference = f"auto &{name}" if bracket == len(kept) else f"{alias} const {name}"
            self._blank(start, end + 1, f"{declared} {reference} = {value};")

    def _replace_uses(self, name: str, value: str, after: int) -> None:
        """Of a dynamic array declared outside functions: every mention in a body, unless that body has its own."""
        for function in self.found.functions:
            if function.body is None or function.body[0] < after:
                continue
            places = range(function.parameters[0], function.body[1])
            named = (i for i in places if self.tokens[i].text == name)
            uses = [i for i in named if self.tokens[i - 1].text not in (".", "->", "::")]
            if any(self._declares(i) for i in uses):
                continue
            for index in uses:
                self._replace(index, value)

    def _declares(self, index: int) -> bool:
        before = self.tokens[index - 1]
        if before.text in ("*", "&"):
            before = self.tokens[index - 2]
            return before.text in ("float", "double", "int", "char", "unsigned", "T", "const", "long", "short", "half")
        return before.kind == "name" and before.text not in ("return", "else", "case", "sizeof", "do")


class _Table:
    """The appended table of what a module offers."""

    def __init__(self, tokens: Sequence[Token], found: Declarations, rewriter: _Rewriter) -> None:
        self.tokens = tokens
        self.found = found
        self.rewriter = rewriter
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
                place = "::".join((*kernel.scope, self.rewriter.renamed(kernel)))
                kernels.append(self._entry(kernel, f"&::{place}", kernel.name))
        for variable in {v.qualified: v for v in self.found.variables}.values():
            place = f"::{variable.qualified}"
            for name in {variable.qualified, f"&{variable.qualified}"}:
                variables.append(f"{{{_quoted(name)}, (void *)&{place}, sizeof({place})}},")
        known = {v.qualified for v in self.found.variables} | {f"&{v.qualified}" for v in self.found.variables}
        for number, expression in enumerate(dict.fromkeys(name_expressions)):
            bare = expression.strip().removeprefix("&").strip()
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
        lines.append("{nullptr, nullptr, 0, 0, 1, 0, 0, nullptr, nullptr, nullptr}};")
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
        needs_record = kernel.name in self.rewriter.slow_kernels or not reached.isdisjoint(_BUILTINS)
        needs_record |= not names.isdisjoint(_REPORTING)
        shared_in = " ".join(sorted((entered | {kernel.name}) & self.rewriter.shared_in))
        flags = f"{str(fibers).lower()}, {str(needs_record).lower()}"
        return (
            f"::hearth::describe_kernel<{value}, {flags}>"
            f"({_quoted(name)}, ::hearth::launch_bounds({self._bounds(kernel)}), {_quoted(shared_in)}),"
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


def _quoted(text: str) -> str:
    return json.dumps(text)


__all__ = ["EXPRESSION_FILE", "SPACE_MARKERS", "TABLE_FILE", "Translation", "translate"]
