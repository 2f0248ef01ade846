"""Rewriting of CUDA C++ to C++: replaces the language extensions of a kernel source for an ordinary C++ compiler.

Works on preprocessed text (so that macros and `#if` are resolved) and changes it in place, line by line, so that the
compiler's messages refer to the user's own lines:

- `threadIdx` and similar variables need no rewriting: they are variables of the prelude (include/hearth/thread.h).
- `__shared__` variables become thread-local ones: all threads of a block run on one operating system thread, and no
  other block runs on it at the same time. `extern __shared__` arrays become thread-local references, or pointers in
  templates, which are declared at the same place, so that the uses of the names need no rewriting.
- The program gets a separate namespace, so that its names hide those of the prelude (`collisions.py`).
- A table of kernels and variables is appended (`hearth_module` in include/hearth/abi.h).

How a kernel is run does not depend on the contents of its source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hearthd.device.cpu.translation import collisions, mistakes, spin_loops, unsupported
from hearthd.device.cpu.translation.declarations import Declarations, FunctionDeclaration, declarator_names, scan
from hearthd.device.cpu.translation.table import address_table, module_table
from hearthd.device.cpu.translation.tokens import SourceMap, Token, matching, tokenize
from hearthd.device.cpu.translation.warp_synchronous import Finding, warp_synchronous

RENAMED = "hearth_kernel_"
_DYNAMIC_SYMBOL = ' __asm__("hearth_dynamic_shared") __attribute__((tls_model("initial-exec")))'
"""The pointer to the block's dynamic shared memory (include/hearth/abi.h), as the symbol of a declared variable."""

_AUTO_PARAMETER = re.compile(r"\bauto( [&*]| const| \.\.\.| __restrict__)*( \w+)? [,)]")
"""A parameter of type `auto`, which makes a template of a function or lambda."""

_ARCHITECTURE_MARKS = frozenset({"__device__", "__host__", "__constant__", "__managed__", "__global__"})
_CALL_MARKS = frozenset({"__launch_bounds__", "__cluster_dims__", "__maxnreg__"})


@dataclass(frozen=True)
class Translation:
    """Rewritten C++ text, with the data needed to explain its errors."""

    text: str
    kernels: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    """Places that rely on the lanes of a warp running in step."""


def translate(
    preprocessed: str,
    name_expressions: Sequence[str] = (),
    prelude_functions: frozenset[str] = frozenset(),
    include_dir: str = "/",
    foreign: bool = False,
) -> Translation:
    """Rewrites a preprocessed CUDA source to C++ with its table of kernels and variables.

    `prelude_functions`: CUDA's functions that the prelude declares; `include_dir`: the directory of the backend's
    headers; `foreign`: the program is known to include headers of the C or C++ library. Raises `Refusal`: UNSUPPORTED
    for features that cannot run here, with name and line; COMPILE_FAILED for an invalid kernel.
    """
    source = SourceMap(preprocessed)
    tokens = tokenize(source)
    unsupported.check(source, tokens)
    declarations = scan(tokens)
    mistakes.check(source, tokens, declarations)
    separation = collisions.Separation(source, tokens, declarations, prelude_functions, include_dir, foreign)
    rewriter = _Rewriter(
        source, tokens, declarations, collisions.renamed_kernels(declarations.kernels, separation.functions)
    )
    rewriter.rewrite()
    if any(mistakes.brackets(source, tokens)):
        return Translation(rewriter.result(), ())  # the compiler reports the place
    rewriter.edits += separation.edits()  # last, because of several edits to one token only the first has an effect
    tables = address_table(source, tokens, declarations)
    tables += module_table(tokens, declarations, rewriter.renamed, name_expressions)
    text = f"{rewriter.result()}\n{collisions.OPEN}{separation.aliases()}{tables}}}\n"
    findings = tuple(warp_synchronous(source, tokens, declarations))
    return Translation(text, tuple(k.qualified for k in declarations.kernels), findings)


class _Rewriter:
    def __init__(
        self,
        source: SourceMap,
        tokens: Sequence[Token],
        declarations: Declarations,
        colliding: frozenset[str] = frozenset(),
    ) -> None:
        self.source = source
        self.tokens = tokens
        self.declarations = declarations
        self.colliding = colliding  # kernels that have names of CUDA functions
        self.edits: list[tuple[int, int, str]] = []

    def rewrite(self) -> None:
        for kernel in self.declarations.kernels:
            self._rewrite_kernel(kernel)
        for variable in self.declarations.variables:
            if variable.is_extern_c and self.tokens[variable.statement[0]].text == "extern":
                # with `extern`, the variable would be declared but not defined
                self._drop_extern_c(variable.statement[0])
        self._rewrite_shared()
        self.edits.extend(spin_loops.edits_of_loops(self.tokens))
        for index, token in enumerate(self.tokens):
            if token.kind == "string" and unsupported.is_dependency_control([token.text]):
                self._drop_instruction(index)
            if token.kind != "name":
                continue
            text = token.text
            if text in _ARCHITECTURE_MARKS:
                self._replace(index, "")
            elif text in _CALL_MARKS and index + 1 < len(self.tokens) and self.tokens[index + 1].text == "(":
                self._blank(index, matching(self.tokens, index + 1, len(self.tokens)) + 1)
            elif text == "__noinline__" and self.tokens[index - 1].text not in ("(", ","):
                self._replace(index, "__attribute__((noinline))")

    def result(self) -> str:
        parts: list[str] = []
        at = 0
        for start, end, replacement in sorted(self.edits, key=lambda edit: (edit[0], edit[1])):
            if start < at:  # inside a range that has been replaced as a whole
                continue
            parts += (self.source.text[at:start], replacement)
            at = end
        parts.append(self.source.text[at:])
        return "".join(parts)

    def _replace(self, index: int, text: str) -> None:
        self.edits.append((self.tokens[index].start, self.tokens[index].end, text))

    def _blank(self, first: int, end: int, text: str = "") -> None:
        """Replaces a range of tokens and keeps its line breaks, so that the following text stays on its line."""
        start, stop = self.tokens[first].start, self.tokens[end - 1].end
        replaced = self.source.text[start:stop]
        # a line marker in the range is kept, because the numbers of the following lines depend on it
        if "\n#" in replaced or "\n #" in replaced:
            tail = "\n" + "\n".join(line for line in replaced.split("\n")[1:] if line.lstrip().startswith("#")) + "\n"
        else:
            tail = "\n" * replaced.count("\n")
        self.edits.append((start, stop, text + tail))

    def _drop_instruction(self, index: int) -> None:
        """Empties the string if it is the text of an `asm`."""
        words = [token.text for token in self.tokens[max(0, index - 4) : index]]
        if words[-1:] == ["("] and any(word in ("asm", "__asm__", "__asm") for word in words):
            self._replace(index, '""')

    def _drop_extern_c(self, index: int) -> None:
        self._replace(index, "")
        self._replace(index + 1, "")

    def renamed(self, kernel: FunctionDeclaration) -> str:
        """Returns the name that `kernel` has in the C++ text."""
        plain = kernel.is_extern_c and not kernel.is_template
        return RENAMED + kernel.name if plain and kernel.name in self.colliding else kernel.name

    def _rewrite_kernel(self, kernel: FunctionDeclaration) -> None:
        tokens = self.tokens
        start, _ = kernel.statement
        opening, _ = kernel.parameters
        if tokens[start].text == "extern" and tokens[start + 1].kind == "string":
            # With C linkage, the kernel's name could only clash with that of a C function; the kernel is exported under
            # its name in any case.
            self._drop_extern_c(start)
        if self.renamed(kernel) != kernel.name:
            self._replace(opening - 1, self.renamed(kernel))
        head = {token.text for token in tokens[start:opening]}
        instantiation = tokens[start].text == "template" and tokens[start + 1].text != "<"
        mark = next(i for i in range(start, opening) if tokens[i].text == "__global__")
        inline = "" if instantiation or "inline" in head else "inline "
        self._replace(mark, "" if instantiation else f"{inline}__attribute__((always_inline))")

    def _rewrite_shared(self) -> None:
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
            if "extern" in words:
                self._rewrite_dynamic_shared(start, index, end)
            else:
                self._move_alignment(start, index, end)
                self._replace(index, "thread_local" if "static" in words else "static thread_local")

    def _move_alignment(self, start: int, mark: int, end: int) -> None:
        """Moves `alignas` to the start of a declaration: only CUDA's compilers accept it among the specifiers."""
        for index in range(mark + 1, end):
            text = self.tokens[index].text
            if text in ("=", "{", "["):
                return
            if text == "alignas" and self.tokens[index + 1].text == "(":
                close = matching(self.tokens, index + 1, end)
                specifier = self.source.text[self.tokens[index].start : self.tokens[close].end]
                self.edits.append((self.tokens[start].start, self.tokens[start].start, specifier + " "))
                self._blank(index, close + 1)

    def _rewrite_dynamic_shared(self, start: int, mark: int, end: int) -> None:
        """Rewrites `extern __shared__ T name[];` to a declaration of the same name in the same scope.

        It becomes `extern __thread T (&name)[]` with the symbol of the runtime's pointer, of which the reference
        consists. In templates, where g++ ignores such a symbol, it becomes `T (*const name) = hearth::dynamic_array`.
        The tokens of the declaration are those from `start`, with `__shared__` at `mark`, to the semicolon at `end`.
        """
        tokens = self.tokens
        names = declarator_names(tokens, start, end)
        external = next(at for at in range(start, end) if tokens[at].text == "extern")
        is_local = self._may_be_template(mark)
        self._replace(mark, "" if is_local or mark < external else "__thread")
        if is_local or mark < external:  # `__thread` cannot precede `extern`
            self._replace(external, "" if is_local else "extern __thread")
        at = start
        while at < end:
            closing = at
            if tokens[at].text in ("__attribute__", "alignas"):  # of the array, not of the pointer
                closing = matching(tokens, at + 1, end)
                self._blank(at, closing + 1)
            elif at in names:
                is_array = tokens[at + 1].text == "["
                if is_local and is_array:
                    closing = matching(tokens, at + 1, end)
                    self._blank(at + 1, closing + 1)
                self._replace(at, f"(*const {tokens[at].text})" if is_local and is_array else f"(&{tokens[at].text})")
                while tokens[closing + 1].text == "[":
                    closing = matching(tokens, closing + 1, end)
                value = f" = ::hearth::dynamic_{'array' if is_array else 'object'}" if is_local else _DYNAMIC_SYMBOL
                self.edits.append((tokens[closing].end, tokens[closing].end, value))
            at = closing + 1

    def _may_be_template(self, index: int) -> bool:
        """True if the token is in a template, a member function (of a template, perhaps) or after a generic lambda."""
        function = next((f for f in self.declarations.functions if f.body and f.body[0] <= index < f.body[1]), None)
        if function is None:
            return False
        texts = " ".join(token.text for token in self.tokens[function.parameters[0] : index])
        return function.is_template or function.owner is not None or _AUTO_PARAMETER.search(texts) is not None
