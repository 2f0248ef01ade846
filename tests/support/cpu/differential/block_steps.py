"""Steps in which the threads of a block synchronise: barriers, shared memory, the usual block-wide algorithms.

Each step ends with a barrier after its last access to its shared arrays, so that the next step, or the next round of a
loop around the step, may write to them immediately.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tests.support.cpu.differential.expressions import RANK, THREADS, Expr, modulo, unsigned
from tests.support.cpu.differential.generator import BLOCK, MAX_THREADS, Generator, Scope, Step, sequence, step
from tests.support.cpu.differential.machine import CELLS, Machine, Values
from tests.support.cpu.differential.plain_steps import ATOMICS

SYNC = "__syncthreads();"
GONE = 11
"""The value in the slots of threads that have returned."""


def other_rank(g: Generator, scope: Scope) -> Expr:
    """Draws the rank of some thread of the block."""
    raw = g.expr(scope, 1)
    return Expr(f"({unsigned(raw)} % {THREADS.text})", lambda m, v: raw.value(m, v) % np.uint32(m.threads))


def running(m: Machine) -> np.ndarray:
    """Returns the indices of the blocks that execute the statement."""
    return np.flatnonzero(m.active.any(axis=1))


def by_block(m: Machine, function: Callable[[int], int]) -> np.ndarray:
    """Returns one word for each active block, as its threads see it."""
    results = [0] * m.blocks
    for block in running(m):
        results[block] = int(function(block))
    return m.per_block(results)


def exchange(
    g: Generator,
    scope: Scope,
    declared: str,
    array: str,
    written: Callable[[Machine, np.ndarray], None] | None = None,
    bits: int = 32,
) -> Step:
    """Returns the step in which each thread writes its slot of `array` and reads the slot of another thread.

    `written` receives the slots, for global memory; `bits` is the number of bits of a word that a slot keeps.
    """
    value, at, name = g.varying(scope), other_rank(g, scope), g.name("y")
    kept, filled = np.uint32((1 << bits) - 1), ""
    if scope.returned:
        filled = f"if (rank() == 0u) for (unsigned i = 0; i < threads(); ++i) {array}[i] = {GONE}u;\n{SYNC}\n"
    text = (
        f"{{ {declared}\n{filled}{array}[rank()] = ({value.text}) & {int(kept)}u; {SYNC}\n"
        f"const unsigned {name} = (unsigned){array}[{at.text}]; {SYNC}\nx = x * 3u + {name}; }}"
    )

    def run(m: Machine, v: Values) -> None:
        slots = np.where(m.active, value.value(m, v) & kept, np.uint32(GONE))
        if written:
            written(m, slots)
        got = np.take_along_axis(slots, at.value(m, v).astype(int), axis=1)
        m.assign(v, "x", v["x"] * np.uint32(3) + got)

    return Step(text, run)


@step(BLOCK, shared=1)
def static_exchange(g: Generator, scope: Scope) -> Step:
    """Exchange through a static shared array."""
    array, (kind, bits) = g.name("line"), g.pick("slot", _SLOTS)
    declared = f"__shared__ {kind} {array}[{MAX_THREADS}];"
    place = g.rng.randrange(4)
    if place == 0:  # declared outside functions
        g.declare(declared)
        declared = ""
    elif place == 1:  # an array of arrays, with a column that pads it
        rows = f"{array}_rows"
        declared = f"__shared__ {kind} {rows}[{MAX_THREADS} / 8][9]; Rows<{kind}> {array}{{{rows}}};"
    return exchange(g, scope, declared, array, bits=bits)


_SLOTS = (
    ("unsigned", 32), ("int", 32), ("unsigned short", 16), ("unsigned char", 8), ("unsigned long long", 32),
    ("float", 24), ("double", 32),
)  # fmt: skip
"""Element types of a shared array, with the number of bits of a word that each keeps."""


@step(BLOCK)
def dynamic_exchange(g: Generator, scope: Scope) -> Step:
    """Exchange through dynamic shared memory, declared inside or outside the function."""
    g.dynamic_shared = True
    declared, array = "extern __shared__ unsigned dynamic_words[];", "dynamic_words"
    if g.flip(0.3):
        array = g.name("outer_words")
        g.declare(f"extern __shared__ unsigned {array}[];")
        declared = ""
    elif g.flip(0.3):
        array = "bytes"
        declared = (
            "extern __shared__ unsigned dynamic_words[]; unsigned* bytes = reinterpret_cast<unsigned*>(dynamic_words);"
        )
    return exchange(g, scope, declared, array)


@step(BLOCK)
def global_exchange(g: Generator, scope: Scope) -> Step:
    """Exchange through global memory, between the threads of a block."""

    def written(m: Machine, slots: np.ndarray) -> None:
        blocks = running(m)
        m.scratch[blocks] = slots[blocks]

    declared = f"unsigned* slots = e.cells + {CELLS}u + block_rank() * threads();"
    return exchange(g, scope, declared, "slots", written)


@step(BLOCK, shared=2, after_return=False)
def instantiations(g: Generator, scope: Scope) -> Step:
    """A shared array in a template function: each instantiation has a separate array."""
    name, value, at = g.name("slots"), g.varying(scope), other_rank(g, scope)
    array = f"__shared__ unsigned held[{MAX_THREADS}];"
    if g.flip():
        g.declare(f"template <int N> __device__ unsigned* {name}() {{ {array} return held; }}")
        one, two = f"{name}<1>()", f"{name}<2>()"
    else:
        g.declare(
            f"template <class T> struct {name} {{ __device__ unsigned& operator[](unsigned i) const {{ {array} "
            f"return held[i]; }} }};"
        )
        one, two = f"{name}<float>()", f"{name}<Here>()"
    text = (
        f"{one}[rank()] = x; {two}[rank()] = {value.text}; {SYNC}\n"
        f"{{ const unsigned {name}_y = {one}[{at.text}] * 3u + {two}[threads() - 1u - rank()]; {SYNC}\nx ^= {name}_y; }}"
    )

    def run(m: Machine, v: Values) -> None:
        first = np.take_along_axis(v["x"], at.value(m, v).astype(int), axis=1)
        m.assign(v, "x", v["x"] ^ (first * np.uint32(3) + value.value(m, v)[:, ::-1]))

    return Step(text, run)


@step(BLOCK)
def barrier_vote(g: Generator, scope: Scope) -> Step:
    """Two successive votes of a block."""
    return sequence([_barrier_vote(g, scope) for _ in range(2)])


def _barrier_vote(g: Generator, scope: Scope) -> Step:
    """`__syncthreads_count`, `_and`, `_or`: threads that have returned do not count."""
    predicate, kind = modulo(g.expr(scope), g.rng.choice((2, 3, 40))), g.pick("barrier", ("count", "and", "or"))
    call = f"__syncthreads_{kind}((int){unsigned(predicate)})"
    value = f"(unsigned){call}" if kind == "count" else f"(unsigned)({call} != 0)"

    def run(m: Machine, v: Values) -> None:
        holds = predicate.truth(m, v)
        counts = {
            "count": lambda block: (holds & m.active)[block].sum(),
            "and": lambda block: (holds | ~m.active)[block].all(),
            "or": lambda block: (holds & m.active)[block].any(),
        }
        m.assign(v, "x", v["x"] * np.uint32(3) + by_block(m, counts[kind]))

    return Step(f"x = x * 3u + {value};", run)


@step(BLOCK)
def barrier_in_condition(g: Generator, scope: Scope) -> Step:
    """A loop that ends when no thread of the block has work left: the barrier is in the condition."""
    work, name, add = modulo(g.expr(scope), 4), g.name("left"), g.expr(scope, 1)
    text = (
        f"{{ unsigned {name} = {work.text};\n"
        f"while (__syncthreads_or({name} != 0u)) {{ if ({name} != 0u) {{ x = x * 3u + {add.text}; --{name}; }} }} }}"
    )

    def run(m: Machine, v: Values) -> None:
        left, before = work.value(m, v), m.active
        for at in range(3):
            m.active = before & (left > at)
            m.assign(v, "x", v["x"] * np.uint32(3) + add.value(m, v))
        m.active = before

    return Step(text, run)


@step(BLOCK)
def shared_atomic(g: Generator, scope: Scope) -> Step:
    """Atomics on shared memory: a histogram, or another operation that does not depend on the order."""
    kind = g.pick("shared atomic", tuple(name for name in ATOMICS if name != "CAS"))
    call, update = ATOMICS[kind]
    at, value, first, name = modulo(g.expr(scope), 8), g.varying(scope), g.rng.getrandbits(9), g.name("bins")
    text = (
        f"{{ __shared__ unsigned {name}[8];\nif (rank() == 0u) for (int i = 0; i < 8; ++i) {name}[i] = {first}u;\n{SYNC} "
        f"{call.format(f'{name}[{at.text}]', unsigned(value))}; {SYNC}\n"
        f"const unsigned {name}_y = {name}[rank() & 7u]; {SYNC}\nx = x * 3u + {name}_y; }}"
    )

    def run(m: Machine, v: Values) -> None:
        places, values, seen = at.value(m, v), value.value(m, v), m.full(0)
        for block in running(m):
            bins, here = [first] * 8, m.active[block]
            for place, each in zip(places[block, here].tolist(), values[block, here].tolist(), strict=True):
                bins[place] = update(bins[place], each)
            seen[block] = np.array(bins, np.uint32)[m.rank[block] & np.uint32(7)]
        m.assign(v, "x", v["x"] * np.uint32(3) + seen)

    return Step(text, run)


@step(BLOCK)
def float_atomic(g: Generator, scope: Scope) -> Step:
    """Floating-point atomics whose sums are exact in any order."""
    value, name, kind = g.varying(scope), g.name("sum"), g.rng.choice(("float", "double"))
    text = (
        f"{{ __shared__ {kind} {name}; if (rank() == 0u) {name} = 0; {SYNC}\n"
        f"atomicAdd(&{name}, ({kind})({value.text} & 1023u) * ({kind})0.5); {SYNC}\n"
        f"x += (unsigned)({name} * ({kind})2); {SYNC} }}"
    )

    def run(m: Machine, v: Values) -> None:
        values = np.where(m.active, value.value(m, v) & np.uint32(1023), np.uint32(0))
        m.assign(v, "x", v["x"] + by_block(m, lambda block: values[block].sum()))

    return Step(text, run)


# ---- algorithms ----


_OPERATIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "sum": ("a + b", lambda a, b: (a + b) & 0xFFFFFFFF),
    "least": ("a < b ? a : b", min),
    "greatest": ("a < b ? b : a", max),
    "either": ("a ^ b", lambda a, b: a ^ b),
}


def operation(g: Generator) -> tuple[str, Callable[[int, int], int]]:
    """Declares a commutative operator class; returns its name and the equivalent Python function."""
    kind = g.rng.choice(tuple(_OPERATIONS))
    text, meaning = _OPERATIONS[kind]
    name = g.name(kind)
    g.declare(f"struct {name} {{ __device__ unsigned operator()(unsigned a, unsigned b) const {{ return {text}; }} }};")
    return name, meaning


@step(BLOCK, shared=1, after_return=False)
def tree_reduction(g: Generator, scope: Scope) -> Step:
    """The reduction over a block through shared memory, with the operator as a template argument."""
    name, value = g.name("reduce"), g.varying(scope)
    op, meaning = operation(g)
    g.declare(
        f"template <class T, class Op, int N> __device__ T {name}(T mine, Op op = Op()) {{\n"
        f"__shared__ T part[N]; const unsigned r = rank(), n = threads(); part[r] = mine; {SYNC}\n"
        f"for (unsigned s = N / 2; s > 0; s >>= 1) {{ if (r < s && r + s < n) part[r] = op(part[r], part[r + s]); {SYNC} }}\n"
        f"const T all = part[0]; {SYNC} return all; }}"
    )

    def run(m: Machine, v: Values) -> None:
        values = value.value(m, v)
        m.assign(v, "x", v["x"] ^ by_block(m, lambda block: functools.reduce(meaning, values[block].tolist())))

    return Step(f"x ^= {name}<unsigned, {op}, {MAX_THREADS}>({unsigned(value)});", run)


@step(BLOCK, after_return=False)
def warp_reduction(g: Generator, scope: Scope) -> Step:
    """The reduction over a block by shuffles within warps, then over the warps' results."""
    name, value = g.name("reduce"), g.varying(scope)
    op, meaning = operation(g)
    g.declare(
        f"template <class Op> __device__ unsigned {name}_warp(unsigned mine, Op op) {{\n"
        "const unsigned here = lanes();\nfor (int o = 16; o > 0; o /= 2) { "
        "const unsigned y = __shfl_down_sync(here, mine, o); "
        "if (lane() + o < 32u && (here >> (lane() + o) & 1u)) mine = op(mine, y); }\nreturn mine; }\n"
        f"template <class Op> __device__ unsigned {name}(unsigned mine) {{\n"
        f"static __shared__ unsigned part[32]; mine = {name}_warp(mine, Op());\n"
        f"if (lane() == 0u) part[rank() / 32u] = mine; {SYNC}\n"
        "unsigned all = part[0]; for (unsigned i = 1; i < (threads() + 31u) / 32u; ++i) all = Op()(all, part[i]);\n"
        f"{SYNC} return all; }}"
    )

    def run(m: Machine, v: Values) -> None:
        values = value.value(m, v)
        m.assign(v, "x", v["x"] + by_block(m, lambda block: functools.reduce(meaning, values[block].tolist())))

    return Step(f"x += {name}<{op}>({unsigned(value)});", run)


@step(BLOCK, shared=1, after_return=False)
def block_scan(g: Generator, scope: Scope) -> Step:
    """The inclusive sum over a block, by the Hillis-Steele scan."""
    value, name = g.varying(scope), g.name("sums")
    text = (
        f"{{ __shared__ unsigned {name}[{MAX_THREADS}]; {name}[rank()] = {value.text}; {SYNC}\n"
        f"for (unsigned o = 1; o < threads(); o <<= 1) {{ const unsigned y = rank() >= o ? {name}[rank() - o] : 0u; {SYNC} "
        f"{name}[rank()] += y; {SYNC} }}\nx ^= {name}[rank()]; {SYNC} }}"
    )

    def run(m: Machine, v: Values) -> None:
        m.assign(v, "x", v["x"] ^ np.cumsum(value.value(m, v), axis=1, dtype=np.uint32))

    return Step(text, run)


@step(BLOCK, shared=1, after_return=False)
def bitonic_sort(g: Generator, scope: Scope) -> Step:
    """The sorting network over a block, padded to a power of two."""
    value, name = g.varying(scope), g.name("keys")
    text = (
        f"{{ __shared__ unsigned {name}[{MAX_THREADS}]; const unsigned r = rank(), n = threads();\n"
        f"for (unsigned i = r; i < {MAX_THREADS}u; i += n) {name}[i] = ~0u;\n{SYNC} {name}[r] = {value.text}; {SYNC}\n"
        f"for (unsigned k = 2; k <= {MAX_THREADS}u; k <<= 1) for (unsigned j = k >> 1; j > 0; j >>= 1) {{\n"
        f"for (unsigned i = r; i < {MAX_THREADS}u; i += n) {{ const unsigned o = i ^ j;\n"
        f"if (o > i && ({name}[i] > {name}[o]) == ((i & k) == 0u)) {{ "
        f"const unsigned t = {name}[i]; {name}[i] = {name}[o]; {name}[o] = t; }} }}\n{SYNC} }}\n"
        f"x = x * 5u + {name}[r]; {SYNC} }}"
    )

    def run(m: Machine, v: Values) -> None:
        m.assign(v, "x", v["x"] * np.uint32(5) + np.sort(value.value(m, v), axis=1))

    return Step(text, run)


@step(BLOCK, shared=2, after_return=False)
def stencil(g: Generator, scope: Scope) -> Step:
    """A stencil of three points with a halo that the first and the last thread fetch."""
    value, name = g.varying(scope), g.name("line")
    text = (
        f"{{ __shared__ unsigned {name}[{MAX_THREADS} + 2]; const unsigned r = rank(), n = threads();\n"
        f"{name}[r + 1u] = {value.text};\nif (r == 0u) {name}[0] = e.in[block_rank()];\n"
        f"if (r == n - 1u) {name}[n + 1u] = e.in[block_rank() + 100u];\n{SYNC}\n"
        f"const unsigned y = {name}[r] + 2u * {name}[r + 1u] + 3u * {name}[r + 2u]; {SYNC}\nx ^= y; }}"
    )

    def run(m: Machine, v: Values) -> None:
        first, last = (m.data[m.block_rank[:, :1] + np.uint32(offset)] for offset in (0, 100))
        line = np.concatenate([first, value.value(m, v), last], axis=1)
        m.assign(v, "x", v["x"] ^ (line[:, :-2] + np.uint32(2) * line[:, 1:-1] + np.uint32(3) * line[:, 2:]))

    return Step(text, run)


@step(BLOCK, shared=1, after_return=False)
def transposition(g: Generator, scope: Scope) -> Step:
    """The transposition of each plane of the block through a shared tile."""
    value, name = g.varying(scope), g.name("tile")
    text = (
        f"{{ __shared__ unsigned {name}[{MAX_THREADS}]; unsigned* plane = {name} + threadIdx.z * blockDim.x * blockDim.y;\n"
        f"plane[threadIdx.y * blockDim.x + threadIdx.x] = {value.text}; {SYNC}\n"
        f"const unsigned r = threadIdx.y * blockDim.x + threadIdx.x;\n"
        f"const unsigned y = plane[r % blockDim.y * blockDim.x + r / blockDim.y]; {SYNC}\nx = x * 3u + y; }}"
    )

    def run(m: Machine, v: Values) -> None:
        x, y, z = m.block
        turned = value.value(m, v).reshape(m.blocks, z, y, x).transpose(0, 1, 3, 2).reshape(m.shape)
        m.assign(v, "x", v["x"] * np.uint32(3) + turned)

    return Step(text, run)


@step(BLOCK, shared=2, after_return=False)
def double_buffer(g: Generator, scope: Scope) -> Step:
    """Rounds that read what a neighbour wrote in the round before, with one barrier for each round."""
    value, rounds, name = g.varying(scope), g.rng.randint(2, 4), g.name("pages")
    text = (
        f"{{ __shared__ unsigned {name}[2][{MAX_THREADS}]; {name}[0][rank()] = {value.text}; {SYNC}\n"
        f"for (int i = 0; i < {rounds}; ++i) {{ {name}[(i + 1) & 1][rank()] = "
        f"{name}[i & 1][(rank() + 1u) % threads()] * 3u + (unsigned)i; {SYNC} }}\n"
        f"x += {name}[{rounds & 1}][rank()]; {SYNC} }}"
    )

    def run(m: Machine, v: Values) -> None:
        page = value.value(m, v)
        for at in range(rounds):
            page = np.roll(page, -1, axis=1) * np.uint32(3) + np.uint32(at)
        m.assign(v, "x", v["x"] + page)

    return Step(text, run)


@step(BLOCK)
def single_writer(g: Generator, scope: Scope) -> Step:
    """A shared variable that one thread writes and all threads read."""
    value, name = g.varying(scope), g.name("flag")
    kind = g.rng.choice(("struct { unsigned a, b; }", "union { unsigned a; unsigned b[2]; }"))
    text = (
        f"{{ __shared__ {kind} {name}; if ({RANK.text} == 0u) {name}.a = {value.text}; {SYNC}\nx ^= {name}.a; {SYNC} }}"
    )

    def run(m: Machine, v: Values) -> None:
        values = value.value(m, v)
        m.assign(v, "x", v["x"] ^ values[:, :1])

    return Step(text, run)
