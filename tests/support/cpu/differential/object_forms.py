"""Forms of call around classes: functors, bases, virtual functions, iterators, operators, constructors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tests.support.cpu.differential import expressions
from tests.support.cpu.differential.expressions import modulo, unsigned
from tests.support.cpu.differential.function_forms import SIGNATURE, choice, selected
from tests.support.cpu.differential.generator import Capture, Generator, Scope, Step, called, form, nested, sequence
from tests.support.cpu.differential.machine import Machine, Values


def members(captures: Sequence[Capture]) -> str:
    return "".join(f"unsigned {c.name}; " for c in captures)


def values(captures: Sequence[Capture]) -> str:
    return ", ".join(unsigned(c.value) for c in captures)


def functor(
    g: Generator,
    scope: Scope,
    captures: Sequence[Capture] = (),
    steps: int | None = None,
    call: str = "operator()",
) -> tuple[str, Step]:
    """Declares a class with a call operator, or with a function of another name; returns its name and the body."""
    body, name = g.body(g.inside(scope, captures), steps), g.name("op")
    before = g.rng.choice(("", "__forceinline__ ", "inline ", "__noinline__ "))
    g.declare(
        f"struct {name} {{ {members(captures)}\n"
        f"{before}__device__ unsigned {call}({SIGNATURE}) const {{\n{body.text}\nreturn x;\n}}\n}};"
    )
    return name, body


@form()
def plain_functor(g: Generator, scope: Scope) -> Step:
    name, body = functor(g, scope)
    local = g.name("f")
    call = g.rng.choice(
        (f"x = {name}()(x, e);", f"x = {name}{{}}(x, e);", f"{{ {name} {local}; x = {local}(x, e); }}",
         f"{{ const {name} {local}{{}}; x = {local}.operator()(x, e); }}")
    )  # fmt: skip
    return called(call, body)


@form()
def functor_by_value(g: Generator, scope: Scope) -> Step:
    """A functor with members, passed by value to a function template."""
    captures, apply = g.captures(scope), g.name("apply")
    name, body = functor(g, scope, captures)
    reference = g.rng.choice(("F f", "const F& f", "const F* f"))
    call = "(*f)(x, e)" if "*" in reference else "f(x, e)"
    g.declare(f"template <class F> __device__ unsigned {apply}({reference}, {SIGNATURE}) {{ return {call}; }}")
    given = "&held" if "*" in reference else "held"
    return called(f"{{ const {name} held = {{{values(captures)}}}; x = {apply}({given}, x, e); }}", body, captures)


@form()
def functor_argument(g: Generator, scope: Scope) -> Step:
    """A functor as a template argument of a function."""
    name, body = functor(g, scope)
    apply, before = g.name("apply"), g.assign(g.inside(scope), 1)
    default = g.flip()
    g.declare(
        f"template <class F{f' = {name}' if default else ''}> __device__ unsigned {apply}({SIGNATURE}) {{\n"
        f"{before.text}\nF f; return f(x, e);\n}}"
    )
    return called(f"x = {apply}<{'' if default else name}>(x, e);", sequence([before, body]))


@form()
def holder(g: Generator, scope: Scope) -> Step:
    """A class template that holds a functor, given explicitly or by default, directly or through an alias."""
    name, body = functor(g, scope)
    hold, alias = g.name("Hold"), g.name("Alias")
    default, kind = g.flip(), g.rng.randrange(3)
    g.declare(
        f"template <class F{f' = {name}' if default else ''}> struct {hold} {{ F f; "
        f"__device__ unsigned run({SIGNATURE}) const {{ return f(x, e); }} }};"
    )
    whole = f"{hold}<{'' if default else name}>"
    if kind == 1:
        g.declare(f"using {alias} = {whole};")
        whole = alias
    elif kind == 2:
        g.declare(f"template <class T> using {alias} = {hold}<T>;")
        whole = f"{alias}<{name}>"
    return called(f"{{ {whole} held; x = held.run(x, e); }}", body)


@form()
def template_template(g: Generator, scope: Scope) -> Step:
    """A class template as a template argument."""
    k = g.name("k")
    capture = Capture(k, expressions.constant(g.rng.randrange(100)), True)
    inner = g.body(g.inside(scope, [capture]), 1)
    cls, apply = g.name("Op"), g.name("apply")
    g.declare(
        f"template <unsigned {k}> struct {cls} {{ __device__ unsigned operator()({SIGNATURE}) const {{\n{inner.text}\n"
        "return x;\n} };"
    )
    g.declare(
        f"template <template <unsigned> class W> __device__ unsigned {apply}({SIGNATURE}) {{ "
        f"return W<{capture.value.text}>()(x, e); }}"
    )
    return called(f"x = {apply}<{cls}>(x, e);", inner, [capture])


@form(bodies=2)
def variadic_functors(g: Generator, scope: Scope) -> Step:
    """Functors as a pack of template arguments."""
    (one, first), (two, second) = functor(g, scope, steps=1), functor(g, scope, steps=1)
    name = g.name("Chain")
    if g.flip():
        g.declare(
            f"template <class... F> __device__ unsigned {name}({SIGNATURE}) {{ ((x = F()(x, e)), ...); return x; }}"
        )
        call = f"x = {name}<{one}, {two}>(x, e);"
    else:
        g.declare(
            f"template <class... F> struct {name};\n"
            f"template <> struct {name}<> {{ static __device__ unsigned run({SIGNATURE}) {{ return x; }} }};\n"
            f"template <class F, class... R> struct {name}<F, R...> {{ static __device__ unsigned run({SIGNATURE}) {{ "
            f"return {name}<R...>::run(F{{}}(x, e), e); }} }};"
        )
        call = f"x = {name}<{one}, {two}>::run(x, e);"
    return called(call, sequence([first, second]))


@form()
def inherited(g: Generator, scope: Scope) -> Step:
    """A call operator of a base class."""
    name, body = functor(g, scope)
    derived = g.name("Derived")
    g.declare(
        g.rng.choice(
            (
                f"struct {derived} : {name} {{}};",
                f"struct {derived}_a {{ unsigned other; }};\nstruct {derived} : {derived}_a, {name} {{}};",
                f"class {derived} : {name} {{ public: using {name}::operator(); }};",
                f"struct {derived} : {name} {{ __device__ unsigned operator()({SIGNATURE}) const "
                f"{{ return {name}::operator()(x, e); }} }};",
            )
        )
    )
    return called(f"{{ {derived} d; x = d(x, e); }}", body)


@form()
def inherited_from_parameter(g: Generator, scope: Scope) -> Step:
    """A base class that is a template parameter."""
    name, body = functor(g, scope, call="run")
    mixin = g.name("Mixin")
    g.declare(
        f"template <class B> struct {mixin} : B {{ __device__ unsigned twice({SIGNATURE}) const {{ "
        "return this->run(x, e); } };"
    )
    return called(f"x = {mixin}<{name}>().twice(x, e);", body)


@form()
def static_polymorphism(g: Generator, scope: Scope) -> Step:
    """A base class that calls its derived class (CRTP)."""
    base, derived, before = g.name("Base"), g.name("Real"), g.assign(g.inside(scope), 1)
    body = g.body(g.inside(scope), 1)
    g.declare(
        f"template <class D> struct {base} {{ __device__ unsigned run({SIGNATURE}) {{\n{before.text}\n"
        "return static_cast<D*>(this)->implementation(x, e);\n} };\n"
        f"struct {derived} : {base}<{derived}> {{ __device__ unsigned implementation({SIGNATURE}) {{\n{body.text}\n"
        "return x;\n} };"
    )
    return called(f"x = {derived}().run(x, e);", sequence([before, body]))


@form(bodies=2)
def virtual_call(g: Generator, scope: Scope) -> Step:
    """A virtual function of one of two derived classes."""
    base, at = g.name("Base"), choice(g, scope)
    g.declare(f"struct {base} {{ __device__ virtual unsigned run({SIGNATURE}) const = 0; }};")
    drawn = []
    for _ in range(2):
        body, name = g.body(g.inside(scope), 1), g.name("Real")
        g.declare(
            f"struct {name} final : {base} {{ __device__ unsigned run({SIGNATURE}) const override {{\n{body.text}\n"
            "return x;\n} };"
        )
        drawn.append((name, body))
    (one, first), (two, second) = drawn
    text = (
        f"{{ {one} one; {two} two; const {base}* p = {at.text} ? static_cast<const {base}*>(&two) : &one; "
        "x = p->run(x, e); }"
    )
    return selected(text, at, first, second)


@form()
def virtual_in_base(g: Generator, scope: Scope) -> Step:
    """A virtual function called through a reference from a function of the base class."""
    base, name, body = g.name("Base"), g.name("Real"), g.body(g.inside(scope), 1)
    g.declare(
        f"struct {base} {{ __device__ unsigned outer({SIGNATURE}) {{ return inner(x, e); }}\n"
        f"__device__ virtual unsigned inner({SIGNATURE}) {{ return x + 1u; }} }};\n"
        f"struct {name} : {base} {{ __device__ unsigned inner({SIGNATURE}) override {{\n{body.text}\nreturn x;\n}} }};\n"
        f"__noinline__ __device__ unsigned {name}_call({base}& b, {SIGNATURE}) {{ return b.outer(x, e); }}"
    )
    return called(f"{{ {name} real; x = {name}_call(real, x, e); }}", body)


@form()
def returned_object(g: Generator, scope: Scope) -> Step:
    """An object returned by a function, whose type the caller does not name."""
    captures, make, local = g.captures(scope), g.name("make"), g.name("f")
    name, body = functor(g, scope, captures)
    given = ", ".join(f"unsigned {c.name}" for c in captures)
    kept = ", ".join(c.name for c in captures)
    result = g.rng.choice(("auto", name))
    g.declare(f"__device__ {result} {make}({given}) {{ return {name}{{{kept}}}; }}")
    call = g.rng.choice(
        (
            f"{{ auto {local} = {make}({values(captures)}); x = {local}(x, e); }}",
            f"x = {make}({values(captures)})(x, e);",
        )
    )
    return called(call, body, captures)


@form()
def range_loop(g: Generator, scope: Scope) -> Step:
    """A range-based loop over a returned object, whose iterators read the indices."""
    name, offset = g.name("Range"), g.index_expr(1)
    rounds = modulo(g.uniform(scope), 3) if scope.loops < 2 else expressions.constant(1)
    if scope.level < 2:
        rounds = expressions.constant(g.rng.randint(1, 2))
    item = g.name("j")
    g.declare(
        f"struct {name} {{ struct It {{ unsigned at; __device__ unsigned operator*() const {{ return at * 3u + {offset.text}; }}\n"
        "__device__ It& operator++() { ++at; return *this; }\n"
        "__device__ bool operator!=(const It& other) const { return at != other.at; } };\n"
        "unsigned count; __device__ It begin() const { return It{0u}; } __device__ It end() const { return It{count}; } };\n"
        f"__device__ {name} {name}_of(unsigned count) {{ return {name}{{count}}; }}"
    )
    inner = replace(scope, names=(*scope.names, item), loops=scope.loops + 1, depth=scope.depth + 1)
    body = g.body(inner, 1)
    text = f"for (const unsigned {item} : {name}_of({unsigned(rounds)})) {{\n{body.text}\n}}"

    def run(m: Machine, v: Values) -> None:
        before, own, limit = m.active, dict(v), rounds.value(m, v)
        for at in range(int(limit[before].max(initial=0))):
            m.active = before & (limit > at)
            own[item] = m.full(at * 3) + offset.value(m, own)
            body.run(m, own)
        m.active = before
        for each in v:
            v[each] = own[each]

    return Step(text, run)


@form()
def static_member(g: Generator, scope: Scope) -> Step:
    name, body = g.name("Tools"), g.body(g.inside(scope), 1)
    generic = g.flip()
    head = f"template <class T> struct {name}" if generic else f"struct {name}"
    g.declare(
        f"{head} {{ static constexpr unsigned factor = 7u; static __device__ unsigned run({SIGNATURE}) {{\n{body.text}\n"
        "return x * factor;\n} };"
    )
    whole = f"{name}<int>" if generic else name

    def run(m: Machine, v: Values) -> None:
        called("", body).run(m, v)
        m.assign(v, "x", v["x"] * np.uint32(7))

    return Step(f"x = {whole}::run(x, e);", run)


@form()
def traits(g: Generator, scope: Scope) -> Step:
    """The specialisation of a class template, reached through a dependent name."""
    name, body, apply = g.name("Traits"), g.body(g.inside(scope), 1), g.name("apply")
    g.declare(
        f"template <class T> struct {name} {{ static __device__ unsigned run({SIGNATURE}) {{ return x; }} }};\n"
        f"template <> struct {name}<float> {{ struct type {{ static __device__ unsigned run({SIGNATURE}) {{\n{body.text}\n"
        "return x;\n} }; };\n"
        f"template <class T> __device__ unsigned {apply}({SIGNATURE}) {{ return {name}<T>::type::run(x, e); }}"
    )
    return called(f"x = {apply}<float>(x, e);", body)


@form()
def member_pointer(g: Generator, scope: Scope) -> Step:
    captures, kind = g.captures(scope), g.name("member")
    name, body = functor(g, scope, captures, call="run")
    g.declare(f"typedef unsigned ({name}::*{kind})(unsigned, Env) const;")
    return called(
        f"{{ {name} held = {{{values(captures)}}}; {kind} call = &{name}::run; x = (held.*call)(x, e); }}",
        body,
        captures,
    )


@form()
def global_object(g: Generator, scope: Scope) -> Step:
    """An object with member functions in device or constant memory."""
    value = g.rng.getrandbits(32)
    capture = Capture(g.name("k"), expressions.constant(value), True)
    name, body = functor(g, scope, [capture], call="run")
    instance = g.name("object")
    g.declare(f"{g.rng.choice(('__device__', '__constant__', '__device__ const'))} {name} {instance} = {{{value}u}};")
    return called(f"x = {instance}.run(x, e);", body, [capture])


@form(bodies=2)
def constructor(g: Generator, scope: Scope) -> Step:
    """A constructor and a destructor that read the indices and synchronise with the other threads."""
    name = g.name("Guard")
    first, last = g.body(g.inside(scope), 1), g.body(g.inside(scope), 1)
    middle = g.body(replace(scope, depth=scope.depth + 1), 1)
    generic = g.flip()
    g.declare(
        f"{'template <int N> ' if generic else ''}struct {name} {{ unsigned& x; Env e;\n"
        f"__device__ explicit {name}(unsigned& given, Env env) : x(given), e(env) {{\n{first.text}\n}}\n"
        f"__device__ ~{name}() {{\n{last.text}\n}} }};"
    )
    whole = f"{name}<3>" if generic else name
    text = f"{{ {whole} guard(x, e);\n{middle.text}\n}}"
    parts = (called("", first), nested("", middle), called("", last))

    def run(m: Machine, v: Values) -> None:
        for each in parts:
            each.run(m, v)

    return Step(text, run)


@form()
def member_initialiser(g: Generator, scope: Scope) -> Step:
    """Default member initialisers that read the indices."""
    captures = [Capture(g.name("k"), g.index_expr(), False) for _ in range(2)]
    body, name = g.body(g.inside(scope, captures), 1), g.name("Fresh")
    held = " ".join(f"unsigned {c.name} = {c.value.text};" for c in captures)
    g.declare(f"struct {name} {{ {held}\n__device__ unsigned run({SIGNATURE}) const {{\n{body.text}\nreturn x;\n}} }};")
    return called(f"x = {name}{{}}.run(x, e);", body, captures)


@form()
def operators(g: Generator, scope: Scope) -> Step:
    """Overloaded operators and conversions: the call does not name a function."""
    captures = g.captures(scope)
    body, name = g.body(g.inside(scope, captures), 1), g.name("Num")
    kind = g.rng.choice(("<<", "+", "[]", "->", "convert", ","))
    head = f"struct {name} {{ {members(captures)}\n"
    inside = f"{{\n{body.text}\nreturn x;\n}}"
    given = values(captures)
    if kind == "[]":
        g.declare(
            f"{head}__device__ unsigned operator[](Pair p) const {{ unsigned x = p.x; Env e = p.e;\n{body.text}\nreturn x;\n}} }};"
        )
        call = f"x = {name}{{{given}}}[Pair{{x, e}}];"
    elif kind == "->":
        g.declare(
            f"{head}__device__ unsigned run({SIGNATURE}) const {inside} }};\n"
            f"struct {name}_p {{ {name} held; __device__ const {name}* operator->() const {{ return &held; }} }};"
        )
        call = f"x = {name}_p{{{{{given}}}}}->run(x, e);"
    elif kind == "convert":
        g.declare(
            f"{head}unsigned first; Env env; __device__ operator unsigned() const {{ unsigned x = first; const Env e = env;\n"
            f"{body.text}\nreturn x;\n}} }};"
        )
        call = f"x = {name}{{{given}, x, e}};"
    else:
        g.declare(
            f"{head}}};\n__device__ unsigned operator{kind}(Pair p, const {name}& right) {{ unsigned x = p.x; Env e = p.e;\n"
            + "".join(f"const unsigned {c.name} = right.{c.name};\n" for c in captures)
            + f"{body.text}\nreturn x;\n}}"
        )
        call = f"x = (Pair{{x, e}} {kind} {name}{{{given}}});"
    return called(call, body, captures)


@form()
def recursive_functor(g: Generator, scope: Scope) -> Step:
    """A functor that calls itself, or the next instantiation of its template."""
    name, rounds, k = g.name("Down"), g.rng.randint(1, 2), g.name("k")
    depths = [Capture(k, expressions.constant(each), True) for each in range(rounds, 0, -1)]
    g.shared_left -= 4
    body = g.body(g.inside(scope, depths[:1]), 1)
    if g.flip():
        g.declare(
            f"struct {name} {{ __device__ unsigned operator()({SIGNATURE}, unsigned {k}) const {{\nif ({k} == 0u) return x;\n"
            f"{body.text}\nreturn (*this)(x, e, {k} - 1u);\n}} }};"
        )
        text = f"x = {name}()(x, e, {rounds}u);"
    else:
        g.declare(
            f"template <unsigned {k}> struct {name} {{ __device__ unsigned operator()({SIGNATURE}) const {{\n{body.text}\n"
            f"return {name}<{k} - 1u>()(x, e);\n}} }};\n"
            f"template <> struct {name}<0u> {{ __device__ unsigned operator()({SIGNATURE}) const {{ return x; }} }};"
        )
        text = f"x = {name}<{rounds}u>()(x, e);"
    return Step(text, sequence([called("", body, [each]) for each in depths]).run)


@form()
def from_header(g: Generator, scope: Scope) -> Step:
    """A functor, with everything that it calls, in a header that is sent with the source."""
    outer, g.declarations = g.declarations, []
    name, body = functor(g, scope)
    text, g.declarations = "\n".join(g.declarations), outer
    file = f"{g.name('ops')}.h"
    g.headers[file] = f"#pragma once\n{text}\n"
    g.declare(f'#include "{file}"')
    return called(f"x = {name}()(x, e);", body)


@form()
def local_class(g: Generator, scope: Scope) -> Step:
    """A class within a function."""
    captures, name = g.captures(scope), g.name("Local")
    body = g.body(g.inside(scope, captures), 1)
    text = (
        f"{{ struct {name} {{ {members(captures)} __device__ unsigned operator()({SIGNATURE}) const {{\n{body.text}\n"
        f"return x; }} }}; const {name} held = {{{values(captures)}}}; x = held(x, e); }}"
    )
    return called(text, body, captures)
