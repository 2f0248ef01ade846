"""Steps in which the lanes of a warp synchronise: shuffles, votes, matches, reductions, exchange under `__syncwarp`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tests.support.cpu.differential.expressions import Expr, modulo, popc, unsigned
from tests.support.cpu.differential.generator import MAX_THREADS, REGION, WARP, Generator, Scope, Step, sequence, step
from tests.support.cpu.differential.machine import Machine, Values

FULL = "0xffffffffu"


def exact_mask(g: Generator, scope: Scope) -> tuple[str, str]:
    """Returns a declaration, and the name of a mask of exactly the active lanes."""
    if scope.mask:
        return "", scope.mask
    name = g.name("m")
    if not scope.returned and g.flip():
        return f"const unsigned {name} = lanes(); ", name
    return f"const unsigned {name} = __ballot_sync({FULL}, 1); ", name


def loose_mask(g: Generator, scope: Scope, exact: str) -> str:
    """Returns a mask that may include lanes that have returned or do not exist: such lanes are ignored."""
    return exact if scope.mask or g.flip() else FULL


def shuffled(m: Machine, values: np.ndarray, source: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Returns for each thread the value of lane `source` of its warp if that lane is active, else `otherwise`."""
    lanes, active = m.warps(values), m.warps(m.active)
    places = m.warps(source).astype(int)
    got = np.take_along_axis(lanes, places, axis=2)
    there = np.take_along_axis(active, places, axis=2)
    return np.where(m.by_thread(there), m.by_thread(got), otherwise)


_TYPES: dict[str, tuple[str, Callable[[str], str]]] = {
    "unsigned": ("{}", lambda y: y),
    "int": ("(int)({})", lambda y: f"(unsigned)({y})"),
    "unsigned long long": ("(unsigned long long)({}) << 20 | 77u", lambda y: f"(unsigned)(({y}) >> 20)"),
    "long long": ("(long long)({})", lambda y: f"(unsigned)({y})"),
    "double": ("(double)({})", lambda y: f"(unsigned)({y})"),
    "float": ("__uint_as_float(({}) & 0x3fffffffu)", lambda y: f"__float_as_uint({y})"),
}


@step(WARP)
def shuffle(g: Generator, scope: Scope) -> Step:
    """Three shuffles."""
    return sequence([_shuffle(g, scope) for _ in range(3)])


def _shuffle(g: Generator, scope: Scope) -> Step:
    """The four shuffles, in tiles of 2 to 32 lanes. The value from an inactive source lane is undefined, so it is
    dropped."""
    declared, mask = exact_mask(g, scope)
    width = g.pick("width", (2, 4, 8, 16, 32, 32))
    value, name = g.varying(scope), g.name("y")
    kind = g.pick("shuffled type", tuple(_TYPES))
    there, back = _TYPES[kind]
    arguments, source_text, source = _source(g, scope, width)
    call = f"{arguments[0]}({loose_mask(g, scope, mask)}, {there.format(unsigned(value))}, {arguments[1]}"
    call += ")" if width == 32 and g.flip() else f", {width})"
    text = (
        f"{{ {declared}const {kind} {name} = {call};\n"
        f"const unsigned {name}_s = {source_text}; x += ({mask} >> {name}_s & 1u) ? {back(name)} : 5u; }}"
    )

    def run(m: Machine, v: Values) -> None:
        values = value.value(m, v)
        if kind == "float":
            values = values & np.uint32(0x3FFFFFFF)
        lane = m.rank % np.uint32(32)
        got = shuffled(m, values, source(m, v, lane), m.full(5))
        m.assign(v, "x", v["x"] + got)

    return Step(text, run)


Source = Callable[[Machine, Values, np.ndarray], np.ndarray]


def _source(g: Generator, scope: Scope, width: int) -> tuple[tuple[str, str], str, Source]:
    """Returns a shuffle's name and argument, and the lane that it reads according to the PTX definition."""
    kind = g.pick("shuffle", ("", "_up", "_down", "_xor"))
    name, last = f"__shfl{kind}_sync", width - 1
    if kind == "":
        place = g.expr(scope, 1)
        return (
            (name, f"(int){unsigned(place)}"),
            f"(lane() & {31 & ~last}u) | ({place.text} & {last}u)",
            lambda m, v, lane: lane & np.uint32(31 & ~last) | place.value(m, v) & np.uint32(last),
        )
    delta = g.rng.randint(1, max(1, last))
    if kind == "_up":
        condition, moved = f"(lane() & {last}u) >= {delta}u", f"lane() - {delta}u"
        return (
            (name, f"{delta}u"),
            f"{condition} ? {moved} : lane()",
            lambda m, v, lane: np.where((lane & np.uint32(last)) >= delta, lane - np.uint32(delta), lane),
        )
    if kind == "_down":
        return (
            (name, f"{delta}u"),
            f"(lane() & {last}u) + {delta}u <= {last}u ? lane() + {delta}u : lane()",
            lambda m, v, lane: np.where((lane & np.uint32(last)) + delta <= last, lane + np.uint32(delta), lane),
        )
    delta = g.rng.randint(1, 31)  # with a delta above the width, a lane could only read lanes of earlier tiles
    return (
        (name, str(delta)),
        f"(lane() ^ {delta}u) <= (lane() | {last}u) ? lane() ^ {delta}u : lane()",
        lambda m, v, lane: np.where(
            (lane ^ np.uint32(delta)) <= (lane | np.uint32(last)), lane ^ np.uint32(delta), lane
        ),
    )


@step(WARP)
def vote(g: Generator, scope: Scope) -> Step:
    """Two votes."""
    return sequence([_vote(g, scope) for _ in range(2)])


def _vote(g: Generator, scope: Scope) -> Step:
    """`__ballot_sync`, `__any_sync`, `__all_sync`."""
    predicate, name = modulo(g.expr(scope), g.rng.choice((2, 3, 50))), g.name("y")
    mask = scope.mask or FULL
    kind = g.pick("vote", ("ballot", "any", "all"))
    value = {"ballot": name, "any": f"(unsigned)({name} != 0)", "all": f"(unsigned)({name} != 0)"}[kind]
    held = {"ballot": "const unsigned", "any": "const int", "all": "const int"}[kind]
    text = f"{{ {held} {name} = __{kind}_sync({mask}, (int){unsigned(predicate)}); x = x * 3u + {value}; }}"

    def run(m: Machine, v: Values) -> None:
        ballot = m.ballot(predicate.truth(m, v))
        if kind == "any":
            ballot = (ballot != 0).astype(np.uint32)
        elif kind == "all":
            ballot = (ballot == m.mask()).astype(np.uint32)
        m.assign(v, "x", v["x"] * np.uint32(3) + ballot)

    return Step(text, run)


@step(WARP)
def match(g: Generator, scope: Scope) -> Step:
    """Two matches."""
    return sequence([_match(g, scope) for _ in range(2)])


def _match(g: Generator, scope: Scope) -> Step:
    """`__match_any_sync` and `__match_all_sync`."""
    declared, mask = exact_mask(g, scope)
    value, name, every = modulo(g.expr(scope), g.rng.choice((1, 2, 5))), g.name("y"), g.pick("match", (True, False))
    kind = g.rng.choice(("unsigned", "unsigned long long", "int"))
    argument = f"({kind}){unsigned(value)}"
    if every:
        text = (
            f"{{ {declared}int {name}_p; const unsigned {name} = __match_all_sync({mask}, {argument}, &{name}_p); "
            f"x += {name} ^ (unsigned)({name}_p != 0); }}"
        )
    else:
        text = f"{{ {declared}x ^= __match_any_sync({mask}, {argument}) * 3u; }}"

    def run(m: Machine, v: Values) -> None:
        values, result = value.value(m, v), m.full(0)
        for block, ranks, lanes in m.each_warp():
            here = values[block, ranks]
            if every:
                same = bool((here == here[0]).all())
                result[block, ranks] = np.uint32(lanes ^ 1 if same else 0)
            else:
                for each in set(here.tolist()):
                    among = ranks[here == each]
                    mine = sum(1 << int(rank) % 32 for rank in among)
                    result[block[: len(among)], among] = np.uint32(mine * 3 & 0xFFFFFFFF)
        m.assign(v, "x", v["x"] + result if every else v["x"] ^ result)

    return Step(text, run)


_REDUCTIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("unsigned", lambda a, b: (a + b) & 0xFFFFFFFF),
    "min": ("unsigned", min),
    "max": ("unsigned", max),
    "and": ("unsigned", lambda a, b: a & b),
    "or": ("unsigned", lambda a, b: a | b),
    "xor": ("unsigned", lambda a, b: a ^ b),
}


def by_warp(m: Machine, values: np.ndarray, combine: Callable[[int, int], int]) -> np.ndarray:
    """Returns for each thread the values of the active lanes of its warp, combined by `combine`."""
    result = m.full(0)
    for block, ranks, _ in m.each_warp():
        result[block, ranks] = np.uint32(functools.reduce(combine, values[block, ranks].tolist()) & 0xFFFFFFFF)
    return result


@step(WARP)
def reduce_sync(g: Generator, scope: Scope) -> Step:
    """Two reductions."""
    return sequence([_reduce_sync(g, scope) for _ in range(2)])


def _reduce_sync(g: Generator, scope: Scope) -> Step:
    """`__reduce_*_sync`, signed and unsigned."""
    declared, mask = exact_mask(g, scope)
    kind = g.pick("reduction", tuple(_REDUCTIONS))
    _, combine = _REDUCTIONS[kind]
    value, signed = g.varying(scope), kind in ("add", "min", "max") and g.flip()
    argument = f"(int){unsigned(value)}" if signed else unsigned(value)
    text = f"{{ {declared}x ^= (unsigned)__reduce_{kind}_sync({mask}, {argument}); }}"

    def run(m: Machine, v: Values) -> None:
        values = value.value(m, v)
        if signed:
            values = values.view(np.int32)
        m.assign(v, "x", v["x"] ^ by_warp(m, values, combine))

    return Step(text, run)


@step(WARP)
def butterfly(g: Generator, scope: Scope) -> Step:
    """The usual loop over `__shfl_xor_sync` or `__shfl_down_sync`, in which inactive lanes are left out."""
    declared, mask = exact_mask(g, scope)
    value, name = g.varying(scope), g.name("s")
    text = (
        f"{{ {declared}unsigned {name} = {value.text};\n"
        f"for (int o = 16; o > 0; o >>= 1) {{ const unsigned y = __shfl_xor_sync({mask}, {name}, o); "
        f"if ({mask} >> (lane() ^ o) & 1u) {name} = {name} * 3u + y; }}\nx += {name}; }}"
    )

    def run(m: Machine, v: Values) -> None:
        sums, lane, active = value.value(m, v), m.rank % np.uint32(32), m.mask()
        for offset in (16, 8, 4, 2, 1):
            source = lane ^ np.uint32(offset)
            other = shuffled(m, sums, source, sums)
            sums = np.where(active >> source & np.uint32(1), sums * np.uint32(3) + other, sums)
        m.assign(v, "x", v["x"] + sums)

    return Step(text, run)


@step(WARP)
def warp_scan(g: Generator, scope: Scope) -> Step:
    """An inclusive sum over the active lanes with `__shfl_up_sync`."""
    declared, mask = exact_mask(g, scope)
    value, name = g.varying(scope), g.name("s")
    text = (
        f"{{ {declared}unsigned {name} = {value.text};\n"
        f"#pragma unroll\nfor (unsigned o = 1; o < 32; o *= 2) {{ const unsigned y = __shfl_up_sync({mask}, {name}, o); "
        f"if (lane() >= o && ({mask} >> (lane() - o) & 1u)) {name} += y; }}\nx ^= {name}; }}"
    )

    def run(m: Machine, v: Values) -> None:
        sums, lane, active = value.value(m, v), m.rank % np.uint32(32), m.mask()
        for offset in (1, 2, 4, 8, 16):
            inside = lane >= offset
            source = np.where(inside, lane - np.uint32(offset), lane).astype(np.uint32)
            other = shuffled(m, sums, source, sums)
            inside = inside & ((active >> source & np.uint32(1)) != 0)
            sums = np.where(inside, sums + other, sums)
        m.assign(v, "x", v["x"] ^ sums)

    return Step(text, run)


@step(WARP, shared=1)
def warp_exchange(g: Generator, scope: Scope) -> Step:
    """Exchange through shared memory between lanes that synchronise at `__syncwarp`."""
    declared, mask = exact_mask(g, scope)
    value, other, name = g.varying(scope), modulo(g.expr(scope, 1), 32), g.name("line")
    meeting = f"__syncwarp({loose_mask(g, scope, mask)});"
    text = (
        f"{{ {declared}__shared__ unsigned {name}[{MAX_THREADS}]; {name}[rank()] = {value.text}; {meeting}\n"
        f"const unsigned {name}_l = {other.text}; "
        f"const unsigned {name}_y = ({mask} >> {name}_l & 1u) ? {name}[rank() / 32u * 32u + {name}_l] : 9u; {meeting}\n"
        f"x = x * 7u + {name}_y; }}"
    )

    def run(m: Machine, v: Values) -> None:
        got = shuffled(m, value.value(m, v), other.value(m, v), m.full(9))
        m.assign(v, "x", v["x"] * np.uint32(7) + got)

    return Step(text, run)


@step(WARP)
def aggregated_atomic(g: Generator, scope: Scope) -> Step:
    """A single atomic operation for all lanes with the same key, executed by the first of them."""
    first = g.region()
    if first is None:
        return vote(g, scope)
    declared, mask = exact_mask(g, scope)
    key, name = modulo(g.expr(scope), REGION), g.name("same")
    text = (
        f"{{ {declared}const unsigned {name}_k = {key.text}, {name} = __match_any_sync({mask}, {name}_k);\n"
        f"if (lane() + 1u == (unsigned)__ffs((int){name})) atomicAdd(e.cells + {first}u + {name}_k, "
        f"(unsigned)__popc({name}));\n__syncwarp({mask}); x += (unsigned)__popc({name} & ((1u << lane()) - 1u)); }}"
    )

    def run(m: Machine, v: Values) -> None:
        keys, places = key.value(m, v), m.full(0)
        for each in range(REGION):
            lanes = m.ballot(keys == each)
            before = popc(lanes & ((np.uint32(1) << m.rank % np.uint32(32)) - np.uint32(1)))
            places = np.where(keys == each, before, places)
            m.cells[first + each] += np.uint32(((keys == each) & m.active).sum())
        m.assign(v, "x", v["x"] + places)

    return Step(text, run)


def first_lane(mask: str) -> str:
    """Returns the expression for the lowest lane of a mask."""
    return f"((unsigned)__ffs((int){mask}) - 1u)"


@step(WARP)
def broadcast(g: Generator, scope: Scope) -> Step:
    """The value of the first active lane, as after an election."""
    declared, mask = exact_mask(g, scope)
    value: Expr = g.varying(scope)
    text = f"{{ {declared}x ^= __shfl_sync({mask}, {unsigned(value)}, (int){first_lane(mask)}); }}"

    def run(m: Machine, v: Values) -> None:
        values, result = value.value(m, v), m.full(0)
        for block, ranks, _ in m.each_warp():
            result[block, ranks] = values[block[0], ranks[0]]
        m.assign(v, "x", v["x"] ^ result)

    return Step(text, run)
