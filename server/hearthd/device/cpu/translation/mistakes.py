"""Mistakes in a source that a C++ compiler cannot describe.

They are specific to CUDA or show only in the appended table. `check` refuses code that C++ accepts and CUDA does not,
before a compile. `explain` searches, after a failed compile, for causes of messages that refer to no line of the user:
a brace that is never closed, a kernel that does not return void, kernels that share a C name. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.translation.declarations import Declarations, FunctionDeclaration, scan
from hearthd.device.cpu.translation.tokens import OPENING, SourceMap, Token, matching, tokenize

Mistake = tuple[str, int, str]
"""File, line and message."""

_CLASS_KEYS = frozenset({"struct", "class", "union", "enum"})
_DECLARATION_STARTS = frozenset(
    {"extern", "template", "namespace", "using", "typedef", "__global__", "__constant__", *_CLASS_KEYS}
)
"""Tokens that begin a declaration and cannot follow a class in the same declaration."""

_BUILTIN_VARIABLES = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim"})
_ASSIGNMENT = re.compile(r"\s*(\+\+|--|(<<|>>|[-+*/%&|^])?=(?!=))")
"""An operator that changes the operand before it."""

_QUOTED = re.compile(r"'([A-Za-z_]\w*)'")


def check(source: SourceMap, tokens: Sequence[Token], declarations: Declarations) -> None:
    """Raises `Refusal` (COMPILE_FAILED) for a use of kernels that CUDA does not allow."""
    for mistake in (
        *_member_kernels(source, tokens, declarations),
        *_kernel_calls(source, tokens, declarations),
        *_assigned_builtins(source, tokens),
    ):
        raise refusal(mistake)


def refusal(mistake: Mistake) -> Refusal:
    """Returns the refusal (COMPILE_FAILED) of a source with this mistake."""
    file, line, text = mistake
    message = f"{file}({line}): error: {text}"
    return Refusal(
        Reason.COMPILE_FAILED,
        f"The source does not compile: {message}",
        fix="correct the source",
        details={"log": message, "file": file, "line": line},
    )


def explain(expanded: str) -> list[Mistake]:
    """Returns the mistakes in a preprocessed source, in order."""
    source = SourceMap(expanded)
    tokens = tokenize(source)
    unmatched = list(brackets(source, tokens))
    if unmatched:
        return unmatched  # other apparent mistakes are consequences
    declarations = scan(tokens)
    return [
        *_class_ends(source, tokens),
        *_kernel_types(source, tokens, declarations),
        *_references(source, tokens, declarations),
        *_c_names(source, tokens, declarations),
    ]


def first_use(expanded: str, message: str) -> tuple[str, int] | None:
    """Returns the file and line where the user's source first uses a name that the message quotes.

    Returns None if there is none.
    """
    source = SourceMap(expanded)
    names = set(_QUOTED.findall(message))
    token = next((token for token in tokenize(source) if token.text in names), None)
    return None if token is None else source.location(token.start)


def _member_kernels(source: SourceMap, tokens: Sequence[Token], declarations: Declarations) -> Iterator[Mistake]:
    for kernel in declarations.kernels:
        words = [token.text for token in tokens[kernel.statement[0] : kernel.parameters[0]]]
        if kernel.owner is not None and "friend" not in words:
            text = f"the kernel '{kernel.name}' is a member of '{kernel.owner}': a kernel is a function of a namespace"
            yield (*_location(source, tokens, kernel), text)


def _kernel_calls(source: SourceMap, tokens: Sequence[Token], declarations: Declarations) -> Iterator[Mistake]:
    """Yields statements that call a kernel as if it were a device function."""
    kernels = {kernel.name for kernel in declarations.kernels} - {
        f.name for f in declarations.functions if not f.is_kernel
    }
    for function in declarations.functions:
        if function.body is None or not kernels:
            continue
        first, last = function.body
        declared = {
            tokens[i].text
            for i in range(function.parameters[0], last)
            if tokens[i].text in kernels and (tokens[i - 1].kind == "name" or tokens[i - 1].text in ("*", "&", ">"))
        }
        for index in range(first + 1, last - 1):
            token = tokens[index]
            if token.text not in kernels or token.text in declared or tokens[index - 1].text not in (";", "{", "}"):
                continue
            if tokens[index + 1].text == "(":
                text = f"the kernel '{token.text}' is called as a function: make it a __device__ function"
                yield (*source.location(token.start), text)


def _assigned_builtins(source: SourceMap, tokens: Sequence[Token]) -> Iterator[Mistake]:
    """Yields assignments to a built-in variable, unless the program declares a variable of that name.

    A name that only occurs in member accesses is not declared.
    """
    accesses: dict[str, list[int]] = {}
    for index, token in enumerate(tokens):
        if token.text in _BUILTIN_VARIABLES and tokens[index - 1].text not in (".", "->"):
            accesses.setdefault(token.text, []).append(index)
    for indices in accesses.values():
        if any(tokens[index + 1].text != "." for index in indices):
            continue
        for index in indices:
            if _ASSIGNMENT.match(source.text, tokens[index + 2].end):
                text = f"'{tokens[index].text}' is assigned to: a built-in variable cannot be changed"
                yield (*source.location(tokens[index].start), text)


def _class_ends(source: SourceMap, tokens: Sequence[Token]) -> Iterator[Mistake]:
    """Yields class definitions without a semicolon at their end."""
    for index, token in enumerate(tokens):
        if token.text not in _CLASS_KEYS:
            continue
        opening = index + 1
        while opening < len(tokens) and (tokens[opening].kind == "name" or tokens[opening].text in (":", ",")):
            opening += 1
        if opening >= len(tokens) or tokens[opening].text != "{":
            continue
        closing = matching(tokens, opening, len(tokens))
        if closing + 1 < len(tokens) and tokens[closing + 1].text in _DECLARATION_STARTS:
            text = f"a ';' is missing after this '}}', which ends the {token.text}"
            yield (*source.location(tokens[closing].start), text)


def _references(source: SourceMap, tokens: Sequence[Token], declarations: Declarations) -> Iterator[Mistake]:
    for kernel in declarations.kernels:
        opening, closing = kernel.parameters
        depth, default = 0, False
        for token in tokens[opening + 1 : closing - 1]:
            depth += (token.text in ("(", "[", "{", "<")) - (token.text in (")", "]", "}", ">"))
            default = (default or token.text == "=") and not (token.text == "," and depth == 0)
            if token.text == "&" and depth == 0 and not default:
                text = f"the kernel '{kernel.name}' takes a reference: the arguments of a kernel are passed by value"
                yield (*source.location(token.start), text)
                break


def brackets(source: SourceMap, tokens: Sequence[Token]) -> Iterator[Mistake]:
    """Yields the first bracket without a matching one, if there is one."""
    closing = {end: start for start, end in OPENING.items()}
    open_: list[Token] = []
    for token in tokens:
        if token.kind != "op":
            continue
        if token.text in OPENING:
            open_.append(token)
        elif token.text in closing:
            if open_ and open_[-1].text == closing[token.text]:
                open_.pop()
            elif open_ and token.text == "}":
                break  # a parenthesis is still open within the braces
            else:
                yield (*source.location(token.start), f"this '{token.text}' closes nothing that is open")
                return
    if open_:
        token = open_[-1]
        missing = OPENING[token.text]
        yield (*source.location(token.start), f"this '{token.text}' is never closed: a '{missing}' is missing")


def _kernel_types(source: SourceMap, tokens: Sequence[Token], declarations: Declarations) -> Iterator[Mistake]:
    for kernel in declarations.kernels:
        head = [token.text for token in tokens[kernel.statement[0] : kernel.parameters[0]]]
        if "void" not in head:
            text = f"the kernel '{kernel.name}' must return void: a kernel gives its results in memory"
            yield (*_location(source, tokens, kernel), text)


def _c_names(source: SourceMap, tokens: Sequence[Token], declarations: Declarations) -> Iterator[Mistake]:
    """Yields kernels with C linkage that share a name, which C does not allow."""
    parameters_of: dict[str, str] = {}
    for kernel in declarations.kernels:
        if not kernel.is_extern_c or kernel.is_template:
            continue
        opening, closing = kernel.parameters
        parameters = " ".join(token.text for token in tokens[opening:closing])
        if parameters_of.setdefault(kernel.qualified, parameters) != parameters:
            text = f"a kernel '{kernel.name}' with C linkage is declared before, with other parameters"
            yield (*_location(source, tokens, kernel), text)


def _location(source: SourceMap, tokens: Sequence[Token], kernel: FunctionDeclaration) -> tuple[str, int]:
    return source.location(tokens[kernel.parameters[0] - 1].start)
