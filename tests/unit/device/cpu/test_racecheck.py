"""Races in shared memory (HEARTH_CPU_RACECHECK): all existing races are found, with line and threads, and no others."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
import pytest

from hearth_proto.reasons import Reason
from hearthd.device.cpu.module import CpuModule
from hearthd.device.cpu.racecheck import MARK, Race, plain_name, refusal, text
from hearthd.device.cpu.toolchain import Toolchain, find_toolchain
from tests.support.cpu.kernels import compile_source, pack
from tests.support.cpu.racecheck_kernels import SOURCE, Checked


@pytest.fixture(scope="module")
def run() -> Checked:
    return Checked()


def line(mark: str) -> str:
    number = next(i for i, text in enumerate(SOURCE.split("\n"), 1) if f"[{mark}]" in text)
    return f"kernel.cu({number})"


def lines(races: Sequence[Race]) -> set[tuple[str, ...]]:
    return {tuple(sorted((race.first.location, race.second.location))) for race in races}


def pair(first: str, second: str) -> tuple[str, ...]:
    return tuple(sorted((line(first), line(second))))


def ints(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


def floats(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


def test_a_reduction_that_relies_on_lockstep_is_reported_with_its_line_and_two_lanes(run: Checked) -> None:
    races = run("volatile_reduction", 64, floats(64))
    assert pair("reduces", "reduces") in lines(races)
    found = next(race for race in races if race.second.location == line("reduces"))
    (a, _, _), (b, _, _) = found.first.thread, found.second.thread
    assert a != b and a < 32 and b < 32 and found.one_warp
    assert {found.first.kind, found.second.kind} == {0, 1} and found.memory.startswith("s + ")
    assert re.match(
        r"hearth racecheck: kernel volatile_reduction, block \(0,0,0\): read/write race in shared memory "
        r"\(s \+ \d+ bytes\): thread \(\d+,0,0\) read at kernel.cu\(\d+\), "
        r"thread \(\d+,0,0\) wrote at kernel.cu\(\d+\); add __syncwarp\(\) between them",
        str(found),
    )
    assert not run("mended_reduction", 64, floats(64))


def test_a_missing_barrier_is_reported_in_its_block_and_with_the_fix_for_it(run: Checked) -> None:
    assert not run("good_block_reduction", 256, floats(256), grid=3)
    races = run("bad_block_reduction", 256, floats(256))
    assert lines(races) == {pair("fills", "adds")}
    assert all("__syncthreads()" in race.fix and not race.one_warp for race in races)
    assert not run("good_rotation", 96, ints(96), np.int32(3), shared=96 * 4)
    races = run("bad_rotation", 96, ints(96), np.int32(3), shared=96 * 4)
    assert lines(races) == {pair("reads", "writes")}
    assert races[0].memory.startswith("dynamic shared memory + ") and races[0].count > 1
    assert not run("bad_rotation", 96, ints(96), np.int32(1), shared=96 * 4)


def test_a_tiled_product_without_its_second_barrier(run: Checked) -> None:
    a, b, c = (np.random.default_rng(i).random((16, 16), np.float32) for i in range(3))
    assert not run("good_product", (8, 8, 1), a[:8], b, c, np.int32(16), grid=1)
    races = run("bad_product", (8, 8, 1), a, b, c, np.int32(16))
    assert lines(races) == {pair("loads a", "multiplies"), pair("loads b", "multiplies")}
    assert {race.memory.split(" ")[0] for race in races} == {"as", "bs"}
    assert any(side.thread[1] != 0 for race in races for side in (race.first, race.second))


def test_atomic_functions_race_with_plain_accesses_only(run: Checked) -> None:
    data, out = ints(200), np.zeros(16, np.int32)
    assert not run("histogram", 200, data, out, grid=4)
    assert out.sum() == 800
    races = run("uncleared_histogram", 200, data, out)
    assert lines(races) == {pair("clears", "counts")} and "or make both atomic" in races[0].fix
    assert pair("increments", "increments") in lines(run("plain_histogram", 200, data, out))


def test_threads_may_write_the_same_value(run: Checked) -> None:
    out = np.zeros(64, np.int32)
    assert not run("same_flag", 64, ints(64), out)
    assert out.tolist() == [5] * 64
    (race,) = run("other_flag", 64, out)
    assert lines([race]) == {pair("differs", "differs")} and race.first.kind == race.second.kind == 1
    assert race.memory == "last"


def test_shuffles_and_votes_order_no_memory(run: Checked) -> None:
    x = floats(128)
    assert not run("shuffled", 128, x) and x[0] == 128
    races = run("shuffle_is_no_barrier", 32, ints(32))
    assert lines(races) == {pair("before the vote", "behind the vote")} and races[0].fix.startswith("add __syncwarp()")


def test_threads_that_return_and_parts_of_warps(run: Checked) -> None:
    assert not run("early_return", 128, ints(128), np.int32(70))
    assert pair("left before", "read behind") in lines(run("late_return", 128, ints(128), np.int32(70)))
    assert not run("nested_tiles", 64, ints(64))
    assert line("half reads") in {place for places in lines(run("narrow_tiles", 64, ints(64))) for place in places}
    x = np.zeros(128, np.int32)
    assert not run("grid_wide", 64, x, grid=2, cooperative=True) and x[:64].tolist() == list(range(63, -1, -1))


def test_accesses_of_every_size(run: Checked) -> None:
    data, out = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)
    assert not run("bytes", 64, data, out)
    races = run("bad_bytes", 128, out)
    assert lines(races) == {pair("one byte", "sixteen bytes")}
    x = ints(32)
    x[0] = 24
    races = run("copies", 32, x)
    assert pair("copies bytes", "reads a copy") in lines(races)
    assert line("copies a struct") in {place for places in lines(races) for place in places}
    assert not run("global_only", 64, ints(64))


def test_order_by_fences_and_atomic_functions(run: Checked) -> None:
    out = np.zeros(1, np.int32)
    assert not run("handed_over", 64, out, np.int32(1)) and out[0] == 5
    for fences in (0, 2):
        assert lines(run("handed_over", 64, out, np.int32(fences))) == {pair("gives", "takes")}
    assert not run("locked", 40, out) and out[0] == sum(range(40))


def test_barriers_with_arrivals_and_wide_tiles(run: Checked) -> None:
    assert not run("arrivals", 96, ints(96), np.int32(1))
    assert lines(run("arrivals", 96, ints(96), np.int32(0))) == {pair("before the arrival", "ahead of the wait")}
    assert not run("wide_tiles", 256, ints(256), np.int32(0), grid=2)
    assert line("across tiles") in lines(run("wide_tiles", 256, ints(256), np.int32(1))).pop()


def test_races_in_headers_and_text_of_the_report(run: Checked) -> None:
    races = run("from_header", 64, ints(64))
    assert lines(races) == {("put.h(3)", "put.h(3)")}
    error = refusal(races)
    assert error.reason is Reason.DATA_RACE and error.details["first_line"] == "put.h(3)"
    assert error.details["kernel"] == "from_header" and "__syncthreads()" in error.fix
    assert text(list(races) * 20).splitlines()[16:] == ["hearth racecheck: 4 more races of this launch are not listed"]
    assert [plain_name(name) for name in ("_ZZ6reducePfE1s", "_ZN2ns5tableE", "_ZZ1kvE5tiles_0", "s.1")] == [
        "s", "table", "tiles", "s"
    ]  # fmt: skip


def test_images_of_both_kinds_are_distinguished_and_run_in_one_process(
    run: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEARTH_CPU_RACECHECK", raising=False)
    plain = find_toolchain()
    monkeypatch.setenv("HEARTH_CPU_RACECHECK", "1")
    checked = find_toolchain()
    assert (plain.racecheck, checked.racecheck) == (False, True)
    assert plain.identity() != checked.identity() and plain.library("runtime") == checked.library("runtime")
    assert Toolchain.from_recipe(checked.recipe()) == checked
    source = 'extern "C" __global__ void add(int* x) { __shared__ int s; s = threadIdx.x; atomicAdd(x, s); }'
    image = compile_source(plain, source)
    assert MARK not in image
    x = np.zeros(1, np.int32)
    assert not CpuModule(image, plain).function("add").launch((1, 1, 1), (64, 1, 1), 0, pack(x))
    assert x[0] == sum(range(64))
    assert run("other_flag", 64, np.zeros(64, np.int32))


# ---- random programs against happens-before by definition ----


READ, WRITE, UPDATE, READ_BYTE, WRITE_BYTE, READ_SECOND, SYNC, BARRIER, SHUFFLE, RETURN, YIELD = range(1, 12)
THREADS, WORDS = 40, 4

CONFLICTS = {(0, 1), (1, 0), (1, 1), (0, 3), (3, 0), (1, 3), (3, 1)}
"""Pairs of access kinds that race: reads 0, writes 1, atomic updates 3."""

Op = tuple[int, int, int, int]


def random_program(rng: random.Random) -> list[list[Op]]:
    """Returns an operation for each phase and thread. Values differ, so that every write has an effect."""
    alive = set(range(THREADS))
    density = rng.choice((0.02, 0.05, 0.3))
    yields = rng.choice((0, 0.1, 0.5))
    program: list[list[Op]] = []
    values = iter(range(1, 10**6))
    for _ in range(rng.randrange(4, 14)):
        phase: list[Op] = [(YIELD if rng.random() < yields else 0, 0, 0, 0) for _ in range(THREADS)]
        phase = [op if t in alive else (0, 0, 0, 0) for t, op in enumerate(phase)]
        what = rng.random()
        if what < 0.2:
            for t in alive:
                phase[t] = (BARRIER, 0, 0, 0)
        elif what < 0.6:  # groups of lanes synchronize, the other lanes of the block continue
            for warp in range(0, THREADS, 32):
                lanes = [t for t in alive if warp <= t < warp + 32]
                rng.shuffle(lanes)
                while lanes:
                    size = rng.choice((1, 2, 4, 8, 32))
                    group, lanes = lanes[:size], lanes[size:]
                    mask = sum(1 << t % 32 for t in group)
                    kind = rng.choice((SYNC, SYNC, SYNC, SHUFFLE, 0))
                    for t in group:
                        phase[t] = (kind, 0, 0, mask)
        else:
            for t in alive:
                if rng.random() < density:
                    n = next(values)
                    kind = rng.choice((READ, READ, READ, WRITE, WRITE, UPDATE, READ_BYTE, WRITE_BYTE, READ_SECOND))
                    place = rng.randrange(WORDS * {READ_BYTE: 4, WRITE_BYTE: 4}.get(kind, 1))
                    if kind == READ_SECOND:
                        place //= 2
                    whole = 0x80808080 | (n & 0x7F) | (n >> 7 & 0x7F) << 8 | (n >> 14 & 0x7F) << 16
                    phase[t] = (kind, place, 1 + n % 127 if kind == WRITE_BYTE else whole, 0)
        program.append(phase)
        if rng.random() < 0.1:
            gone = set(rng.sample(sorted(alive), rng.randrange(len(alive))))
            program.append([(RETURN if t in gone else 0, 0, 0, 0) for t in range(THREADS)])
            alive -= gone
    return program


def expected_races(program: list[list[Op]]) -> set[frozenset[tuple[int, int]]]:
    """Returns the pairs of (thread, kind) of accesses that no barrier orders, computed from the vector clock of each
    thread."""
    clocks = [[0] * THREADS for _ in range(THREADS)]
    alive = set(range(THREADS))
    seen: list[tuple[int, int, list[int], set[int]]] = []  # thread, kind, its clock, bytes
    races = set()
    for phase in program:
        for t, (what, place, _, _) in enumerate(phase):
            kind = {WRITE: 1, WRITE_BYTE: 1, UPDATE: 3}.get(what, 0)
            if what in (READ, WRITE, UPDATE):
                touched = set(range(4 * place, 4 * place + 4))
            elif what in (READ_BYTE, WRITE_BYTE):
                touched = {place}
            elif what == READ_SECOND:
                touched = set(range(8 * place + 4, 8 * place + 8))
            else:
                continue
            clocks[t][t] += 1
            for other, other_kind, clock, others in seen:
                ordered = clocks[t][other] >= clock[other]
                if other != t and not ordered and others & touched and (other_kind, kind) in CONFLICTS:
                    races.add(frozenset({(other, other_kind), (t, kind)}))
            seen.append((t, kind, list(clocks[t]), touched))
        alive -= {t for t, op in enumerate(phase) if op[0] == RETURN}
        if any(op[0] == BARRIER for op in phase):  # threads that have returned take no part, and precede the barrier
            groups = [list(range(THREADS))]
        else:
            masks = {(t // 32, op[3]) for t, op in enumerate(phase) if op[0] == SYNC}
            groups = [[t for t in range(THREADS) if t // 32 == w and mask >> t % 32 & 1] for w, mask in masks]
        for group in groups:
            together = [max(clocks[t][i] for t in group) for i in range(THREADS)]
            for t in group:
                clocks[t] = list(together)
    return races


def directed_program(*phases: dict[int, Op]) -> list[list[Op]]:
    return [[phase.get(t, (0, 0, 0, 0)) for t in range(THREADS)] for phase in phases]


def sync(*threads: int) -> dict[int, Op]:
    return {t: (SYNC, 0, 0, sum(1 << other % 32 for other in threads)) for t in threads}


def test_each_of_several_unordered_readers_races_with_a_later_write(run: Checked) -> None:
    read, write = (READ, 0, 0, 0), (WRITE, 0, 5, 0)
    warp = sync(*range(32))
    assert races_of(run, directed_program({0: read, 1: read}, warp, {0: write})) == set()
    last_reader = directed_program({0: read, 1: read}, {2: read}, sync(0, 1, 3), {3: write})
    assert races_of(run, last_reader) == {frozenset({(2, 0), (3, 1)})}
    # a yield, so that the phases before it run first in all threads
    turn = dict.fromkeys(range(THREADS), (YIELD, 0, 0, 0))
    other_warp = directed_program({0: read, 1: read}, turn, {33: read}, turn, warp, {0: write})
    assert races_of(run, other_warp) == {frozenset({(33, 0), (0, 1)})}
    first_warp = directed_program({33: read}, turn, {0: read, 1: read}, turn, sync(*range(32, 40)), {34: write})
    assert races_of(run, first_warp) in ({frozenset({(t, 0), (34, 1)})} for t in (0, 1))


def races_of(run: Checked, program: list[list[Op]]) -> set[frozenset[tuple[int, int]]]:
    flat = np.array(program, np.uint32).reshape(-1)
    races = run("interpret", THREADS, flat, np.int32(len(program)), np.zeros(THREADS, np.int32), shared=4 * WORDS)
    return {frozenset((side.thread[0], side.kind) for side in (race.first, race.second)) for race in races}


def test_random_programs_have_the_races_that_their_order_allows(run: Checked) -> None:
    rng = random.Random(22)
    with_races = 0
    for _ in range(400):
        program = random_program(rng)
        expected = expected_races(program)
        found = races_of(run, program)
        assert found <= expected and bool(found) == bool(expected), program
        with_races += bool(expected)
    assert 100 < with_races < 300
