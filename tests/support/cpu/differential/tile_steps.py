"""Steps of cooperative groups: nested tiles, partitions of tiles, the block as a group.

They require blocks of whole warps, because every lane of a tile must exist.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.support.cpu.differential.expressions import Expr, modulo, unsigned
from tests.support.cpu.differential.generator import BLOCK, MAX_THREADS, Generator, Scope, Step, step
from tests.support.cpu.differential.machine import Machine, Values

HEADER = "cooperative_groups.h"
REDUCE = "cooperative_groups/reduce.h"
SCAN = "cooperative_groups/scan.h"

Groups = Callable[[Machine, Values], Iterator[tuple[int, np.ndarray]]]
"""The groups that execute a statement: the block of each, and the ranks in the block of its members, in the order of their
ranks in the group."""


@dataclass
class Group:
    """A group in a variable: its name in the text, and its members."""

    name: str
    members: Groups
    size: int = 0
    """The number of members if it is a constant, otherwise 0."""

    def each(self, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
        """Applies a function of a group's values and of its members' ranks within it to all groups."""

        def run(m: Machine, v: Values, values: np.ndarray) -> np.ndarray:
            result = m.full(0)
            for block, ranks in self.members(m, v):
                if m.active[block, ranks[0]]:
                    own = np.arange(len(ranks), dtype=np.uint32)
                    result[block, ranks] = function(values[block, ranks], own)
            return result

        return run


def tile(name: str, size: int) -> Group:
    def members(m: Machine, v: Values) -> Iterator[tuple[int, np.ndarray]]:
        for block in range(m.blocks):
            for first in range(0, m.threads, size):
                yield block, first + np.arange(size)

    return Group(name, members, size)


@step(BLOCK, after_return=False, whole_warps=True, header=HEADER)
def nested_tiles(g: Generator, scope: Scope) -> Step:
    """Tiles of tiles, each with its index in its parent, and an operation in the innermost tile."""
    sizes = sorted(g.rng.sample((1, 2, 4, 8, 16, 32), g.rng.randint(1, 3)), reverse=True)
    names, lines = [g.name("tile") for _ in sizes], []
    parent = "cg::this_thread_block()"
    for name, size in zip(names, sizes, strict=True):
        if size == 1 and len(names) > 1 and g.flip(0.3):
            lines.append(f"const cg::thread_block_tile<1> {name} = cg::tiled_partition<1>({parent});")
        else:
            lines.append(f"auto {name} = cg::tiled_partition<{size}>({parent});")
        lines.append(
            f"x = x * 5u + (unsigned){name}.thread_rank() + 64u * (unsigned){name}.meta_group_rank() "
            f"+ 4096u * (unsigned){name}.meta_group_size() + 65536u * (unsigned){name}.size();"
        )
        parent = name
    inner = operations(g, scope, tile(names[-1], sizes[-1]))
    text = "{\n" + "\n".join(lines) + "\n" + inner.text + "\n}"

    def run(m: Machine, v: Values) -> None:
        outer = m.threads
        for size in sizes:
            within = m.rank % np.uint32(size)
            place, count = m.rank % np.uint32(outer) // np.uint32(size), -(-outer // size)
            known = within + np.uint32(64) * place + np.uint32((4096 * count + 65536 * size) & 0xFFFFFFFF)
            m.assign(v, "x", v["x"] * np.uint32(5) + known)
            outer = size
        inner.run(m, v)

    return Step(text, run)


def operations(g: Generator, scope: Scope, group: Group) -> Step:
    """Two operations of a group, executed directly or in a function template that accepts any group."""
    made = [g.pick("tile operation", _OPERATIONS)(g, scope, group) for _ in range(2)]
    if g.flip(0.4) and not scope.names:
        name = g.name("with")
        inner = re.sub(rf"\b{group.name}\b", "group", "\n".join(each.text for each in made))
        g.declare(
            f"template <class G> __device__ unsigned {name}(const G& group, unsigned x, Env e) {{\n{inner}\nreturn x; }}"
        )
        text = f"x = {name}({group.name}, x, e);"
    else:
        text = "\n".join(each.text for each in made)

    def run(m: Machine, v: Values) -> None:
        for each in made:
            each.run(m, v)

    return Step(text, run)


def _shuffle(g: Generator, scope: Scope, group: Group) -> Step:
    value, kind = g.varying(scope), g.pick("tile shuffle", ("shfl", "shfl_up", "shfl_down", "shfl_xor"))
    delta = g.rng.randrange(group.size)
    wide = g.flip(0.3)
    sent = f"(unsigned long long){unsigned(value)} << 9" if wide else unsigned(value)
    call = f"{group.name}.{kind}({sent}, {delta})"
    text = f"x = x * 3u + (unsigned)({call} >> 9);" if wide else f"x = x * 3u + {call};"
    own = np.arange(group.size)
    source = {
        "shfl": np.full(group.size, delta),
        "shfl_up": np.where(own >= delta, own - delta, own),
        "shfl_down": np.where(own + delta < group.size, own + delta, own),
        "shfl_xor": own ^ delta,
    }[kind]
    shuffled = group.each(lambda values, ranks: values[source])

    def run(m: Machine, v: Values) -> None:
        m.assign(v, "x", v["x"] * np.uint32(3) + shuffled(m, v, value.value(m, v)))

    return Step(text, run)


def _vote(g: Generator, scope: Scope, group: Group) -> Step:
    value, kind = (
        modulo(g.expr(scope), g.rng.choice((2, 3))),
        g.pick("tile vote", ("any", "all", "ballot", "match_any")),
    )
    call = f"{group.name}.{kind}((int){unsigned(value)})"
    text = f"x ^= (unsigned)({call} != 0) + 1u;" if kind in ("any", "all") else f"x ^= {call} + 1u;"

    def combined(values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        bits = np.uint64(1) << ranks.astype(np.uint64)
        if kind == "match_any":
            return np.array([int(bits[values == each].sum()) for each in values], np.uint32)
        result = {"any": (values != 0).any(), "all": (values != 0).all(), "ballot": bits[values != 0].sum()}[kind]
        return np.full(len(values), int(result), np.uint32)

    voted = group.each(combined)

    def run(m: Machine, v: Values) -> None:
        m.assign(v, "x", v["x"] ^ (voted(m, v, value.value(m, v)) + np.uint32(1)))

    return Step(text, run)


_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "plus": lambda a, b: (a + b) & 0xFFFFFFFF,
    "less": min,
    "greater": max,
    "bit_and": lambda a, b: a & b,
    "bit_or": lambda a, b: a | b,
    "bit_xor": lambda a, b: a ^ b,
}


def _reduce(g: Generator, scope: Scope, group: Group) -> Step:
    g.includes.add(REDUCE)
    value, kind = g.varying(scope), g.rng.choice(tuple(_FUNCTIONS))
    text = f"x ^= cg::reduce({group.name}, {unsigned(value)}, cg::{kind}<unsigned>());"
    reduced = group.each(
        lambda values, ranks: np.full(len(values), functools.reduce(_FUNCTIONS[kind], values.tolist()), np.uint32)
    )

    def run(m: Machine, v: Values) -> None:
        m.assign(v, "x", v["x"] ^ reduced(m, v, value.value(m, v)))

    return Step(text, run)


def _scan(g: Generator, scope: Scope, group: Group) -> Step:
    g.includes.add(SCAN)
    value, exclusive = g.varying(scope), g.flip()
    kind = "exclusive" if exclusive else "inclusive"
    text = f"x += cg::{kind}_scan({group.name}, {unsigned(value)}, cg::plus<unsigned>());"

    def summed(values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        sums = np.cumsum(values, dtype=np.uint32)
        return sums - values if exclusive else sums

    scanned = group.each(summed)

    def run(m: Machine, v: Values) -> None:
        m.assign(v, "x", v["x"] + scanned(m, v, value.value(m, v)))

    return Step(text, run)


def _sync(g: Generator, scope: Scope, group: Group) -> Step:
    """Exchange through shared memory between the members of a tile."""
    value, array = g.varying(scope), g.name("line")
    text = (
        f"{{ __shared__ unsigned {array}[{MAX_THREADS}]; {array}[rank()] = {value.text}; {group.name}.sync();\n"
        f"const unsigned y = {array}[rank() / {group.size}u * {group.size}u + {group.size - 1}u - "
        f"(unsigned){group.name}.thread_rank()]; cg::sync({group.name});\nx = x * 3u + y; }}"
    )
    turned = group.each(lambda values, ranks: values[::-1])

    def run(m: Machine, v: Values) -> None:
        m.assign(v, "x", v["x"] * np.uint32(3) + turned(m, v, value.value(m, v)))

    return Step(text, run)


_OPERATIONS: tuple[Callable[[Generator, Scope, Group], Step], ...] = (_shuffle, _vote, _reduce, _scan, _sync, _shuffle)


@step(BLOCK, after_return=False, whole_warps=True, header=HEADER)
def partition(g: Generator, scope: Scope) -> Step:
    """`binary_partition` and `labeled_partition` of a tile, and the results that the parts compute."""
    size, labels = g.rng.choice((4, 8, 16, 32)), g.rng.choice((2, 2, 3, 4))
    label, value, name = modulo(g.expr(scope), labels), g.varying(scope), g.name("part")
    tag = Expr(f"{name}_l", label.value)
    binary = labels == 2 and g.flip()
    call = (
        f"cg::binary_partition({name}_t, {tag.text} != 0u)"
        if binary
        else f"cg::labeled_partition({name}_t, {tag.text})"
    )
    g.includes.add(REDUCE)
    text = (
        f"{{ auto {name}_t = cg::tiled_partition<{size}>(cg::this_thread_block());\n"
        f"const unsigned {tag.text} = {label.text}; cg::coalesced_group {name} = {call};\n"
        f"x = x * 3u + (unsigned){name}.thread_rank() + 64u * (unsigned){name}.size() "
        f"+ 4096u * (unsigned){name}.meta_group_rank() + 65536u * (unsigned){name}.meta_group_size();\n"
        f"x ^= {name}.shfl({unsigned(value)}, 0);\n"
        f"x += cg::reduce({name}, x, cg::plus<unsigned>()) + {name}.ballot((int)(x & 1u)); {name}_t.sync(); }}"
    )

    def members(m: Machine, v: Values) -> Iterator[tuple[int, np.ndarray]]:
        tags = v["tags"]
        for block, ranks in tile("", size).members(m, v):
            for each in dict.fromkeys(tags[block, ranks].tolist()):
                yield block, ranks[tags[block, ranks] == each]

    parts = Group(name, members)

    def places(values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        return ranks + np.uint32(64 * len(ranks))

    def counted(m: Machine, v: Values) -> np.ndarray:
        result, tags = m.full(0), v["tags"]
        for block, ranks in tile("", size).members(m, v):
            order = list(dict.fromkeys(tags[block, ranks].tolist()))  # ordered by the first lane that has the label
            for each in order:
                place = int(each != 0 and len(order) == 2) if binary else order.index(each)
                result[block, ranks[tags[block, ranks] == each]] = np.uint32(4096 * place + 65536 * len(order))
        return result

    first = parts.each(lambda values, ranks: np.full(len(values), values[0], np.uint32))

    def summed(values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        ballot = sum(1 << at for at in np.flatnonzero(values & np.uint32(1)).tolist())
        return np.full(len(values), (int(values.sum(dtype=np.uint64)) + ballot) & 0xFFFFFFFF, np.uint32)

    def run(m: Machine, v: Values) -> None:
        own = {**v, "tags": label.value(m, v)}
        m.assign(own, "x", own["x"] * np.uint32(3) + parts.each(places)(m, own, own["x"]) + counted(m, own))
        m.assign(own, "x", own["x"] ^ first(m, own, value.value(m, own)))
        m.assign(own, "x", own["x"] + parts.each(summed)(m, own, own["x"]))
        v["x"] = own["x"]

    return Step(text, run)


@step(BLOCK, after_return=False, whole_warps=True, header=HEADER, shared=1)
def block_group(g: Generator, scope: Scope) -> Step:
    """The block as a group, passed to a function that accepts any group."""
    name, value = g.name("meet"), g.varying(scope)
    g.declare(
        f"template <class G> __device__ unsigned {name}(const G& group, unsigned mine) {{\n"
        f"__shared__ unsigned held[{MAX_THREADS}]; const unsigned r = (unsigned)group.thread_rank(), "
        f"n = (unsigned)group.size();\nheld[r] = mine; group.sync();\n"
        f"const unsigned y = held[(r + 1u) % n]; group.sync(); return y; }}"
    )
    text = (
        f"{{ const cg::thread_block {name}_b = cg::this_thread_block();\n"
        f"x = x * 3u + {name}({name}_b, {unsigned(value)}) + {name}_b.group_index().x * 5u + {name}_b.thread_index().y; }}"
    )

    def run(m: Machine, v: Values) -> None:
        got = np.roll(value.value(m, v), -1, axis=1)
        known = m.index["blockIdx.x"] * np.uint32(5) + m.index["threadIdx.y"]
        m.assign(v, "x", v["x"] * np.uint32(3) + got + known)

    return Step(text, run)
