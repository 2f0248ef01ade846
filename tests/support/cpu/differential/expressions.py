"""Random expressions of 32-bit unsigned arithmetic: CUDA text, and the NumPy function with the same value.

All arithmetic is modulo 2**32, all shifts are below 32 and all divisors are positive constants, hence no expression has
undefined behaviour.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests.support.cpu.differential.machine import U32, Machine, Values

INDICES = tuple(f"{name}.{axis}" for name in ("threadIdx", "blockIdx", "blockDim", "gridDim") for axis in "xyz")
UNIFORM = tuple(name for name in INDICES if not name.startswith("threadIdx"))
"""Built-in variables that have the same value in all threads of a block."""


class Expr(NamedTuple):
    """An expression: its CUDA text, and the function that computes its value in all threads."""

    text: str
    value: Callable[[Machine, Values], U32]

    def truth(self, m: Machine, v: Values) -> np.ndarray:
        """Returns the value as a condition: True in threads in which the value is not 0."""
        holds: np.ndarray = self.value(m, v) != 0
        return holds


def constant(value: int) -> Expr:
    return Expr(f"{value}u", lambda m, v: m.full(value))


def index(name: str) -> Expr:
    return Expr(name, lambda m, v: m.index[name])


def variable(name: str) -> Expr:
    return Expr(name, lambda m, v: v[name])


RANK = Expr("rank()", lambda m, v: m.rank)
LANE = Expr("lane()", lambda m, v: m.rank % np.uint32(32))
THREADS = Expr("threads()", lambda m, v: m.full(m.threads))
BLOCK_RANK = Expr("block_rank()", lambda m, v: m.block_rank)
HERE = Expr("Here{}", lambda m, v: m.index["threadIdx.x"] * np.uint32(3) + m.index["blockIdx.x"])
SCALAR = Expr("e.n", lambda m, v: m.scalar)
X = variable("x")


def read_input(at: Expr) -> Expr:
    """Returns a read of `e.in`; the index is reduced modulo its length."""
    return Expr(f"e.in[{at.text} % 256u]", lambda m, v: m.data[at.value(m, v) % np.uint32(256)])


def table(name: str, entries: Sequence[int], at: Expr) -> Expr:
    """Returns a read of a constant table of 8 words; the index is reduced modulo 8."""
    words = np.array(entries, np.uint32)
    return Expr(f"{name}[{at.text} & 7u]", lambda m, v: words[at.value(m, v) & np.uint32(7)])


def _bits(v: U32) -> np.ndarray:
    return v[..., None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)


def popc(v: U32) -> U32:
    return _bits(v).sum(axis=-1).astype(np.uint32)


def clz(v: U32) -> U32:
    return np.where(v == 0, 32, 31 - np.floor(np.log2(np.maximum(v, 1).astype(np.float64)))).astype(np.uint32)


def ffs(v: U32) -> U32:
    """Returns the position of the lowest set bit, counted from 1; 0 if no bit is set."""
    lowest = v & (~v + np.uint32(1))
    return np.where(v == 0, np.uint32(0), np.uint32(32) - clz(lowest)).astype(np.uint32)


def brev(v: U32) -> U32:
    return (_bits(v).astype(np.uint64) << np.arange(31, -1, -1, dtype=np.uint64)).sum(axis=-1).astype(np.uint32)


def umulhi(a: U32, b: U32) -> U32:
    return (a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


_UNARY: dict[str, tuple[str, Callable[[U32], U32]]] = {
    "popc": ("(unsigned)__popc({})", popc),
    "clz": ("(unsigned)__clz((int)({}))", clz),
    "ffs": ("(unsigned)__ffs((int)({}))", ffs),
    "brev": ("__brev({})", brev),
    "not": ("~({})", lambda a: ~a),
    "negative": ("(0u - {})", lambda a: np.uint32(0) - a),
    "sign": ("(unsigned)((int)({}) >> 3)", lambda a: (a.view(np.int32) >> 3).view(np.uint32)),
    "byte": ("(unsigned)(unsigned char)({})", lambda a: a & np.uint32(255)),
    "short": ("(unsigned)(short)({})", lambda a: a.astype(np.uint16).view(np.int16).astype(np.int32).view(np.uint32)),
}

_BINARY: dict[str, tuple[str, Callable[[U32, U32], U32]]] = {
    "add": ("({} + {})", lambda a, b: a + b),
    "sub": ("({} - {})", lambda a, b: a - b),
    "mul": ("({} * {})", lambda a, b: a * b),
    "xor": ("({} ^ {})", lambda a, b: a ^ b),
    "and": ("({} & {})", lambda a, b: a & b),
    "or": ("({} | {})", lambda a, b: a | b),
    "min": ("min((unsigned)({}), (unsigned)({}))", np.minimum),
    "max": ("max((unsigned)({}), (unsigned)({}))", np.maximum),
    "umulhi": ("__umulhi({}, {})", umulhi),
    "less": ("(unsigned)({} < {})", lambda a, b: (a < b).astype(np.uint32)),
    "equal": ("(unsigned)(({} & 3u) == ({} & 3u))", lambda a, b: ((a & 3) == (b & 3)).astype(np.uint32)),
}

_CONSTANT: dict[str, tuple[str, int, int, Callable[[U32, np.uint32], U32]]] = {
    "left": ("({} << {})", 1, 31, lambda a, c: a << c),
    "right": ("({} >> {})", 1, 31, lambda a, c: a >> c),
    "rotate": (
        "__funnelshift_l((unsigned)({0}), (unsigned)({0}), {1})", 1, 31, lambda a, c: a << c | a >> np.uint32(32) - c
    ),
    "divide": ("({} / {})", 1, 1000, lambda a, c: a // c),
    "modulo": ("({} % {})", 1, 1000, lambda a, c: a % c),
}  # fmt: skip


class Expressions:
    """Draws expressions over given atoms."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def draw(self, atoms: Sequence[Expr], depth: int = 2) -> Expr:
        """Draws an expression whose leaves are `atoms` and constants."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            if atoms and rng.random() < 0.8:
                return rng.choice(atoms)
            return constant(rng.choice((rng.randrange(16), rng.getrandbits(32))))
        kind = rng.random()
        if kind < 0.15:
            text, unary = _UNARY[rng.choice(tuple(_UNARY))]
            return _unary(text, unary, self.draw(atoms, depth - 1))
        if kind < 0.4:
            text, low, high, shifted = _CONSTANT[rng.choice(tuple(_CONSTANT))]
            return _constant(text, rng.randint(low, high), shifted, self.draw(atoms, depth - 1))
        if kind < 0.5:
            return choose(*(self.draw(atoms, depth - 1) for _ in range(4)))
        text, binary = _BINARY[rng.choice(tuple(_BINARY))]
        return _binary(text, binary, self.draw(atoms, depth - 1), self.draw(atoms, depth - 1))


def _unary(text: str, function: Callable[[U32], U32], a: Expr) -> Expr:
    return Expr(text.format(a.text), lambda m, v: function(a.value(m, v)))


def _constant(text: str, value: int, function: Callable[[U32, np.uint32], U32], a: Expr) -> Expr:
    word = np.uint32(value)
    return Expr(text.format(a.text, f"{value}u"), lambda m, v: function(a.value(m, v), word))


def _binary(text: str, function: Callable[[U32, U32], U32], a: Expr, b: Expr) -> Expr:
    return Expr(text.format(a.text, b.text), lambda m, v: function(a.value(m, v), b.value(m, v)))


def binary(name: str, a: Expr, b: Expr) -> Expr:
    """Returns `a` and `b` combined by the operation of that name."""
    return _binary(*_BINARY[name], a, b)


def modulo(a: Expr, divisor: int) -> Expr:
    return _constant("({} % {})", divisor, lambda x, c: x % c, a)


def choose(a: Expr, b: Expr, c: Expr, d: Expr) -> Expr:
    """Returns the expression `a < b ? c : d`."""
    return Expr(
        f"({a.text} < {b.text} ? {unsigned(c)} : {unsigned(d)})",
        lambda m, v: np.where(a.value(m, v) < b.value(m, v), c.value(m, v), d.value(m, v)),
    )


def unsigned(a: Expr) -> str:
    """Returns the text cast to `unsigned`, for places in which the expression could be an object that converts to
    `unsigned`."""
    return f"(unsigned)({a.text})"
