"""Declarations of a CUDA C++ source, found without a C++ parser: kernels, functions and variables with their names.

The scanner follows scopes (namespaces, linkage blocks, classes) and skips function bodies. That is sufficient to find
the kernels and variables of a module, and the places to rewrite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hearthd.device.cpu.translation.tokens import Token, after_template, matching, matching_angle

SPACE_MARKERS = frozenset({"__device__", "__constant__", "__managed__"})
# Names that may be followed by parentheses without being the declared name.
_DECORATIONS = frozenset(
    {"__attribute__", "__attribute", "alignas", "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "decltype",
     "noexcept", "explicit", "requires", "__declspec", "throw", "static_assert", "sizeof", "alignof", "typeof"}
)  # fmt: skip
_CLASS_KEYS = frozenset({"struct", "class", "union"})


@dataclass
class _Declaration:
    name: str
    scope: tuple[str, ...]
    statement: tuple[int, int]
    is_extern_c: bool

    @property
    def qualified(self) -> str:
        """Name with its namespaces, such as `a::b::name`."""
        return "::".join((*self.scope, self.name))


@dataclass
class FunctionDeclaration(_Declaration):
    """A function definition, or a forward declaration (`body` is None). Token ranges are half open."""

    owner: str | None  # the class of a member function
    parameters: tuple[int, int]  # from the opening parenthesis to the end of the closing one
    body: tuple[int, int] | None  # from the opening brace to the end of the closing one
    is_kernel: bool
    is_template: bool


@dataclass
class VariableDeclaration(_Declaration):
    """A `__device__`, `__constant__` or `__managed__` variable at namespace scope."""


@dataclass
class Declarations:
    """Result of `scan`: the functions, the device variables and the names that a source declares."""

    functions: list[FunctionDeclaration] = field(default_factory=list)
    variables: list[VariableDeclaration] = field(default_factory=list)
    scoped_names: set[tuple[tuple[str, ...], str]] = field(default_factory=set)
    """Every name that is declared at namespace scope, as (namespaces, name)."""

    @property
    def global_names(self) -> set[str]:
        """Names that are declared outside any namespace."""
        return {name for scope, name in self.scoped_names if not scope}

    @property
    def kernels(self) -> list[FunctionDeclaration]:
        """Functions declared `__global__`, forward declarations included."""
        return [function for function in self.functions if function.is_kernel]


def scan(tokens: Sequence[Token]) -> Declarations:
    """Returns everything that `tokens` declare at namespace and class scope."""
    declarations = Declarations()
    _Scanner(tokens, declarations).scope(0, len(tokens), (), None, False)
    return declarations


def declarator_names(tokens: Sequence[Token], start: int, end: int) -> list[int]:  # noqa: PLR0912 - a case a shape
    """Returns the indices of the names that the variable declaration in `[start, end)` declares.

    An example with three names is `int a, *b[2], (*f)(int);`.
    """
    names: list[int] = []
    candidate: int | None = None
    at = start
    while at < end:
        token = tokens[at]
        if token.text in _DECORATIONS and at + 1 < end and tokens[at + 1].text == "(":
            at = matching(tokens, at + 1, end)
        elif token.kind == "name":
            candidate = at
        elif token.text == "<":
            closing = matching_angle(tokens, at, end)
            at = closing if closing is not None else at
        elif token.text in ("=", "{", "["):
            if candidate is not None:
                names.append(candidate)
                candidate = None
            while at < end and tokens[at].text not in (",", ";"):
                at = matching(tokens, at, end) + 1 if tokens[at].text in ("(", "[", "{") else at + 1
            continue
        elif token.text == "(":
            closing = matching(tokens, at, end)
            if at + 1 < end and tokens[at + 1].text == "*":  # a pointer to a function or an array
                inner = [i for i in range(at, closing) if tokens[i].kind == "name"]
                candidate = inner[-1] if inner else candidate
                at = closing
                while at + 1 < end and tokens[at + 1].text in ("(", "["):
                    at = matching(tokens, at + 1, end)
            else:
                at = closing
        elif token.text in (",", ";"):
            if candidate is not None:
                names.append(candidate)
            candidate = None
        at += 1
    if candidate is not None:
        names.append(candidate)
    return names


class _Scanner:
    def __init__(self, tokens: Sequence[Token], declarations: Declarations) -> None:
        self.tokens = tokens
        self.declarations = declarations

    def scope(self, at: int, end: int, names: tuple[str, ...], owner: str | None, extern_c: bool) -> None:
        """Scans the statements in `[at, end)`, inside the namespaces `names` or the class `owner`."""
        while at < end:
            at = self.statement(at, end, names, owner, extern_c)

    def statement(  # noqa: PLR0911, PLR0912, PLR0915 - one case for each shape a declaration takes
        self, start: int, end: int, names: tuple[str, ...], owner: str | None, extern_c: bool
    ) -> int:
        tokens = self.tokens
        at = start
        head = after_template(tokens, start, end)  # commas, classes and defaults before it would be misread
        function: tuple[int, int] | None = None  # indices of the name and of the opening parenthesis
        initialised = False
        class_key: int | None = None
        is_enum = False
        declarators = head  # index at which declarators can begin: after a class that the statement may define
        while at < end:
            text = tokens[at].text
            if at < head:
                at = head
                continue
            if text == ";":
                self._add_declaration(start, at + 1, function, None, names, owner, extern_c, declarators)
                return at + 1
            if text == ":" and owner is not None and tokens[at - 1].text in ("public", "private", "protected"):
                return at + 1
            if tokens[at].kind == "name":
                if text == "namespace" and function is None:
                    opening = self._find(at, end, ("{", ";", "="))
                    if opening < end and tokens[opening].text == "{":
                        words = (t.text for t in tokens[at + 1 : opening] if t.kind == "name")
                        inner = tuple(word for word in words if word != "inline")
                        closing = matching(tokens, opening, end)
                        self.scope(opening + 1, closing, names + inner, None, extern_c)
                        return closing + 1
                    return self._find(at, end, (";",)) + 1
                if text in _CLASS_KEYS and function is None and class_key is None:
                    class_key = at
                elif text == "enum":
                    class_key = None
                    is_enum = True
                elif text in _DECORATIONS and at + 1 < end and tokens[at + 1].text == "(":
                    at = matching(tokens, at + 1, end)
                elif text == "operator" and function is None and not initialised:
                    opening = self._find(at + 1, end, ("(",))
                    if opening + 1 < end and tokens[opening + 1].text == ")" and opening == at + 1:
                        opening = self._find(opening + 2, end, ("(",))
                    function = (at, opening)
                    at = matching(tokens, opening, end)
            elif text == "<" and not initialised and tokens[at - 1].kind == "name":
                angle = matching_angle(tokens, at, end)
                at = angle if angle is not None else at
            elif text == "=":
                initialised = True
            elif text == "(":
                pointer = at + 1 < end and tokens[at + 1].text == "*"  # `int (*name)(int)`
                if function is None and not initialised and not pointer:
                    function = self._function_name(start, at)
                at = matching(tokens, at, end)
            elif text == "[":
                at = matching(tokens, at, end)
            elif text == "{":
                closing = matching(tokens, at, end)
                previous = tokens[at - 1].text if at > start else ""
                if at > start and tokens[at - 1].kind == "string" and tokens[start].text == "extern":
                    self.scope(at + 1, closing, names, None, True)
                    return closing + 1
                if function is not None and not initialised:
                    in_initialisers = any(t.text == ":" for t in tokens[function[1] : at])
                    if not in_initialisers or previous in (")", "}"):
                        self._add_declaration(
                            start, closing + 1, function, (at, closing + 1), names, owner, extern_c, head
                        )
                        return closing + 1
                elif is_enum and not initialised:
                    if owner is None:
                        self._enumerators(at, closing, names)
                        name = self._class_name(start, at)
                        self.declarations.scoped_names.add((names, name))
                    class_key = None
                    declarators = closing + 1
                elif class_key is not None and not initialised:
                    name = self._class_name(class_key, at)
                    if owner is None and not any(t.text == "::" for t in tokens[class_key:at]):
                        self.declarations.scoped_names.add((names, name))
                    self.scope(at + 1, closing, (), name, False)
                    class_key = None
                    declarators = closing + 1
                at = closing
            elif text == "}":
                return at + 1
            at += 1
        return end

    def _find(self, at: int, end: int, texts: tuple[str, ...]) -> int:
        while at < end and self.tokens[at].text not in texts:
            at += 1
        return at

    def _function_name(self, start: int, opening: int) -> tuple[int, int] | None:
        """Returns the indices of the name and of the parenthesis at `opening`; None if there is no name.

        Skips the arguments of an explicit specialisation.
        """
        at = opening - 1
        if at > start and self.tokens[at].text == ">":
            depth = 0
            while at > start:
                depth += {">": 1, "<": -1}.get(self.tokens[at].text, 0)
                at -= 1
                if depth == 0:
                    break
        return (at, opening) if at >= start and self.tokens[at].kind == "name" else None

    def _class_name(self, key: int, opening: int) -> str:
        at = key + 1
        while at < opening:
            if self.tokens[at].text in _DECORATIONS:
                at = matching(self.tokens, at + 1, opening)
            elif self.tokens[at].kind == "name":
                return self.tokens[at].text
            at += 1
        return ""

    def _enumerators(self, opening: int, closing: int, names: tuple[str, ...]) -> None:
        for index in range(opening + 1, closing):
            if self.tokens[index].kind == "name" and self.tokens[index - 1].text in ("{", ","):
                self.declarations.scoped_names.add((names, self.tokens[index].text))

    def _words_outside_braces(self, at: int, end: int) -> set[str]:
        """Returns the statement's words outside braces; words inside braces belong to inner declarations."""
        words: set[str] = set()
        while at < end:
            if self.tokens[at].text == "{":
                at = matching(self.tokens, at, end)
            elif self.tokens[at].kind == "name":
                words.add(self.tokens[at].text)
            at += 1
        return words

    def _add_declaration(
        self,
        start: int,
        end: int,
        function: tuple[int, int] | None,
        body: tuple[int, int] | None,
        names: tuple[str, ...],
        owner: str | None,
        extern_c: bool,
        declarators: int,
    ) -> None:
        tokens = self.tokens
        words = self._words_outside_braces(after_template(tokens, start, end), function[1] if function else end)
        single = tokens[start].text == "extern" and start + 1 < end and tokens[start + 1].kind == "string"
        linkage = extern_c or single
        if function is not None:
            name, opening = function
            if owner is None and tokens[name - 1].text != "::":
                self.declarations.scoped_names.add((names, tokens[name].text))
            self.declarations.functions.append(
                FunctionDeclaration(
                    tokens[name].text, names, (start, end), linkage, owner,
                    (opening, matching(tokens, opening, end) + 1), body,
                    "__global__" in words, tokens[start].text == "template",
                )
            )  # fmt: skip
            return
        if owner is None:
            indices = (index for index in declarator_names(tokens, declarators, end) if tokens[index - 1].text != "::")
            self.declarations.scoped_names.update((names, tokens[index].text) for index in indices)
        # A variable template has no address; a name expression names an instance of it.
        is_variable = (
            words & SPACE_MARKERS and not words & {"__shared__", "typedef"} and tokens[start].text != "template"
        )
        if owner is None and is_variable:
            for index in declarator_names(tokens, declarators, end):
                if tokens[index].text not in SPACE_MARKERS and tokens[index - 1].text != "::":
                    self.declarations.variables.append(
                        VariableDeclaration(tokens[index].text, names, (start, end), linkage)
                    )
