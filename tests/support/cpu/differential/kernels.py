"""Random kernels: the forms in which a kernel receives the body that it calls, early returns, and steps of a whole grid."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.support.cpu.differential import expressions
from tests.support.cpu.differential.expressions import Expr, modulo
from tests.support.cpu.differential.function_forms import SIGNATURE, function
from tests.support.cpu.differential.generator import (
    BLOCK,
    MAX_THREADS,
    Bag,
    Capture,
    Generator,
    Scope,
    Step,
    called,
    sequence,
)
from tests.support.cpu.differential.machine import CELLS, Machine, Values
from tests.support.cpu.differential.object_forms import functor

PARAMETERS = (
    "const unsigned* in, unsigned* out, unsigned* cells, unsigned n",
    "const unsigned* __restrict__ in, unsigned* __restrict__ out, unsigned* cells, const unsigned n",
)

Shape = tuple[int, int, int]

BLOCKS: tuple[Shape, ...] = (
    (70, 1, 1), (33, 1, 1), (100, 1, 1), (1, 1, 1), (128, 1, 1), (13, 5, 1), (7, 3, 4), (5, 5, 5), (31, 1, 1), (2, 2, 2),
    (1, 40, 1), (3, 1, 40),
)  # fmt: skip
WHOLE_BLOCKS: tuple[Shape, ...] = (
    (32, 1, 1), (64, 1, 1), (96, 1, 1), (128, 1, 1), (8, 8, 1), (16, 4, 2), (4, 8, 2), (32, 3, 1), (1, 32, 2),
)  # fmt: skip
GRIDS: tuple[Shape, ...] = ((1, 1, 1), (3, 1, 1), (2, 2, 1), (2, 1, 3), (5, 1, 1), (1, 3, 2), (7, 1, 1))


@dataclass
class Argument:
    """A parameter after the four parameters of every kernel: a struct or a number, as bytes."""

    data: bytes
    align: int


@dataclass
class Kernel:
    """A kernel: its text, its launch parameters, and its reference implementation."""

    name: str
    """The name, or the name expression of an instantiation."""
    text: str
    headers: dict[str, str]
    includes: frozenset[str]
    """Headers of the toolkit that it includes."""
    arguments: list[Argument]
    shapes: list[tuple[Shape, Shape]]
    """Grid and block of each launch."""
    dynamic_shared: bool
    cooperative: bool
    zeroed: list[tuple[int, int]]
    """Ranges of global memory (first word, number of words) that are 0 before the launch."""
    tags: tuple[str, ...]
    """Names of the kinds of kernel, steps and calls in it."""
    run: Callable[[Machine, Values], None]

    @property
    def is_expression(self) -> bool:
        """True if the name is a C++ name expression, not the name of a C function."""
        return 'extern "C" __global__' not in self.text

    def reference(self, grid: Shape, block: Shape, data: np.ndarray, cells: np.ndarray, scalar: int) -> Machine:
        """Returns the state of the reference machine after the launch."""
        m = Machine(grid, block, data, cells, scalar)
        at = m.block_rank * np.uint32(m.threads) + m.rank
        values: Values = {"x": data[at % np.uint32(256)]}
        self.run(m, values)
        m.out = np.where(m.active, values["x"], m.out)
        return m


@dataclass
class Call:
    """The call of the body in a kernel: the statement, and the parts of the kernel's declaration that it needs."""

    step: Step
    """The statement, with the meaning of the body."""
    template: str = ""
    """Template parameters."""
    given: str | None = None
    """Template arguments in the name expression; None if the kernel is not a template."""
    parameter: str = ""
    """A further parameter of the kernel."""
    arguments: Sequence[Argument] = ()


def _word(value: int) -> Argument:
    return Argument(struct.pack("<I", value), 4)


KernelForm = Callable[[Generator, Scope], Call]
"""Draws a body, and the way in which a kernel calls it."""


def inline(g: Generator, scope: Scope) -> Call:
    """Steps in the kernel itself."""
    return Call(g.body(scope))


def type_argument(g: Generator, scope: Scope) -> Call:
    """`template <class F> __global__`, `F()(x, e)`."""
    name, body = functor(g, scope)
    text = g.rng.choice(("x = F()(x, e);", "F f; x = f(x, e);", "x = F{}.operator()(x, e);"))
    return Call(called(text, body), "template <class F>", name)


def default_type_argument(g: Generator, scope: Scope) -> Call:
    """A functor as a default template argument of the kernel."""
    name, body = functor(g, scope)
    return Call(called("x = F()(x, e);", body), f"template <class F = {name}>", "")


def alias_argument(g: Generator, scope: Scope) -> Call:
    """A functor named by an alias, or by an alias template."""
    name, body = functor(g, scope)
    alias = g.name("Alias")
    if g.flip():
        g.declare(f"using {alias} = {name};")
        return Call(called("x = F()(x, e);", body), "template <class F>", alias)
    g.declare(
        f"template <class T> struct {alias}_of {{ T f; __device__ unsigned operator()({SIGNATURE}) const {{ return f(x, e); }} }};"
    )
    g.declare(f"template <class T> using {alias} = {alias}_of<T>;")
    return Call(called("x = F()(x, e);", body), "template <class F>", f"{alias}<{name}>")


def wrapped_argument(g: Generator, scope: Scope) -> Call:
    """A functor that wraps two functors, one of them as a default template argument of the class."""
    (one, first), (two, second) = functor(g, scope, steps=1), functor(g, scope, steps=1)
    name = g.name("Both")
    g.declare(
        f"template <class F, class G = {two}> struct {name} {{ F f; __device__ unsigned operator()({SIGNATURE}) const {{ "
        "x = f(x, e); return G()(x, e); } };"
    )
    given = g.rng.choice((f"{name}<{one}>", f"{name}<{one}, {two}>"))
    return Call(called("F f; x = f(x, e);", sequence([first, second])), "template <class F>", given)


def functor_parameter(g: Generator, scope: Scope) -> Call:
    """A functor with members as a parameter of the kernel."""
    numbers = [g.rng.getrandbits(32) for _ in range(g.rng.randint(1, 3))]
    captures = [Capture(g.name("k"), expressions.constant(each), True) for each in numbers]
    name, body = functor(g, scope, captures)
    argument = Argument(struct.pack(f"<{len(numbers)}I", *numbers), 4)
    step = called("x = f(x, e);", body, captures)
    if g.flip():
        return Call(step, "template <class F>", name, ", F f", [argument])
    constant = g.rng.choice(("const", "const __grid_constant__"))
    return Call(step, parameter=f", {constant} {name} f", arguments=[argument])


def empty_functor_parameter(g: Generator, scope: Scope) -> Call:
    """A functor without members as a parameter, which takes one byte."""
    name, body = functor(g, scope)
    return Call(
        called("x = f(x, e);", body), "template <class F>", name, ", F f, unsigned", [Argument(b"\0", 1), _word(7)]
    )


def function_argument(g: Generator, scope: Scope) -> Call:
    """A function pointer as a template argument of the kernel."""
    name, body = function(g, scope)
    template = g.rng.choice(("template <unsigned (*F)(unsigned, Env)>", "template <auto F>"))
    return Call(called("x = F(x, e);", body), template, g.rng.choice((name, f"&{name}")))


def template_template_argument(g: Generator, scope: Scope) -> Call:
    """A class template as a template argument of the kernel."""
    k = g.name("k")
    captures = [Capture(k, expressions.constant(each), True) for each in (3, 5)]
    g.shared_left -= 6
    body, name = g.body(g.inside(scope, captures[:1]), 1), g.name("Op")
    g.declare(
        f"template <unsigned {k}> struct {name} {{ __device__ unsigned operator()({SIGNATURE}) const {{\n{body.text}\n"
        "return x;\n} };"
    )
    step = sequence([called(f"x = W<{c.value.text}>()(x, e);", body, [c]) for c in captures])
    return Call(step, "template <template <unsigned> class W>", name)


def pack_argument(g: Generator, scope: Scope) -> Call:
    """Functors as a pack of template arguments of the kernel."""
    (one, first), (two, second) = functor(g, scope, steps=1), functor(g, scope, steps=1)
    step = called("((x = F()(x, e)), ...);", sequence([first, second]))
    return Call(step, "template <class... F>", f"{one}, {two}")


def number_argument(g: Generator, scope: Scope) -> Call:
    """Numbers as template arguments, used in the kernel's own body."""
    k, number = g.name("K"), g.rng.randrange(1, 50)
    inner = replace(scope, names=(*scope.names, k), uniform=scope.uniform | {k})
    body, flag = g.body(inner), g.flip()
    extra = g.assign(inner)

    def run(m: Machine, v: Values) -> None:
        v[k] = m.full(number)
        body.run(m, v)
        if flag:
            extra.run(m, v)
        del v[k]

    step = Step(f"{body.text}\nif constexpr (FLAG) {{ {extra.text} }}", run)
    return Call(step, f"template <unsigned {k}, bool FLAG>", f"{number}u, {str(flag).lower()}")


def parameters_of_operation(g: Generator, scope: Scope) -> Call:
    """`template <class Op> __global__ void kernel(typename Op::Params p) { Op op; op(p); }`."""
    numbers = [g.rng.getrandbits(32), g.rng.getrandbits(32)]
    captures = [Capture(g.name("k"), expressions.constant(each), True) for each in numbers]
    body, name = g.body(g.inside(scope, captures)), g.name("Operation")
    held = "".join(f"unsigned {c.name}; " for c in captures)
    read = "".join(f"const unsigned {c.name} = p.{c.name}; " for c in captures)
    storage = "struct Storage { unsigned x; }; " if g.flip() else ""
    g.declare(
        f"struct {name} {{ struct Params {{ {held}double unused; }}; {storage}\n"
        f"__device__ unsigned operator()(const Params& p, {SIGNATURE}) const {{ {read}\n{body.text}\nreturn x;\n}} }};"
    )
    argument = Argument(struct.pack("<IId", *numbers, 0.5), 8)
    step = called("Op op; x = op(p, x, e);", body, captures)
    return Call(step, "template <class Op>", name, ", typename Op::Params p", [argument])


def traits_argument(g: Generator, scope: Scope) -> Call:
    """A template specialisation selected by a tag."""
    body, name = g.body(g.inside(scope)), g.name("Traits")
    g.declare(
        f"template <class T> struct {name};\ntemplate <> struct {name}<double> {{ struct Kernel {{ "
        f"static __device__ unsigned run({SIGNATURE}) {{\n{body.text}\nreturn x;\n}} }}; }};"
    )
    return Call(called(f"x = {name}<T>::Kernel::run(x, e);", body), "template <class T>", "double")


KERNEL_FORMS: dict[str, KernelForm] = {
    form.__name__: form
    for form in (
        inline, type_argument, default_type_argument, alias_argument, wrapped_argument, functor_parameter,
        empty_functor_parameter, function_argument, template_template_argument, pack_argument, number_argument,
        parameters_of_operation, traits_argument,
    )
}  # fmt: skip


def early_return(g: Generator, scope: Scope) -> Step:
    """Some threads write their result and return from the kernel; rank 0 does not."""
    condition, mark = modulo(g.expr(scope), g.rng.choice((2, 3, 5))), g.rng.getrandbits(32)
    if g.flip(0.3):  # whole warps return
        condition = Expr(
            "(rank() >= (threads() + 1u) / 2u)", lambda m, v: (m.rank >= (m.threads + 1) // 2) * np.uint32(1)
        )

    def run(m: Machine, v: Values) -> None:
        leaves = m.active & condition.truth(m, v) & (m.rank != 0)
        m.out = np.where(leaves, v["x"] ^ np.uint32(mark), m.out)
        m.active = m.active & ~leaves

    return Step(f"if ({condition.text} && rank() != 0u) {{ out[at] = x ^ {mark}u; return; }}", run)


def last_block(g: Generator) -> Step:
    """The block that finishes last sums the results of all blocks."""
    counter, partial = g.region(), g.region()
    assert counter is not None and partial is not None
    g.zeroed.append((counter, 8))
    text = (
        "__shared__ unsigned total; __shared__ bool last;\nif (rank() == 0u) total = 0u;\n__syncthreads();\n"
        "atomicAdd(&total, x);\n__syncthreads();\nif (rank() == 0u) {\n"
        f"cells[{partial}u + block_rank()] = total; __threadfence();\n"
        f"last = atomicAdd(&cells[{counter}], 1u) == gridDim.x * gridDim.y * gridDim.z - 1u;\n}}\n__syncthreads();\n"
        "if (last && rank() == 0u) {\n__threadfence(); unsigned sum = 0;\n"
        "for (unsigned i = 0; i < gridDim.x * gridDim.y * gridDim.z; ++i) "
        f"sum = sum * 3u + ((volatile unsigned*)cells)[{partial}u + i];\ncells[{counter + 1}] = sum;\n}}"
    )

    def run(m: Machine, v: Values) -> None:
        totals = np.where(m.active, v["x"], np.uint32(0)).sum(axis=1, dtype=np.uint32)
        m.cells[partial : partial + m.blocks] = totals
        m.cells[counter] = m.blocks
        result = 0
        for total in totals.tolist():
            result = (result * 3 + total) & 0xFFFFFFFF
        m.cells[counter + 1] = result

    return Step(text, run)


def grid_barrier(g: Generator) -> Step:
    """Exchange between blocks at the barrier of a cooperative launch."""
    g.includes.add("cooperative_groups.h")
    g.cooperative = True
    text = (
        f"cells[{CELLS}u + at] = x;\ncg::this_grid().sync();\n"
        f"x = x * 3u + cells[{CELLS}u + (at + 37u) % (unsigned)cg::this_grid().size()];"
    )

    def run(m: Machine, v: Values) -> None:
        m.scratch[:] = v["x"]
        m.assign(v, "x", v["x"] * np.uint32(3) + np.roll(v["x"].reshape(-1), -37).reshape(m.shape))

    return Step(text, run)


def draw(g: Generator, kernel_forms: Bag) -> Kernel:
    """Draws a kernel; `kernel_forms` draws its form."""
    scope, steps = Scope(BLOCK), []
    returned = replace(scope, returned=True)
    form = kernel_forms.draw(tuple(KERNEL_FORMS))
    g.tags.append(form)
    if g.flip(0.4):
        steps.append(g.body(scope, 1))
    when = g.rng.choice(("never", "never", "before", "after"))
    if when == "before":
        steps.append(early_return(g, scope))
        scope = returned
    call = KERNEL_FORMS[form](g, scope)
    steps.append(call.step)
    if when == "after":
        steps.append(early_return(g, scope))
        scope = returned
    if when != "never":
        g.tags.append("early_return")
    steps.append(g.body(scope, g.rng.randint(0, 2)))
    if when == "never" and g.allow_groups and g.flip(0.15):
        g.tags.append("grid_barrier")
        steps.append(grid_barrier(g))
    elif g.flip(0.2):
        g.tags.append("last_block")
        steps.append(last_block(g))
    return _finished(g, call, sequence(steps))


def _finished(g: Generator, call: Call, body: Step) -> Kernel:
    name = f"kernel_{g.number}"
    template = call.given is not None
    space = g.flip(0.3) and (template or not call.parameter)
    plain = not template and not space and g.flip(0.7)
    bounds = g.rng.choice(("", "", f"__launch_bounds__({MAX_THREADS}) "))
    head = 'extern "C" ' if plain else f"{call.template}\n" if template else ""
    parameters = g.rng.choice(PARAMETERS)
    text = (
        f"{head}__global__ void {bounds}{name}({parameters}{call.parameter}) {{\n"
        "const Env e = {in, cells, n};\nconst unsigned at = block_rank() * threads() + rank();\n"
        f"unsigned x = in[at % 256u];\n{body.text}\nout[at] = x;\n}}"
    )
    if template and not call.parameter and g.flip(0.3):
        text += f"\ntemplate __global__ void {name}<{call.given}>({parameters});"
    path = name
    if space:
        text, path = f"namespace work {{\n{text}\n}}", f"work::{name}"
    if template:
        path += f"<{call.given}>"
    included = [f"#include <{header}>" for header in sorted(g.includes)]
    if included:
        included.append("namespace cg = cooperative_groups;")
    blocks = WHOLE_BLOCKS if g.whole_warps else BLOCKS
    shapes = [(g.rng.choice(GRIDS), g.rng.choice(blocks)) for _ in range(3)]
    if g.whole_warps:  # for the barrier of a grid as well as for tiles
        g.tags.append("whole_warps")
    return Kernel(
        name=path,
        text="\n".join([*included, *g.declarations, text, *g.late]),
        headers=g.headers,
        includes=frozenset(g.includes),
        arguments=list(call.arguments),
        shapes=shapes,
        dynamic_shared=g.dynamic_shared,
        cooperative=g.cooperative,
        zeroed=g.zeroed,
        tags=tuple(dict.fromkeys(g.tags)),
        run=body.run,
    )


__all__ = ["KERNEL_FORMS", "Kernel", "draw"]
