"""Collectives over all devices, float32, compared with NCCL called directly.

Bus bandwidth as in NCCL's tests (nccl-tests, doc/PERFORMANCE.md), which is the load of each link independent of the
number of devices: bytes / seconds times 2 (n - 1) / n for all_reduce, (n - 1) / n for all_gather and reduce_scatter,
where bytes is the size of the larger side. Both sides are pipelined: many operations, one wait. The overhead of Hearth
for a small operation is given in microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.bench.context import Context, Side
from tests.bench.stats import Row, Samples, Summary, merge

if TYPE_CHECKING:
    import hearth

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds that are measured at every size, on all devices."""
JOIN = "join"
"""Name of the row for a new group's first operation."""
BATCH = 32
BOUNDED = 64 * MIB
"""Size in bytes from which the required ratio applies."""
_GPU_SIZES = (KIB, 8 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)
_CPU_SIZES = (KIB, 32 * KIB, MIB, 4 * MIB)
_NAMES = {
    "send_recv": "send and recv",
    "copy": "copy to another device",
    "batch": f"all_reduce, {BATCH} in a batch",
    "one": "all_reduce, one at a time",
}

_NAMED_SMALL = {"one", "batch"}
"""Cases whose results are reported in microseconds only."""

Case = tuple[str, int]
"""Kind of operation, and size in bytes."""


def cases(cuda: bool, quick: bool) -> list[Case]:
    """Returns the cases in the order in which they are measured."""
    sizes = [size for size in (_GPU_SIZES if cuda else _CPU_SIZES) if not (quick and size > 256 * MIB)]
    large = [size for size in sizes if size >= (BOUNDED if cuda else MIB)]
    found: list[Case] = [(kind, size) for kind in COLLECTIVES for size in sizes]
    found += [("one", KIB), ("batch", KIB)]
    return found + [(kind, size) for kind in ("send_recv", "copy") for size in (KIB, *large)]


def measure(context: Context) -> list[Row]:
    """Measures Hearth and NCCL, with one process for each GPU and the slowest rank of each repeat; without GPUs there
    is no baseline."""
    n = context.device_count
    if n < 2:
        return []
    plan = cases(context.cuda, context.quick)
    common = {"plan": plan, "repeats": context.pick(2, 4), "cuda": context.cuda}
    ours: list[Samples] = []
    theirs: list[Samples] = []
    for turn in range(context.rounds):
        for side in ("ours", "theirs") if turn % 2 == 0 else ("theirs", "ours"):
            if side == "ours":
                arguments = {"target": context.daemon.unix, **common}
                ours.append(context.run(Side("rows.collectives:hearth_side", arguments)))
            elif context.cuda:
                meet = str(context.folder / f"nccl-{turn}")
                ranks = [{"rank": rank, "ranks": n, "meet": meet, **common} for rank in range(n)]
                theirs.append(_slowest(context.run_together("rows.collectives_nccl:nccl_side", ranks)))
    seconds, base = merge(ours), merge(theirs)
    rows = [_joining(n, seconds[JOIN], base.get(JOIN))]
    for case in plan:
        rows += _rows(case, n, seconds[key(case)], base.get(key(case)))
    return rows


def _joining(n: int, seconds: Sequence[float], base: Sequence[float] | None) -> Row:
    """Returns the row of the first operation of a group. In later rounds the daemon's communicator exists already."""
    first = Summary.of([max(seconds)])
    them, name = (None, "") if base is None else (Summary.of(base), "NCCL directly")
    what = f"first operation of a new group, {n} devices"
    note = "Hearth connects every rank with every other as well, for send and recv"
    return Row("collectives", what, "s", first, "lower", name, them, note=note)


def _rows(case: Case, n: int, seconds: Sequence[float], base: Sequence[float] | None) -> list[Row]:
    kind, size = case
    what = f"{_NAMES.get(kind, kind)} {_label(size)}"
    name = "" if base is None else "cudaMemcpyPeerAsync" if kind == "copy" else "NCCL directly"
    where = "2 devices" if kind in {"send_recv", "copy"} else f"{n} devices"
    rows = []
    if kind in COLLECTIVES or (kind not in _NAMED_SMALL and size > KIB):
        moved = _factor(kind, n) * _bytes(kind, size, n)
        bound = base is not None and kind in COLLECTIVES and size >= BOUNDED
        rows.append(
            Row(
                "collectives",
                f"{what}, {where}" + " (bus)" * (kind in COLLECTIVES),
                "GB/s",
                Summary.of([moved / each / 1e9 for each in seconds]),
                "higher",
                name,
                None if base is None else Summary.of([moved / each / 1e9 for each in base]),
                0.95 if bound else None,
                0.99 if bound else None,
            )
        )
    if size <= MIB:
        own = Summary.of([each * 1e6 for each in seconds])
        them = None if base is None else Summary.of([each * 1e6 for each in base])
        rows.append(Row("collectives", f"{what}, {where}, an operation", "us", own, "lower", name, them))
        if them is not None:
            added = Summary.of([each * 1e6 - them.median for each in seconds])
            note = "median of the baseline taken off each sample"
            rows.append(Row("collectives", f"{what}, overhead", "us", added, "lower", note=note))
    return rows


def _factor(kind: str, n: int) -> float:
    return {"all_reduce": 2 * (n - 1) / n, "all_gather": (n - 1) / n, "reduce_scatter": (n - 1) / n}.get(kind, 1.0)


def _bytes(kind: str, size: int, n: int) -> int:
    """Returns the number of bytes that are moved, because shares are whole elements."""
    return share(size, n) * n * 4 if kind in {"all_gather", "reduce_scatter"} else size


def share(size: int, n: int) -> int:
    """Returns the number of elements of one rank's share of `size` bytes."""
    return max(1, size // 4 // n)


def key(case: Sequence[Any]) -> str:
    """Returns the name of a case's samples."""
    return f"{case[0]} {case[1]}"


def count(case: Sequence[Any], cuda: bool) -> int:
    """Returns the number of operations of a sample, which is the same on both sides. A sample whose ratio is checked
    takes at least a fifth of a second, so that the few milliseconds for the start and the final wait do not matter."""
    kind, size = case
    if kind == "one":
        return 100 if cuda else 10
    if not cuda:
        found = max(2, min(20, 32 * MIB // size))
    elif kind in COLLECTIVES and size >= BOUNDED:
        found = 96 * GIB // size
    else:
        found = max(20, min(400, 48 * GIB // size))
    return -(-found // BATCH) * BATCH if kind == "batch" else found


def _label(size: int) -> str:
    unit, name = (GIB, "GiB") if size >= GIB else (MIB, "MiB") if size >= MIB else (KIB, "KiB")
    return f"{size // unit} {name}"


def _slowest(ranks: list[Samples]) -> Samples:
    """Returns, for each repeat, the time of the slowest rank; if only one rank measures a case, the time of that
    rank."""
    return {
        case: [max(each) for each in zip(*(rank[case] for rank in ranks if case in rank), strict=True)]
        for case in ranks[0]
    }


def hearth_side(target: str, plan: list[Case], repeats: int, cuda: bool) -> Samples:
    """Measures Hearth: one client with a group of all devices; returns seconds for each operation."""
    import numpy as np

    import hearth

    measured: Samples = {}
    with hearth.connect(target) as node:
        devices = node.devices
        group = hearth.Group(devices)

        finish = node.synchronize
        arrays = [device.zeros(1, np.float32) for device in devices[::-1]]
        finish()
        started = time.perf_counter()
        # a group in this order needs a separate communicator
        hearth.Group(devices[::-1]).all_gather(arrays, timeout=120)
        finish()
        measured[JOIN] = [time.perf_counter() - started]
        for case in plan:
            operation, arrays = _prepared(group, *case)
            times, samples = count(case, cuda), []
            for repeat in range(repeats + 1):  # the first repeat is a warm-up
                finish()
                started = time.perf_counter()
                if case[0] == "one":
                    for _ in range(times):
                        operation()
                        finish()
                else:
                    for _ in range(times // BATCH if case[0] == "batch" else times):
                        operation()
                    finish()
                if repeat:
                    samples.append((time.perf_counter() - started) / times)
            measured[key(case)] = samples
            for array in arrays:
                array.free()
    return measured


def _prepared(group: hearth.Group, kind: str, size: int) -> tuple[Callable[[], object], list[hearth.DeviceArray]]:
    """Returns the operation, and the arrays that it uses."""
    import numpy as np

    devices = group.devices
    n, elements, part = len(devices), size // 4, share(size, len(devices))

    def zeros(*shape: int) -> list[hearth.DeviceArray]:
        return [device.zeros(shape, np.float32) for device in devices]

    if kind in {"all_reduce", "one"}:
        arrays = zeros(elements)
        return lambda: group.all_reduce(arrays), arrays
    if kind == "all_gather":
        arrays, outs = zeros(part), zeros(n, part)
        return lambda: group.all_gather(arrays, outs=outs), [*arrays, *outs]
    if kind == "reduce_scatter":
        arrays, outs = zeros(n * part), zeros(part)
        return lambda: group.reduce_scatter(arrays, outs=outs), [*arrays, *outs]
    if kind == "batch":
        several = [zeros(elements) for _ in range(BATCH)]

        def together() -> None:
            with group.batch():
                for each in several:
                    group.all_reduce(each)

        return together, [array for each in several for array in each]
    source, target = (device.zeros(elements, np.float32) for device in devices[:2])
    if kind == "copy":
        return lambda: target.copy_from(source), [source, target]

    def pass_on() -> None:
        group.send(source, 1)
        group.recv(target, 0)

    return pass_on, [source, target]
