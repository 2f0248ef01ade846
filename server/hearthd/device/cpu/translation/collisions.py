"""Separation of a program's names from those of the prelude, by a namespace for the program.

The C++ compiler knows more names than NVRTC does, because the prelude includes the C library (`time`, `index`,
`int64_t`). A program's text is therefore put into the inline namespace `hearth_program`, where its declarations hide
those of the prelude by C++'s own rules. Because the namespace is inline, argument-dependent lookup still finds the
program's operators for `float4`. Only what C++ would resolve differently from NVRTC is rewritten:

- A function of the program that overloads one of CUDA's (`max(float3, float3)`) would hide it: `using ::max` is added.
- `::name` is ambiguous if both declare the name, and becomes `::hearth_program::name`.
- C linkage would merge the program's function with that of the C library: `extern "C"` becomes `extern "C++"`
  (exported kernels keep their names in the table), and a bare redeclaration of a CUDA function is moved to a namespace
  that nothing uses.
- `namespace std` of a program that includes no header for it is the program's own, and is renamed. Otherwise it,
  an explicit specialisation of a library's template, and `operator new` stay at global scope.

Macros that NVRTC does not have are undefined if the program mentions them; those with a number become constants.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hearthd.device.cpu.translation.declarations import Declarations, FunctionDeclaration, scan
from hearthd.device.cpu.translation.tokens import OPENING, SourceMap, Token, after_template, matching, tokenize

PROGRAM = "hearth_program"
OPEN = f"inline namespace {PROGRAM} {{ "
OWN_STD = f"{PROGRAM}_std"
OWN_HEARTH = f"{PROGRAM}_hearth"
_IGNORED = f"namespace {PROGRAM}_ignored {{ "

CUDA_LIBRARY_FUNCTIONS = frozenset(
    """abs acos acosf acosh acoshf asin asinf asinh asinhf atan atan2 atan2f atanf atanh atanhf cbrt cbrtf ceil ceilf
    copysign copysignf cos cosf cosh coshf erf erfc erfcf erff exp exp10 exp10f exp2 exp2f expf expm1 expm1f fabs fabsf
    fdim fdimf floor floorf fma fmaf fmax fmaxf fmin fminf fmod fmodf free frexp frexpf hypot hypotf ilogb ilogbf
    isfinite isinf isnan j0 j0f j1 j1f jn jnf labs ldexp ldexpf lgamma lgammaf llabs llrint llrintf llround llroundf log
    log10 log10f log1p log1pf log2 log2f logb logbf logf lrint lrintf lround lroundf malloc memcpy memset modf modff nan
    nanf nearbyint nearbyintf nextafter nextafterf pow powf printf remainder remainderf remquo remquof rint rintf round
    roundf scalbln scalblnf scalbn scalbnf signbit sin sincos sincosf sinf sinh sinhf sqrt sqrtf tan tanf tanh tanhf
    tgamma tgammaf trunc truncf y0 y0f y1 y1f yn ynf""".split()  # noqa: SIM905 - a list would be a page long
)
"""Functions of the C library that are also CUDA functions (NVRTC 13.5): a program's own functions of these names are
overloads."""

_NOT_CUDA = frozenset({"mulhi", "mul24", "saturate", "float2int"})
"""Functions that the prelude has for programs written for nvcc, and that NVRTC does not have."""

_LANGUAGE_NAMES = frozenset({"tuple_size", "tuple_element", "coroutine_traits", "coroutine_handle"})
"""Templates of `std` that the compiler itself uses: a program that declares them means those."""

_LIBRARIES = {"std": "", "cuda": "cuda/", "cooperative_groups": "cooperative_groups"}
"""Namespaces of libraries, each with the prefix of the names of the backend's headers that declare it."""

_MARKER = re.compile(r'#[ \t]*(?:line[ \t]+)?\d+[ \t]+"((?:[^"\\]|\\.)*)"')
_NUMBER_MACRO = re.compile(
    r"(FLT|DBL|LDBL)_\w+|U?(CHAR|SHRT|INT|LONG|LLONG|INT\w*\d|INTMAX|INTPTR|SCHAR)_(MAX|MIN)|(SIZE|PTRDIFF)_M(AX|IN)"
    r"|CHAR_BIT|M_\w+|MAXFLOAT|INFINITY|NAN|HUGE_VALF?|RAND_MAX|EOF"
)
_NOT_HIDDEN = re.compile(r"assert|NULL|offsetof|alloca|_+[A-Z0-9_]*_H_*|_GLIBCXX\w*|_LIBCPP\w*|\w+_defined")
_ALWAYS_HIDDEN = frozenset({"linux", "unix"})
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_NO_DIRECTIVE = re.compile(r"^[^\S\n]*[^\s#]", re.MULTILINE)
"""Beginning of a line that is neither empty nor a directive."""
# Keywords that can precede a `::` that begins a name.
_BEFORE_GLOBAL = frozenset(
    """return case else do throw new delete typename const volatile static inline constexpr friend using typedef sizeof
    extern struct class enum co_return co_yield and or not operator""".split()  # noqa: SIM905 - as above
)


@dataclass(frozen=True)
class PreludeNames:
    """Declarations of the prelude: its functions, which are CUDA's, and the macros of the C and C++ libraries."""

    functions: frozenset[str] = frozenset()
    macros: frozenset[str] = frozenset()
    own_headers: frozenset[str] = frozenset()
    """Headers of the backend that include none of the C library's headers."""

    @classmethod
    def read(cls, expanded: str, include_dir: Path) -> PreludeNames:
        """Parses the output of `-E -dD` for the prelude; `include_dir` is the directory of the backend's headers."""
        macros: set[str] = set()
        file = ""
        for line in expanded.split("\n"):
            if not line.startswith("#"):
                continue
            marker = _MARKER.match(line)
            if marker is not None:
                file = marker[1]
            elif line.startswith("#define ") and not file.startswith(("<", str(include_dir))):
                macros.update(_WORD.findall(line, 8)[:1])
            elif line.startswith("#undef "):
                macros.discard(line[7:].strip())
        hidden = {name for name in macros if not _NOT_HIDDEN.fullmatch(name)} | _ALWAYS_HIDDEN
        headers = (path.relative_to(include_dir) for path in include_dir.rglob("*") if path.is_file())
        plain = frozenset(str(path) for path in headers if path.parts[:2] != ("cuda", "std"))
        functions = frozenset(function.name for function, _ in _functions_of(expanded, str(include_dir)))
        return cls(functions, frozenset(hidden), plain)

    @classmethod
    def load(cls, text: str) -> PreludeNames:
        """Returns the names that `dump` wrote."""
        stored = json.loads(text)
        return cls(*(frozenset(stored[key]) for key in ("functions", "macros", "own_headers")))

    def dump(self) -> str:
        """Returns the names as JSON, to be stored with the precompiled prelude."""
        return json.dumps({key: sorted(value) for key, value in vars(self).items()})


def _functions_of(expanded: str, include_dir: str) -> Iterator[tuple[FunctionDeclaration, int]]:
    """Yields the functions that the backend's headers declare at global scope in a preprocessed text.

    `include_dir` is the directory of these headers. Each function comes with the offset of its declaration.
    """
    source = SourceMap(expanded)
    source.origins = [(line, file, not file.startswith(include_dir)) for line, file, _ in source.origins]
    tokens = tokenize(source)
    for function in scan(tokens).functions:
        if function.owner is None and not function.scope and function.name not in {"operator", *_NOT_CUDA}:
            yield function, tokens[function.statement[0]].start


def hidden_macros(names: PreludeNames, sources: Sequence[str], headers: Mapping[str, str]) -> list[str]:
    """Returns the lines that undefine the macros that the program mentions and NVRTC does not have.

    The lines are to be put before the program. A program that includes a header of the C or C++ library keeps the
    macros.
    """
    texts = (*sources, *headers.values())
    words = {word for text in texts for word in _WORD.findall(text)}
    mentioned = sorted(words & (_ALWAYS_HIDDEN if foreign_includes(names, texts, headers) else names.macros))
    numbers = [name for name in mentioned if _NUMBER_MACRO.fullmatch(name)]
    return [
        *(f"static constexpr auto {PROGRAM}_{name} = {name};" for name in numbers),
        *(f"#undef {name}" for name in mentioned),
        *(f"static constexpr auto {name} = {PROGRAM}_{name};" for name in numbers),
    ]


def foreign_includes(names: PreludeNames, texts: Sequence[str], headers: Mapping[str, str]) -> bool:
    """True if `texts` include a header that neither the program nor the backend provides.

    Such a header is one of the C or C++ library.
    """
    provided = {name.rsplit("/", 1)[-1] for name in headers} | names.own_headers
    included = (name for text in texts for name in _INCLUDE.findall(text))
    return any(name not in provided and name.rsplit("/", 1)[-1] not in provided for name in included)


def is_cuda_function(name: str, functions: frozenset[str]) -> bool:
    """True if `name` is the name of a CUDA function, which a program's function of the same name overloads."""
    return name in CUDA_LIBRARY_FUNCTIONS or name in functions


class Separation:
    """Computes the edits that put a program into its namespace."""

    def __init__(
        self,
        source: SourceMap,
        tokens: Sequence[Token],
        declarations: Declarations,
        functions: frozenset[str],
        include_dir: str,
        foreign: bool,
    ) -> None:
        self.source = source
        self.tokens = tokens
        self.declarations = declarations
        self.include_dir = include_dir
        origins = [(file, system) for _, file, system in source.origins]
        begin = origins.index(("<options>", True)) if ("<options>", True) in origins else 0
        files = {file for file, system in origins[begin:] if system and not file.startswith("<")}
        backend_headers = {file.removeprefix(include_dir).lstrip("/") for file in files if file.startswith(include_dir)}
        self.libraries = {
            name for name, start in _LIBRARIES.items() if start and any(f.startswith(start) for f in backend_headers)
        }
        if foreign or any(not file.startswith(include_dir) for file in files) or self._declares_language_names():
            self.libraries.add("std")
        names = {f.name for f in declarations.functions if f.owner is None} | set(self._using_names())
        self.later = self._later_functions(names) if backend_headers else {}
        self.prelude_functions = functions
        self.functions = functions | self.later.keys()
        self.global_names = {"clock", *declarations.global_names}
        self.overloads = {name for name in names if is_cuda_function(name, self.functions)}
        self.injected_at = -1
        self.opens_std = any(scope[:1] == ("std",) for scope, _ in declarations.scoped_names)
        self.renames_std = False  # True after `_injected_declarations` has opened the renamed namespace

    def edits(self) -> Iterator[tuple[int, int, str]]:
        """Yields replacements of ranges of the text.

        Replacements at the same offset are in the order in which they apply.
        """
        yield from self._namespace_edits()
        c_linkage: set[int] = set()
        has_body = {f.name for f in self.declarations.functions if f.body is not None and f.owner is None}
        for function in self.declarations.functions:
            if (
                function.body is not None
                or function.owner is not None
                or function.is_kernel
                or function.name in has_body
            ):
                continue
            first = function.statement[0]
            start, end = self.tokens[first].start, self.tokens[function.statement[1] - 1].end
            if not function.scope and is_cuda_function(function.name, self.functions):
                yield start, start, _IGNORED
                yield end, end, " }"
            elif function.is_extern_c:  # the function is defined elsewhere: in the C library
                c_linkage.add(first)
                if self.tokens[first].text != "extern" or self.tokens[first + 1].kind != "string":
                    yield start, start, 'extern "C" '
        for start, end in self._language_templates():
            yield start, start, _IGNORED
            yield end, end, " }"
        is_own_std = "std" not in self.libraries and self.opens_std
        renames_hearth = "hearth" in self.global_names or any(
            s[:1] == ("hearth",) for s, _ in self.declarations.scoped_names
        )
        for index, token in enumerate(self.tokens):
            if token.text == '"C"' and index and self.tokens[index - 1].text == "extern" and index - 1 not in c_linkage:
                yield token.start, token.end, '"C++"'
            elif token.text == "hearth" and renames_hearth and not self._is_from_macro(index):
                yield token.start, token.end, OWN_HEARTH
            elif token.text == "::" and index + 1 < len(self.tokens) and self._begins_name(index):
                if self.tokens[index + 1].text in self.global_names:
                    yield token.end, token.end, f"{PROGRAM}::"
            elif is_own_std and token.text == "std" and self._is_namespace(index):
                yield token.start, token.end, OWN_STD

    def _language_templates(self) -> Iterator[tuple[int, int]]:
        """Yields declarations such as `template <class T> struct tuple_size;`.

        The library has these templates, possibly under another scope.
        """
        for index, token in enumerate(self.tokens[:-1]):
            if token.text in _LANGUAGE_NAMES and self.tokens[index + 1].text == ";":
                at = index
                while at > 0 and self.tokens[at].text != "template":
                    at -= 1
                yield self.tokens[at].start, self.tokens[index + 1].end

    def aliases(self) -> str:
        """Returns the declaration that lets the table of kernels and variables use the program's names."""
        return f"namespace std = {OWN_STD};" if self.renames_std else ""

    def _namespace_edits(self) -> Iterator[tuple[int, int, str]]:
        """Yields edits that open the program's namespace before its text and close it around text that must be outside.

        Such text is that of libraries' headers, and certain statements.
        """
        outside = dict(self._statements_outside())
        depth = 0
        leave_at = -1
        for index, token in enumerate(self.tokens):
            if index == 0 or (depth == 0 and self._system_text_before(index)):
                if index:
                    end = self.tokens[index - 1].end
                    yield end, end, " }"
                yield token.start, token.start, OPEN + self._injected_declarations(token.start)
            if index in outside and depth == 0:
                yield token.start, token.start, "} "
                leave_at = outside[index]
            if token.kind == "op":
                depth += (token.text in OPENING) - (token.text in (")", "]", "}"))
            if index + 1 == leave_at:
                yield token.end, token.end, " " + OPEN
        if self.tokens:
            yield self.tokens[-1].end, self.tokens[-1].end, " }"

    def _injected_declarations(self, offset: int) -> str:
        """Returns `using` declarations for CUDA's functions before `offset` that the program overloads.

        For a program with its own `std`, also returns the declarations that NVRTC has in that namespace.
        """
        first = self.injected_at < 0
        names = {name for name in self.overloads if self.injected_at < self.later.get(name, -1) < offset}
        if first:
            names |= {name for name in self.overloads if is_cuda_function(name, self.prelude_functions)}
        self.injected_at = offset
        lines = [f"using ::{name}; " for name in sorted(names)]
        if "std" not in self.libraries and self.opens_std and not self.renames_std:
            self.renames_std = True
            std_names = {"move", "forward", "initializer_list", "size_t", "nullptr_t"} - {
                name for scope, name in self.declarations.scoped_names if scope[:1] == ("std",)
            }
            usings = " ".join(f"using ::std::{name};" for name in sorted(std_names))
            lines.append(f"namespace {OWN_STD} {{ {usings} }} ")
        return "".join(lines)

    def _using_names(self) -> Iterator[str]:
        """Yields the names in `using a::b;`."""
        for index, token in enumerate(self.tokens):
            if token.text == ";" and index > 2 and self.tokens[index - 2].text == "::":
                at = index - 1
                while at > 0 and (self.tokens[at].kind == "name" or self.tokens[at].text == "::"):
                    if self.tokens[at].text == "using":
                        yield self.tokens[index - 1].text
                        break
                    at -= 1

    def _statements_outside(self) -> Iterator[tuple[int, int]]:
        """Yields the statements, as (first token, end), that must not be in the program's namespace."""
        for function in self.declarations.functions:
            name = function.parameters[0] - 1
            if (
                function.name == "operator"
                and function.owner is None
                and not function.scope
                and not function.is_template
            ):
                words = {token.text for token in self.tokens[function.statement[0] : name + 1]}
                if words & {"new", "delete"}:
                    yield function.statement
        for index, token in enumerate(self.tokens):
            following = self.tokens[index + 1].text if index + 1 < len(self.tokens) else ""
            if token.text == "namespace" and following in self.libraries:
                at = index + 2
                while at < len(self.tokens) and self.tokens[at].text not in ("{", ";", "="):
                    at += 1
                if at < len(self.tokens) and self.tokens[at].text == "{":
                    yield index, matching(self.tokens, at, len(self.tokens)) + 1
            elif token.text == "template" and following == "<":
                end = self._library_specialisation(index)
                if end is not None:
                    yield index, end

    def _library_specialisation(self, index: int) -> int | None:
        """Returns the end of `template <...> struct std::name<...> {...};` at `index`.

        Returns None if the tokens are something else.
        """
        tokens, at = self.tokens, after_template(self.tokens, index, len(self.tokens))
        while at < len(tokens) and tokens[at].text in ("inline", "constexpr", "const", "static", "bool"):
            at += 1
        if at < len(tokens) and tokens[at].text in ("struct", "class", "union"):
            at += 1
        at += at < len(tokens) and tokens[at].text == "::"
        if at + 1 >= len(tokens) or tokens[at].text not in self.libraries or tokens[at + 1].text != "::":
            return None
        while at < len(tokens) and tokens[at].text != ";":
            at = matching(tokens, at, len(tokens)) if tokens[at].text in OPENING else at
            at += 1
        return at + 1

    def _system_text_before(self, index: int) -> bool:
        """True if there is text of a library's header between the token at `index` and the one before it."""
        start = self.tokens[index - 1].end
        gap = self.source.text[start : self.tokens[index].start]
        return "\n#" in gap and any(
            self.source.is_system(start + match.start()) for match in _NO_DIRECTIVE.finditer(gap)
        )

    def _later_functions(self, names: set[str]) -> dict[str, int]:
        """Returns the functions of the backend's headers that the program includes, by name.

        The values are the offsets of their last declarations. Empty, without a scan, if none of the program's functions
        has a name that occurs in those headers.
        """
        starts = [*self.source.starts, len(self.source.text)]
        regions = (
            self.source.text[starts[index] : starts[index + 1]]
            for index, (_, file, _) in enumerate(self.source.origins)
            if file.startswith(self.include_dir)
        )
        if all(names.isdisjoint(_WORD.findall(region)) for region in regions):
            return {}
        return {f.name: offset for f, offset in _functions_of(self.source.text, self.include_dir)}

    def _declares_language_names(self) -> bool:
        return any(scope[:1] == ("std",) and name in _LANGUAGE_NAMES for scope, name in self.declarations.scoped_names)

    def _is_namespace(self, index: int) -> bool:
        """True if the name at `index` is a namespace, not a variable or a member."""
        if index + 1 < len(self.tokens) and self.tokens[index + 1].text == "::":
            return index == 0 or self.tokens[index - 1].text not in (".", "->")
        at = index - 1  # for `namespace a::std {`, `using namespace a::std;`, `namespace b = a::std;`
        while at > 0 and (self.tokens[at].text in ("::", "=", "inline") or self.tokens[at - 1].text in ("::", "=")):
            at -= 1
        words = {token.text for token in self.tokens[max(at - 1, 0) : index]}
        return "namespace" in words

    def _is_from_macro(self, index: int) -> bool:
        """True if the name `hearth` at `index` was produced by one of the prelude's macros."""
        return [token.text for token in self.tokens[index + 1 : index + 3]] == ["::", "active_here"]

    def _begins_name(self, index: int) -> bool:
        """True if the `::` at `index` begins a qualified name."""
        if index == 0:
            return True
        before, token = self.tokens[index - 1], self.tokens[index]
        if before.kind == "name":
            return before.text in _BEFORE_GLOBAL
        if before.text == ">":
            return before.end < token.start and token.end == self.tokens[index + 1].start
        if before.text == ")":
            opening = index - 1
            depth = 0
            while opening > 0:
                depth += {")": 1, "(": -1}.get(self.tokens[opening].text, 0)
                if depth == 0:
                    break
                opening -= 1
            return self.tokens[opening - 1].text != "decltype"
        return True


def qualified_name(name: str) -> str:
    """Returns the qualified name that the global variable or kernel `name` has in the rewritten program."""
    return f"::{PROGRAM}::{local_name(name)}"


def local_name(expression: str) -> str:
    """Returns a name expression in the form that is valid within the program's namespace."""
    return re.sub(r"\bhearth(?= *::)", OWN_HEARTH, expression.removeprefix("::"))


def renamed_kernels(kernels: Iterable[FunctionDeclaration], functions: frozenset[str]) -> frozenset[str]:
    """Returns the exported kernels that have names of CUDA functions, so that their address would be ambiguous."""
    plain = (k.name for k in kernels if k.is_extern_c and not k.is_template)
    return frozenset(name for name in plain if is_cuda_function(name, functions))
