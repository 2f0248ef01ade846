"""Forms of call around functions, lambdas and templates.

A form draws a body, declares the construct that contains it, and gives the statement that calls it. The body can use
`x`, `e` and its captures, in any way in which the construct passes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.support.cpu.differential import expressions
from tests.support.cpu.differential.expressions import Expr, unsigned
from tests.support.cpu.differential.generator import (
    BLOCK,
    Capture,
    Generator,
    Scope,
    Step,
    called,
    form,
    nested,
    sequence,
)
from tests.support.cpu.differential.machine import Machine, Values
from tests.support.cpu.differential.plain_steps import branches

SIGNATURE = "unsigned x, Env e"
FUNCTION = "unsigned (*{})(unsigned, Env)"


def parameters(captures: Sequence[Capture]) -> str:
    return "".join(f", unsigned {c.name}" for c in captures)


def arguments(captures: Sequence[Capture]) -> str:
    return "".join(f", {unsigned(c.value)}" for c in captures)


def function(g: Generator, scope: Scope, steps: int | None = None, qualifier: str = "__device__") -> tuple[str, Step]:
    """Declares a function without captures; returns its name and its body."""
    body, name = g.body(g.inside(scope), steps), g.name("fn")
    g.declare(f"{qualifier} unsigned {name}({SIGNATURE}) {{\n{body.text}\nreturn x;\n}}")
    return name, body


def choice(g: Generator, scope: Scope) -> Expr:
    """Draws 0 or 1, equal in all threads that execute the statement, so that they make the same call."""
    is_uniform = scope.level == BLOCK
    if is_uniform:
        return expressions.modulo(g.uniform(scope), 2)
    if scope.level:  # a warp, or some of its lanes
        return Expr("(rank() / 32u & 1u)", lambda m, v: m.rank // 32 % 2)
    return expressions.modulo(g.expr(scope), 2)


def selected(text: str, condition: Expr, one: Step, other: Step) -> Step:
    """Returns the step that runs one of two bodies without captures, selected by 0 or 1."""

    def run(m: Machine, v: Values) -> None:
        branches("", condition.truth, called("", other), called("", one)).run(m, v)

    return Step(text, run)


@form()
def plain_function(g: Generator, scope: Scope) -> Step:
    qualifier = g.rng.choice(
        ("__device__", "static __device__", "__forceinline__ __device__", "__noinline__ __device__", "inline __device__",
         "__host__ __device__ inline")
    )  # fmt: skip
    name, body = function(g, scope, qualifier=qualifier)
    return called(f"x = {name}(x, e);", body)


@form()
def captured_parameters(g: Generator, scope: Scope) -> Step:
    captures, name = g.captures(scope), g.name("fn")
    body = g.body(g.inside(scope, captures))
    g.declare(f"__device__ void {name}(unsigned& x, const Env& e{parameters(captures)}) {{\n{body.text}\n}}")
    return called(f"{name}(x, e{arguments(captures)});", body, captures)


@form()
def declared_first(g: Generator, scope: Scope) -> Step:
    """A function whose definition follows the kernel."""
    body, name = g.body(g.inside(scope)), g.name("later")
    g.declare(f"__device__ unsigned {name}({SIGNATURE});")
    g.late.append(f"__device__ unsigned {name}({SIGNATURE}) {{\n{body.text}\nreturn x;\n}}")
    return called(f"x = {name}(x, e);", body)


@form()
def in_namespace(g: Generator, scope: Scope) -> Step:
    body, space = g.body(g.inside(scope)), g.name("space")
    inner = g.rng.choice(("namespace", "inline namespace deep", "namespace within"))
    g.declare(
        f"namespace {space} {{ {inner} {{\n__device__ unsigned run({SIGNATURE}) {{\n{body.text}\nreturn x;\n}}\n}} }}"
    )
    imported = g.name("short")
    using = g.rng.choice(("", f"namespace {imported} = {space}; ", f"using {space}::run; "))
    path = "within::" if "within" in inner else ""
    using = using.replace("::run", f"::{path}run")
    call = {"": f"{space}::{path}run", "n": f"{imported}::{path}run", "u": "run"}[using[:1]]
    return called(f"{{ {using}x = {call}(x, e); }}", body)


@form()
def tag_dispatch(g: Generator, scope: Scope) -> Step:
    """Overloads that differ in the type of a tag, found by argument-dependent lookup."""
    body, space = g.body(g.inside(scope)), g.name("tags")
    g.declare(
        f"namespace {space} {{ struct one {{}}; struct two {{}};\n"
        f"__device__ unsigned visit(one, {SIGNATURE}) {{ return x + 1000u; }}\n"
        f"__device__ unsigned visit(two, {SIGNATURE}) {{\n{body.text}\nreturn x;\n}}\n}}"
    )
    return called(f"x = visit({space}::two(), x, e);", body)


@form()
def macro_call(g: Generator, scope: Scope) -> Step:
    name, body = function(g, scope)
    macro = g.name("CALL").upper()
    g.declare(f"#define {macro}(f, ...) f(__VA_ARGS__)")
    return called(f"x = {macro}({name}, x, e);", body)


@form()
def default_argument(g: Generator, scope: Scope) -> Step:
    """A default argument whose expression reads the indices in a separate function."""
    value, name = g.index_expr(), g.name("fn")
    capture = Capture(g.name("k"), value, False)
    body = g.body(g.inside(scope, [capture]))
    g.declare(f"__device__ unsigned {name}_default() {{ return {value.text}; }}")
    g.declare(
        f"__device__ unsigned {name}({SIGNATURE}, unsigned {capture.name} = {name}_default()) {{\n{body.text}\nreturn x;\n}}"
    )
    return called(f"x = {name}(x, e);", body, [capture])


@form()
def integer_template(g: Generator, scope: Scope) -> Step:
    """A function template over a number, with several instantiations: each has its own shared arrays."""
    name, k = g.name("fn"), g.name("k")
    captures = [
        Capture(k, expressions.constant(each), True) for each in g.rng.sample(range(1, 40), g.rng.randint(1, 3))
    ]
    g.shared_left -= 8
    body = g.body(g.inside(scope, captures[:1]), 1)
    g.declare(f"template <unsigned {k}> __device__ unsigned {name}({SIGNATURE}) {{\n{body.text}\nreturn x;\n}}")
    return sequence([called(f"x = {name}<{c.value.text}>(x, e);", body, [c]) for c in captures])


@form()
def type_template(g: Generator, scope: Scope) -> Step:
    name, body = g.name("fn"), g.body(g.inside(scope))
    g.declare(f"template <class T, class U = Env> __device__ auto {name}(T x, U e) -> T {{\n{body.text}\nreturn x;\n}}")
    return called(f"x = {name}{g.rng.choice(('', '<unsigned>', '<unsigned, Env>'))}(x, e);", body)


@form()
def conditional_template(g: Generator, scope: Scope) -> Step:
    """`if constexpr`: the other branch is not instantiated."""
    name, body = g.name("fn"), g.body(g.inside(scope))
    g.declare(
        f"template <class T> __device__ unsigned {name}(T x, Env e) {{\nif constexpr (sizeof(T) == 4) {{\n{body.text}\n}} "
        "else { x = T::missing(threadIdx.x); __syncthreads(); }\nreturn x;\n}"
    )
    return called(f"x = {name}(x, e);", body)


@form()
def function_argument(g: Generator, scope: Scope) -> Step:
    """A function pointer as a template argument."""
    name, body = function(g, scope)
    apply, before = g.name("apply"), g.assign(g.inside(scope), 1)
    parameter = g.rng.choice(
        (f"template <{FUNCTION.format('F')}>", "template <auto F>", f"template <{FUNCTION.format('F')} = {name}>")
    )
    g.declare(f"{parameter} __device__ unsigned {apply}({SIGNATURE}) {{\n{before.text}\nreturn F(x, e);\n}}")
    given = "" if parameter.endswith(f"{name}>") else g.rng.choice((name, f"&{name}"))
    return called(f"x = {apply}<{given}>(x, e);", sequence([before, body]))


@form()
def function_value(g: Generator, scope: Scope) -> Step:
    """A function pointer as an argument, a variable, or a member."""
    name, body = function(g, scope)
    apply = g.name("apply")
    kind = g.rng.randrange(3)
    if kind == 0:
        g.declare(
            f"__noinline__ __device__ unsigned {apply}({FUNCTION.format('f')}, {SIGNATURE}) {{ return f(x, e); }}"
        )
        return called(f"x = {apply}({name}, x, e);", body)
    if kind == 1:
        return called(f"{{ {FUNCTION.format(apply)} = {name}; x = (*{apply})(x, e); }}", body)
    g.declare(f"struct {apply} {{ {FUNCTION.format('call')}; unsigned k; }};")
    return called(f"{{ const {apply} held = {{{name}, 3u}}; x = held.call(x, e); }}", body)


@form(bodies=2)
def function_table(g: Generator, scope: Scope) -> Step:
    """A table of functions in device or constant memory."""
    (one, first), (two, second) = function(g, scope, 1), function(g, scope, 1)
    table, at = g.name("calls"), choice(g, scope)
    kind = g.name("call")
    qualifier = g.rng.choice(("__device__", "__constant__", "static __device__", "__device__ const"))
    g.declare(f"typedef unsigned (*{kind})(unsigned, Env);\n{qualifier} {kind} {table}[2] = {{{one}, {two}}};")
    return selected(f"x = {table}[{at.text}](x, e);", at, first, second)


@form(bodies=2)
def function_choice(g: Generator, scope: Scope) -> Step:
    """A function pointer chosen at run time."""
    (one, first), (two, second) = function(g, scope, 1), function(g, scope, 1)
    name, at = g.name("f"), choice(g, scope)
    return selected(f"{{ {FUNCTION.format(name)} = {at.text} ? {two} : {one}; x = {name}(x, e); }}", at, first, second)


@form(bodies=2)
def variadic_functions(g: Generator, scope: Scope) -> Step:
    """Functions as a pack of template arguments."""
    (one, first), (two, second) = function(g, scope, 1), function(g, scope, 1)
    name = g.name("all")
    if g.flip():
        g.declare(f"template <auto... F> __device__ unsigned {name}({SIGNATURE}) {{ ((x = F(x, e)), ...); return x; }}")
        call = f"x = {name}<{one}, {two}>(x, e);"
    else:
        g.declare(
            f"__device__ inline unsigned {name}({SIGNATURE}) {{ return x; }}\n"
            f"template <class F, class... R> __device__ unsigned {name}({SIGNATURE}, F f, R... rest) {{ "
            f"return {name}(f(x, e), e, rest...); }}"
        )
        call = f"x = {name}(x, e, {one}, &{two});"
    return called(call, sequence([first, second]))


@form()
def recursive_function(g: Generator, scope: Scope) -> Step:
    """A function that calls itself, to the same depth in all threads."""
    name, rounds, k = g.name("again"), g.rng.randint(1, 2), g.name("k")
    depths = [Capture(k, expressions.constant(each), True) for each in range(rounds, 0, -1)]
    body = g.body(g.inside(scope, depths[:1]), 1)
    g.declare(
        f"__device__ unsigned {name}({SIGNATURE}, unsigned {k}) {{\nif ({k} == 0u) return x;\n{body.text}\n"
        f"return {name}(x, e, {k} - 1u);\n}}"
    )
    whole = sequence([called("", body, [each]) for each in depths])
    return Step(f"x = {name}(x, e, {rounds}u);", whole.run)


# ---- lambdas ----


@form()
def plain_lambda(g: Generator, scope: Scope) -> Step:
    body, name = g.body(g.inside(scope), 1), g.name("l")
    first = g.rng.choice(("unsigned x", "auto x"))
    return called(f"{{ auto {name} = []({first}, Env e) {{\n{body.text}\nreturn x; }};\nx = {name}(x, e); }}", body)


@form()
def lambda_as_pointer(g: Generator, scope: Scope) -> Step:
    """A lambda without captures as a function pointer."""
    body, name = g.body(g.inside(scope), 1), g.name("l")
    return called(
        f"{{ {FUNCTION.format(name)} = []({SIGNATURE}) {{\n{body.text}\nreturn x; }};\nx = {name}(x, e); }}", body
    )


@form()
def capturing_lambda(g: Generator, scope: Scope) -> Step:
    captures, name = g.captures(scope), g.name("l")
    body = g.body(g.inside(scope, captures), 1)
    held = ", ".join(f"{c.name} = {unsigned(c.value)}" for c in captures)
    mutable = g.rng.choice(("", " mutable"))
    return called(
        f"{{ auto {name} = [{held}]({SIGNATURE}){mutable} -> unsigned {{\n{body.text}\nreturn x; }};\n"
        f"x = {name}(x, e); }}",
        body,
        captures,
    )


@form()
def reference_lambda(g: Generator, scope: Scope) -> Step:
    """A lambda that changes the variables of the enclosing function."""
    body, name = g.body(scope_inside(scope), 1), g.name("l")
    if g.flip():
        return nested(f"[&] {{\n{body.text}\n}}();", body)
    return nested(f"{{ auto {name} = [&]() {{\n{body.text}\n}};\n{name}(); }}", body)


def scope_inside(scope: Scope) -> Scope:
    """Returns the scope of a body that can use the variables of the enclosing function."""
    return replace(scope, depth=scope.depth + 1)


@form()
def nested_lambdas(g: Generator, scope: Scope) -> Step:
    captures, name = g.captures(scope, 1), g.name("l")
    body = g.body(g.inside(scope, captures), 1)
    held = ", ".join(f"{c.name} = {unsigned(c.value)}" for c in captures)
    return called(
        f"{{ auto {name} = [{held}]({SIGNATURE}) {{ auto inner = [=](auto x, auto e) {{\n{body.text}\nreturn x; }};\n"
        f"return inner(x, e); }};\nx = {name}(x, e); }}",
        body,
        captures,
    )


@form()
def recursive_lambda(g: Generator, scope: Scope) -> Step:
    """A generic lambda that receives itself as an argument."""
    name, rounds, k = g.name("l"), g.rng.randint(1, 2), g.name("k")
    depths = [Capture(k, expressions.constant(each), True) for each in range(rounds, 0, -1)]
    body = g.body(g.inside(scope, depths[:1]), 1)
    text = (
        f"{{ auto {name} = [](auto& self, {SIGNATURE}, unsigned {k}) -> unsigned {{\nif ({k} == 0u) return x;\n"
        f"{body.text}\nreturn self(self, x, e, {k} - 1u); }};\nx = {name}({name}, x, e, {rounds}u); }}"
    )
    return Step(text, sequence([called("", body, [each]) for each in depths]).run)


@form()
def returned_lambda(g: Generator, scope: Scope) -> Step:
    captures, name = g.captures(scope), g.name("make")
    body = g.body(g.inside(scope, captures), 1)
    given = ", ".join(f"unsigned {c.name}" for c in captures)
    g.declare(f"__device__ auto {name}({given}) {{ return [=]({SIGNATURE}) {{\n{body.text}\nreturn x; }}; }}")
    values = ", ".join(unsigned(c.value) for c in captures)
    local = g.name("f")
    call = g.rng.choice(
        (f"x = {name}({values})(x, e);", f"{{ const auto {local} = {name}({values}); x = {local}(x, e); }}")
    )
    return called(call, body, captures)


@form()
def lambda_argument(g: Generator, scope: Scope) -> Step:
    """A lambda passed to a function template, which calls it between its own statements."""
    captures, name = g.captures(scope), g.name("with")
    body, after = g.body(g.inside(scope, captures), 1), g.assign(g.inside(scope), 1)
    held = ", ".join(f"{c.name} = {unsigned(c.value)}" for c in captures)
    reference = g.rng.choice(("F f", "const F& f", "F&& f"))
    g.declare(
        f"template <class F> __device__ unsigned {name}({reference}, {SIGNATURE}) {{\nx = f(x, e);\n{after.text}\nreturn x;\n}}"
    )
    text = f"x = {name}([{held}]({SIGNATURE}) {{\n{body.text}\nreturn x; }}, x, e);"
    first = called("", body, captures)

    def run(m: Machine, v: Values) -> None:
        first.run(m, v)
        called("", after).run(m, v)

    return Step(text, run)


@form()
def type_erased_callable(g: Generator, scope: Scope) -> Step:
    """A callable passed as `const void*`, with a function template that knows its type."""
    captures, name = g.captures(scope), g.name("erased")
    body = g.body(g.inside(scope, captures), 1)
    held = ", ".join(f"{c.name} = {unsigned(c.value)}" for c in captures)
    g.declare(
        f"struct {name} {{ const void* held; unsigned (*call)(const void*, unsigned, Env); }};\n"
        f"template <class F> __device__ unsigned {name}_call(const void* f, {SIGNATURE}) {{ "
        "return (*static_cast<const F*>(f))(x, e); }\n"
        f"template <class F> __device__ {name} {name}_of(const F& f) {{ return {{&f, &{name}_call<F>}}; }}"
    )
    text = (
        f"{{ auto real = [{held}]({SIGNATURE}) {{\n{body.text}\nreturn x; }};\n"
        f"const {name} any = {name}_of(real); x = any.call(any.held, x, e); }}"
    )
    return called(text, body, captures)
