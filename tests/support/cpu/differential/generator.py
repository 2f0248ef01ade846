"""Generator of one random kernel: scopes, steps, and the choice among the steps that a scope allows.

A step is CUDA text that changes the variable `x` of each thread, together with the function that does the same to the
reference machine. Every body that a form of call defines has the signature `unsigned (unsigned x, Env e)`.

A scope has the level at which threads are known to execute a statement together. A step is drawn only in a scope of at
least the level at which it synchronises threads:

- BLOCK: all threads of the block that have not returned from the kernel; barriers are allowed.
- WARP: all such threads of a warp, or those of the mask `Scope.mask`; collectives of a warp are allowed.
- LANE: a single thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from tests.support.cpu.differential import expressions
from tests.support.cpu.differential.expressions import Expr, Expressions
from tests.support.cpu.differential.machine import CELLS, Machine, Values

Item = TypeVar("Item")

LANE, WARP, BLOCK = range(3)
MAX_THREADS = 128
"""Maximum number of threads of a block, and the length of the shared arrays."""
REGION = 8
"""Number of words of global memory that are reserved for one atomic step."""


class Step(NamedTuple):
    """Statements: their text, and the function that has the same effect on the reference machine."""

    text: str
    run: Callable[[Machine, Values], None]


class Capture(NamedTuple):
    """A value that a body receives from outside under a name: a member, a captured variable, or a parameter."""

    name: str
    value: Expr
    uniform: bool


@dataclass(frozen=True)
class Scope:
    """The place of a step in the program."""

    level: int = BLOCK
    mask: str = ""
    """Name of the variable with the mask of active lanes, at level WARP, if some lanes that have not returned are
    inactive."""
    names: tuple[str, ...] = ()
    """Variables that can be read in addition to `x`."""
    uniform: frozenset[str] = frozenset()
    """Variables among `names` that have the same value in all threads of the block."""
    returned: bool = False
    """True if threads may have returned from the kernel; rank 0 never has."""
    depth: int = 0
    """Number of calls around this place."""
    loops: int = 0
    """Number of loops around this place."""


class Bag:
    """Shuffle bag: draws each item once, in random order, before it draws any item again."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._order: dict[str, float] = {}
        self._round = 0.0

    def draw(self, items: Sequence[str]) -> str:
        for item in items:
            self._order.setdefault(item, self._rng.random())
        chosen = min(items, key=lambda item: self._order[item])
        self._order[chosen] = self._order[chosen] // 1 + 1 + self._rng.random()
        return chosen


@dataclass
class Kind:
    """A kind of step or of call that can be drawn."""

    make: Callable[[Generator, Scope], Step]
    level: int
    shared: int = 0
    """Number of shared arrays of MAX_THREADS words that it declares."""
    after_return: bool = True
    """True if it may be used in a place where threads may already have returned."""
    whole_warps: bool = False
    """True if the block must consist of whole warps."""
    header: str = ""
    """The header that it includes."""
    bodies: int = 0
    """Number of bodies that it draws itself."""


STEPS: dict[str, Kind] = {}
FORMS: dict[str, Kind] = {}


def step(level: int, **needs: object) -> Callable[[Callable[[Generator, Scope], Step]], Callable[..., Step]]:
    """Registers a kind of step under its function's name."""
    return _register(STEPS, level, needs)


def form(bodies: int = 1, **needs: object) -> Callable[[Callable[[Generator, Scope], Step]], Callable[..., Step]]:
    """Registers a form of call under its function's name."""
    return _register(FORMS, LANE, {"bodies": bodies, **needs})


def _register(kinds: dict[str, Kind], level: int, needs: dict[str, object]) -> Callable[..., Callable[..., Step]]:
    def register(make: Callable[[Generator, Scope], Step]) -> Callable[[Generator, Scope], Step]:
        kinds[make.__name__.strip("_")] = Kind(make, level, **needs)  # type: ignore[arg-type]
        return make

    return register


@dataclass
class Generator:
    """The kernel being drawn: its declarations, and the resources that it may still use."""

    rng: random.Random
    bag: Bag
    number: int
    """Index of the kernel in its program."""
    whole_warps: bool = False
    """True if its blocks consist of whole warps."""
    steps_left: int = 12
    """Number of steps that may still be drawn."""
    shared_left: int = 32
    """Number of shared arrays of MAX_THREADS words that may still be declared."""
    allow_groups: bool = True
    """True if cooperative groups may be used."""
    declarations: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """Definitions that are placed after the kernel."""
    headers: dict[str, str] = field(default_factory=dict)
    includes: set[str] = field(default_factory=set)
    """Headers of the toolkit that the kernel includes."""
    zeroed: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of global memory (first word, number of words) that must be 0 before the launch."""
    tags: list[str] = field(default_factory=list)
    """Names of the kinds of steps and calls that were drawn."""
    dynamic_shared: bool = False
    cooperative: bool = False
    _names: int = 0
    _cells: int = 0

    def __post_init__(self) -> None:
        self.expressions = Expressions(self.rng)

    # ---- names and memory ----

    def name(self, stem: str) -> str:
        """Returns a name that no other declaration of the program has."""
        self._names += 1
        return f"{stem}_{self.number}_{self._names}"

    def declare(self, text: str) -> None:
        self.declarations.append(text)

    def region(self) -> int | None:
        """Reserves REGION words of global memory for one atomic step; returns the index of the first word, or None."""
        if self._cells + REGION > CELLS:
            return None
        self._cells += REGION
        return self._cells - REGION

    def flip(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def pick(self, what: str, items: Sequence[Item]) -> Item:
        """Picks a variant of a step, so that every variant is picked equally often."""
        names = [f"{what} {at}" for at in range(len(items))]
        return items[names.index(self.bag.draw(names))]

    # ---- expressions ----

    def expr(self, scope: Scope, depth: int = 2, with_x: bool = True) -> Expr:
        """Draws an expression over all variables that can be read in the scope, including `x` unless `with_x` is
        False."""
        names = [expressions.variable(name) for name in scope.names]
        fixed = [expressions.index(name) for name in self.rng.sample(expressions.INDICES, 3)]
        fixed += [expressions.index("threadIdx.x"), expressions.RANK, expressions.LANE, expressions.HERE]
        fixed += [expressions.X, expressions.X, expressions.SCALAR] if with_x else [expressions.SCALAR]
        atoms = [*names, *names, *fixed]
        if self.flip(0.2):
            atoms.append(expressions.read_input(self.expressions.draw(fixed, 1)))
        if self.flip(0.2):
            atoms.append(self.table(self.expressions.draw(fixed, 1)))
        return self.expressions.draw(atoms, depth)

    def varying(self, scope: Scope) -> Expr:
        """Draws an expression whose value differs between threads, for values that threads exchange."""
        return expressions.binary(
            self.rng.choice(("xor", "add")), expressions.X, self.expr(scope, self.rng.randint(1, 2), with_x=False)
        )

    def index_expr(self, depth: int = 2) -> Expr:
        """Draws an expression of built-in variables and constants only."""
        atoms = [expressions.index(name) for name in self.rng.sample(expressions.INDICES, 4)]
        return self.expressions.draw([*atoms, expressions.index("threadIdx.x"), expressions.RANK], depth)

    def uniform(self, scope: Scope, depth: int = 2) -> Expr:
        """Draws an expression that has the same value in all threads of the block."""
        atoms = [expressions.index(name) for name in self.rng.sample(expressions.UNIFORM, 3)]
        atoms += [expressions.index("blockIdx.x"), expressions.BLOCK_RANK, expressions.THREADS, expressions.SCALAR]
        atoms += [expressions.variable(name) for name in scope.names if name in scope.uniform]
        return self.expressions.draw(atoms, depth)

    def table(self, at: Expr) -> Expr:
        """Draws a read of a constant table."""
        name, entries = self.name("table"), [self.rng.getrandbits(32) for _ in range(8)]
        words = ", ".join(f"{entry}u" for entry in entries)
        if self.flip(0.03):
            self.tags.append("constant_template")
            first = entries[0] & 0xFFFF
            entries = [(first + 5 * at) & 0xFFFFFFFF for at in range(8)]
            words = ", ".join(f"{first + 5 * at}u + (N - 5u)" for at in range(8))
            self.declare(f"template <unsigned N> __constant__ unsigned {name}_of[8] = {{{words}}};")
            return expressions.table(f"{name}_of<5>", entries, at)
        qualifier = self.rng.choice(("__constant__", "__device__ const", "static __constant__", "__device__"))
        self.declare(f"{qualifier} unsigned {name}[8] = {{{words}}};")
        return expressions.table(name, entries, at)

    # ---- steps ----

    def assign(self, scope: Scope, depth: int = 2) -> Step:
        """Combines `x` with an expression, usually so that no information in `x` is lost."""
        value = self.expr(scope, depth, with_x=self.flip(0.15))
        name, sign = self.rng.choice((("add", "+="), ("xor", "^="), ("sub", "-=")))
        combined = expressions.binary(name, expressions.X, value)
        return Step(f"x {sign} {value.text};", lambda m, v: m.assign(v, "x", combined.value(m, v)))

    def body(self, scope: Scope, steps: int | None = None) -> Step:
        """Draws several steps. The first one reads the indices, so that a wrongly executed body changes the result."""
        drawn = [self.assign(scope)]
        for _ in range(self.rng.randint(1, 3) if steps is None else steps):
            made = self.any_step(scope)
            drawn.append(made)
        return sequence(drawn)

    def any_step(self, scope: Scope) -> Step:
        """Draws a step, call or control structure that the scope allows."""
        self.steps_left -= 1
        if self.steps_left <= 0:
            return self.assign(scope)
        if scope.depth < 4 and self.flip(0.55):
            return self.call(scope)
        allowed = [name for name, kind in STEPS.items() if self._allows(scope, kind)]
        return self._make(STEPS, self.bag.draw(allowed), scope)

    def call(self, scope: Scope) -> Step:
        """Draws a call in one of the forms."""
        allowed = [name for name, kind in FORMS.items() if self._allows(scope, kind)]
        return self._make(FORMS, self.bag.draw(allowed), scope)

    def _make(self, kinds: dict[str, Kind], name: str, scope: Scope) -> Step:
        kind = kinds[name]
        self.tags.append(name)
        self.shared_left -= kind.shared
        if kind.header:
            self.includes.add(kind.header)
        return kind.make(self, scope)

    def _allows(self, scope: Scope, kind: Kind) -> bool:
        return (
            kind.level <= scope.level
            and kind.shared <= self.shared_left
            and (kind.after_return or not scope.returned)
            and (not kind.whole_warps or self.whole_warps)
            and (not kind.header or self.allow_groups)
            and kind.bodies <= max(1, self.steps_left)
        )

    # ---- bodies of calls ----

    def capture(self, scope: Scope, uniform: bool | None = None) -> Capture:
        """Draws a value for a body that is called from the scope."""
        is_uniform = self.flip() if uniform is None else uniform
        return Capture(self.name("k"), self.uniform(scope) if is_uniform else self.expr(scope), is_uniform)

    def captures(self, scope: Scope, at_most: int = 2) -> list[Capture]:
        """Draws values for a body. They may include the mask of the scope, so that the body can synchronise the active
        lanes."""
        made = [self.capture(scope) for _ in range(self.rng.randint(1, at_most))]
        if scope.mask and self.flip(0.8):
            made.append(Capture(self.name("mask"), expressions.variable(scope.mask), False))
        return made

    @staticmethod
    def inside(scope: Scope, captures: Sequence[Capture] = ()) -> Scope:
        """Returns the scope of a body that can use only its captures."""
        mask = next((c.name for c in captures if c.name.startswith("mask")), "")
        level = LANE if scope.mask and not mask else scope.level
        return replace(
            scope,
            level=level,
            mask=mask,
            names=tuple(c.name for c in captures),
            uniform=frozenset(c.name for c in captures if c.uniform),
            depth=scope.depth + 1,
        )


def called(text: str, body: Step, captures: Sequence[Capture] = ()) -> Step:
    """Returns the call of a body that can use only its captures, which are evaluated before the call."""

    def run(m: Machine, v: Values) -> None:
        own = {"x": v["x"], **{c.name: c.value.value(m, v) for c in captures}}
        body.run(m, own)
        m.assign(v, "x", own["x"])

    return Step(text, run)


def nested(text: str, body: Step) -> Step:
    """Returns a body that can use the variables of the enclosing function; variables that it declares end with it."""

    def run(m: Machine, v: Values) -> None:
        own = dict(v)
        body.run(m, own)
        for name in v:
            v[name] = own[name]

    return Step(text, run)


def sequence(steps: Sequence[Step]) -> Step:
    """Returns the steps, one after another, as one block of statements."""

    def run(m: Machine, v: Values) -> None:
        for each in steps:
            each.run(m, v)

    return Step("\n".join(each.text for each in steps), run)
