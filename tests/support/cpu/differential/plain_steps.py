"""Steps of single threads: arithmetic of other types, local memory, atomics on global memory, control flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.support.cpu.differential.expressions import X, binary, modulo, unsigned
from tests.support.cpu.differential.generator import (
    BLOCK,
    LANE,
    REGION,
    WARP,
    Generator,
    Scope,
    Step,
    nested,
    sequence,
    step,
)
from tests.support.cpu.differential.machine import Machine, Values

U64 = np.uint64


@step(LANE)
def declare(g: Generator, scope: Scope) -> Step:
    """A variable whose value changes `x` immediately, so that wrong indices change the result."""
    name, value = g.name("t"), g.expr(scope)

    def run(m: Machine, v: Values) -> None:
        m.assign(v, "x", v["x"] * np.uint32(5) + value.value(m, v))

    return Step(f"{{ const unsigned {name} = {value.text}; x = x * 5u + {name}; }}", run)


@step(LANE)
def wide_integers(g: Generator, scope: Scope) -> Step:
    """64-bit integers."""
    value, factor, shift = g.expr(scope), g.rng.getrandbits(60) | 1, g.rng.randint(1, 40)
    name = g.name("w")
    text = (
        f"{{ unsigned long long {name} = (unsigned long long)x * {factor}ull + {unsigned(value)}; "
        f"x = (unsigned)({name} >> {shift}) ^ (unsigned){name}; }}"
    )

    def run(m: Machine, v: Values) -> None:
        product = v["x"].astype(U64) * U64(factor) + value.value(m, v).astype(U64)
        m.assign(v, "x", (product >> U64(shift)).astype(np.uint32) ^ product.astype(np.uint32))

    return Step(text, run)


@step(LANE)
def exact_floats(g: Generator, scope: Scope) -> Step:
    """float and double arithmetic on values that both types represent exactly, so that rounding and contraction have no
    effect."""
    value, kind, name = g.expr(scope), g.rng.choice(("float", "double")), g.name("f")
    suffix = "f" if kind == "float" else ""
    text = (
        f"{{ {kind} {name} = ({kind})({value.text} & 1023u) * 0.25{suffix} - 17.5{suffix}; "
        f"{name} = {name} * 2.0{suffix} + ({kind})(x & 255u); x ^= (unsigned)(int)({name} * 2.0{suffix}); }}"
    )

    def run(m: Machine, v: Values) -> None:
        first = (value.value(m, v) & np.uint32(1023)).astype(np.float64) * 0.25 - 17.5
        second = first * 2 + (v["x"] & np.uint32(255))
        m.assign(v, "x", v["x"] ^ (second * 2).astype(np.int32).view(np.uint32))

    return Step(text, run)


@step(LANE)
def local_array(g: Generator, scope: Scope) -> Step:
    """An array in local memory, indexed by values."""
    values, at, name = [g.expr(scope, 1) for _ in range(4)], g.expr(scope, 1), g.name("a")
    text = (
        f"{{ unsigned {name}[4] = {{{', '.join(unsigned(each) for each in values)}}}; "
        f"{name}[{at.text} & 3u] += x; for (unsigned i = 0; i < 4; ++i) x = x * 3u + {name}[i]; }}"
    )

    def run(m: Machine, v: Values) -> None:
        array = np.stack([each.value(m, v) for each in values])
        chosen = at.value(m, v) & np.uint32(3)
        x = v["x"]
        array = array + np.where(np.arange(4, dtype=np.uint32)[:, None, None] == chosen, x, np.uint32(0))
        for each in array:
            x = x * np.uint32(3) + each
        m.assign(v, "x", x)

    return Step(text, run)


Update = Callable[[int, int], int]
WORD = 0xFFFFFFFF
ATOMICS: dict[str, tuple[str, Update]] = {
    "Add": ("atomicAdd(&{0}, {1})", lambda old, value: (old + value) & WORD),
    "Sub": ("atomicSub(&{0}, {1})", lambda old, value: (old - value) & WORD),
    "Min": ("atomicMin(&{0}, {1})", min),
    "Max": ("atomicMax(&{0}, {1})", max),
    "And": ("atomicAnd(&{0}, {1})", lambda old, value: old & value),
    "Or": ("atomicOr(&{0}, {1} & 0x10101u)", lambda old, value: old | value & 0x10101),
    "Xor": ("atomicXor(&{0}, {1})", lambda old, value: old ^ value),
    "Inc": ("atomicInc(&{0}, 1000u)", lambda old, value: 0 if old >= 1000 else old + 1),
    "Dec": ("atomicDec(&{0}, 1000u)", lambda old, value: 1000 if old == 0 or old > 1000 else old - 1),
    "CAS": (
        "{{ unsigned seen = {0}, assumed; "
        "do {{ assumed = seen; seen = atomicCAS(&{0}, assumed, assumed * ({1} | 1u)); }} while (seen != assumed); }}",
        lambda old, value: old * (value | 1) & WORD,
    ),
}
"""Operations whose result does not depend on the order of the threads."""


@step(LANE)
def global_atomic(g: Generator, scope: Scope) -> Step:
    """An atomic operation on cells that no other step uses."""
    first = g.region()
    if first is None:
        return g.assign(scope)
    call, update = ATOMICS[g.pick("atomic", tuple(ATOMICS))]
    at, value = modulo(g.expr(scope), REGION), g.expr(scope)
    text = call.format(f"e.cells[{first}u + {at.text}]", unsigned(value))
    if text.startswith("{"):  # a loop: the cell and the value are computed once, before it
        name = g.name("p")
        text = (
            f"{{ unsigned* {name} = e.cells + {first}u + {at.text}; const unsigned {name}_v = {value.text}; "
            + call.format(f"*{name}", f"{name}_v").replace("seen = *", "seen = *(volatile unsigned*)", 1)
            + " }"
        )

    def run(m: Machine, v: Values) -> None:
        places, values = first + at.value(m, v)[m.active].astype(int), value.value(m, v)[m.active]
        for place, each in zip(places.tolist(), values.tolist(), strict=True):
            m.cells[place] = update(int(m.cells[place]), each)

    return Step(text if text.endswith("}") else text + ";", run)


@step(LANE)
def wide_atomic(g: Generator, scope: Scope) -> Step:
    """A 64-bit atomic operation."""
    first = g.region()
    if first is None:
        return g.assign(scope)
    name, update = g.rng.choice(
        (
            ("atomicAdd", lambda old, value: (old + value) & (1 << 64) - 1),
            ("atomicMax", max),
            ("atomicMin", min),
            ("atomicXor", lambda old, value: old ^ value),
        )
    )
    at, value = modulo(g.expr(scope), REGION // 2), g.expr(scope)
    text = (
        f"{name}((unsigned long long*)(e.cells + {first}u) + {at.text}, "
        f"(unsigned long long){unsigned(value)} * 0x10000001ull);"
    )

    def run(m: Machine, v: Values) -> None:
        words = m.cells[first : first + REGION].view(U64)
        places, values = at.value(m, v)[m.active].astype(int), value.value(m, v)[m.active]
        for place, each in zip(places.tolist(), values.tolist(), strict=True):
            words[place] = update(int(words[place]), each * 0x10000001)

    return Step(text, run)


@step(LANE)
def divergent_if(g: Generator, scope: Scope) -> Step:
    """A condition that differs between threads of a warp."""
    condition = modulo(g.expr(scope), g.rng.choice((2, 3)))
    alone = replace(scope, level=LANE, mask="")
    return branches(condition.text, condition.truth, g.body(alone, 1), g.body(alone, 1) if g.flip() else None)


def branches(text: str, condition: Callable[[Machine, Values], np.ndarray], yes: Step, no: Step | None = None) -> Step:
    """Returns `if` and `else` around bodies that can use the variables of the enclosing function."""
    whole = f"if ({text}) {{\n{yes.text}\n}}"
    then, otherwise = nested("", yes), nested("", no) if no else None
    if no:
        whole += f" else {{\n{no.text}\n}}"

    def run(m: Machine, v: Values) -> None:
        before, holds = m.active, condition(m, v)
        for branch, taken in ((then, holds), (otherwise, ~holds)):
            m.active = before & taken
            if branch and m.active.any():
                branch.run(m, v)
        m.active = before

    return Step(whole, run)


def loop(
    g: Generator, scope: Scope, count: str, rounds: Callable[[Machine, Values], np.ndarray], uniform: bool
) -> Step:
    """Returns `for` around a body; `count` is evaluated once, before the loop. `uniform`: the loop variable has the same
    value in all threads of the block."""
    name = g.name("i")
    inner = replace(
        scope,
        names=(*scope.names, name),
        uniform=scope.uniform | {name} if uniform else scope.uniform,
        loops=scope.loops + 1,
    )
    body = g.body(inner, 1)
    text = f"for (unsigned {name} = 0, {name}_n = {count}; {name} < {name}_n; ++{name}) {{\n{body.text}\n}}"

    def run(m: Machine, v: Values) -> None:
        before, own, limit = m.active, dict(v), rounds(m, v)
        for at in range(int(limit[before].max(initial=0))):
            m.active = before & (limit > at)
            own[name] = m.full(at)
            body.run(m, own)
        m.active = before
        for each in v:
            v[each] = own[each]

    return Step(text, run)


@step(LANE)
def divergent_loop(g: Generator, scope: Scope) -> Step:
    """A loop whose number of rounds differs between threads."""
    rounds = modulo(g.expr(scope), 3)
    return loop(g, replace(scope, level=LANE, mask=""), rounds.text, rounds.value, False)


@step(LANE)
def switch_fallthrough(g: Generator, scope: Scope) -> Step:
    """`switch` with a case that falls through."""
    selector, alone = modulo(g.expr(scope), 4), replace(scope, level=LANE, mask="")
    first, second, third = (g.assign(alone, 1) for _ in range(3))
    text = (
        f"switch ({unsigned(selector)}) {{\ncase 0: {{ {first.text} }}\ncase 1: {{ {second.text} break; }}\n"
        f"case 2: break;\ndefault: {{ {third.text} }}\n}}"
    )

    def run(m: Machine, v: Values) -> None:
        before, chosen = m.active, selector.value(m, v)
        for case, taken in ((first, chosen == 0), (second, chosen <= 1), (third, chosen == 3)):
            m.active = before & taken
            case.run(m, v)
        m.active = before

    return Step(text, run)


@step(LANE)
def short_circuit(g: Generator, scope: Scope) -> Step:
    """Side effects in the operands of `&&`, `||` and the conditional operator."""
    first, second = modulo(g.expr(scope), 2), modulo(g.expr(scope, 1), 3)
    name = g.name("hit")
    text = (
        f"{{ unsigned {name} = 0; if ({first.text} && (({name} = 1), {second.text})) x += 77u; x = x * 3u + {name}; }}"
    )

    def run(m: Machine, v: Values) -> None:
        one = first.truth(m, v)
        both = one & second.truth(m, v)
        m.assign(v, "x", (v["x"] + both.astype(np.uint32) * np.uint32(77)) * np.uint32(3) + one.astype(np.uint32))

    return Step(text, run)


# ---- control flow that keeps threads together ----


@step(BLOCK)
def uniform_if(g: Generator, scope: Scope) -> Step:
    """A condition that has the same value in all threads of a block: barriers inside are reached by all threads or by
    none."""
    condition = modulo(g.uniform(scope), 2)
    return branches(condition.text, condition.truth, g.body(scope), g.body(scope, 1) if g.flip() else None)


@step(BLOCK)
def always_true(g: Generator, scope: Scope) -> Step:
    """A condition that depends on the thread but is true in all of them, like `if (i < n)` if n covers the grid."""
    text = g.rng.choice(("threadIdx.x < blockDim.x", "rank() < threads()", "lane() < 32u", "(x | 1u) != 0u"))
    return branches(text, lambda m, v: np.ones(m.shape, bool), g.body(scope))


@step(BLOCK)
def uniform_loop(g: Generator, scope: Scope) -> Step:
    """A loop with the same number of rounds in all threads of the block."""
    if scope.loops > 1:
        return uniform_if(g, scope)
    rounds = modulo(g.uniform(scope), 3)
    # adds 0 in such a way that the compiler cannot see that the number of rounds is uniform
    plus = binary("add", rounds, modulo(X, 1))
    chosen = plus if g.flip() else rounds
    return loop(g, scope, chosen.text, rounds.value, True)


@step(WARP)
def warp_if(g: Generator, scope: Scope) -> Step:
    """A condition that has the same value in all threads of a warp."""
    inner = replace(scope, level=WARP)
    parity = g.rng.randint(0, 1)
    yes, no = g.body(inner, 1), g.body(inner, 1) if g.flip() else None
    return branches(
        f"(rank() / 32u & 1u) == {parity}u", lambda m, v: (m.rank // np.uint32(32) & np.uint32(1)) == parity, yes, no
    )


@step(WARP)
def mask_if(g: Generator, scope: Scope) -> Step:
    """Branches in which lanes synchronise under the mask of the lanes that took the branch."""
    predicate, name = modulo(g.expr(scope), 3), g.name("mask")
    names = (*scope.names, name)
    taken = replace(scope, level=WARP, mask=name, names=names)
    others = replace(scope, level=WARP, mask=f"{name}_n", names=(*scope.names, f"{name}_n"))
    around = scope.mask or "0xffffffffu"
    yes, no = g.body(taken), g.body(others, 1) if g.flip() else None
    text = (
        f"const bool {name}_p = {predicate.text};\nconst unsigned {name} = __ballot_sync({around}, {name}_p), "
        f"{name}_n = __ballot_sync({around}, !{name}_p);"
    )
    branch = branches(f"{name}_p", predicate.truth, yes, no)

    def run(m: Machine, v: Values) -> None:
        own, holds = dict(v), predicate.truth(m, v)
        own[name], own[f"{name}_n"] = m.ballot(holds), m.ballot(~holds)
        branch.run(m, own)
        for each in v:
            v[each] = own[each]

    meeting = f"__syncwarp({scope.mask});" if scope.mask else "__syncwarp();"
    return Step(f"{{\n{text}\n{branch.text}\n{meeting}\n}}", run)


__all__ = ["ATOMICS", "branches", "loop", "sequence"]
