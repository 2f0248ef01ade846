"""all_reduce (sum, float32, in place) over all devices.

Bus bandwidth as in NCCL's tests: 2 (n - 1) / n x bytes / seconds for n devices, which is what each link carries in a
ring whatever n is. Small sizes are pipelined on both sides: many operations, one wait.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.bench.context import Context, Side
from tests.bench.stats import Row, Samples, Summary, merge

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_GPU_SIZES = (KIB, 32 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)
_CPU_SIZES = (KIB, 32 * KIB, MIB, 16 * MIB)


def measure(context: Context) -> list[Row]:
    """Against NCCL called directly, one process a GPU; without GPUs against NumPy's add of two arrays."""
    n = context.device_count
    if n < 2:
        return []
    sizes = [size for size in (_GPU_SIZES if context.cuda else _CPU_SIZES) if not (context.quick and size > 256 * MIB)]
    common = {"sizes": sizes, "repeats": context.pick(3, 5), "cuda": context.cuda}
    ours: list[Samples] = []
    theirs: list[Samples] = []
    for turn in range(context.rounds):
        ours.append(context.run(Side("rows.collectives:hearth", {"target": context.daemon.unix, **common})))
        if context.cuda:
            meet = str(context.folder / f"nccl-{turn}")
            ranks = [{"rank": rank, "ranks": n, "meet": meet, **common} for rank in range(n)]
            theirs.append(_slowest(context.run_together("rows.collectives:nccl", ranks)))
        else:
            theirs.append(context.run(Side("rows.collectives:numpy_add", common)))
    hearth_seconds, base_seconds = merge(ours), merge(theirs)
    rows = []
    for size in sizes:
        bytes_moved = 2 * (n - 1) / n * size

        def bandwidth(seconds: Samples, size: int = size, moved: float = bytes_moved) -> Summary:
            return Summary.of([moved / each / 1e9 for each in seconds[str(size)]])

        bounded = context.cuda and size >= 64 * MIB
        rows.append(
            Row(
                "all_reduce",
                f"all_reduce {_label(size)}, {n} devices (bus)",
                "GB/s",
                bandwidth(hearth_seconds),
                "higher",
                "NCCL directly" if context.cuda else "NumPy add (rough)",
                bandwidth(base_seconds),
                0.95 if bounded else None,
                0.99 if bounded else None,
                "" if context.cuda else "the baseline adds two arrays in one process and moves nothing",
            )
        )
    return rows


def _label(size: int) -> str:
    unit, name = (GIB, "GiB") if size >= GIB else (MIB, "MiB") if size >= MIB else (KIB, "KiB")
    return f"{size // unit} {name}"


def _count(size: int, cuda: bool) -> int:
    """How many operations a sample has: the same on both sides."""
    most = 200 if cuda else 20
    return max(20 if cuda else 2, min(most, (16 * GIB if cuda else 32 * MIB) // size))


def _slowest(ranks: list[Samples]) -> Samples:
    """Of each repeat the rank that took longest."""
    return {size: [max(each) for each in zip(*(rank[size] for rank in ranks), strict=True)] for size in ranks[0]}


def hearth(target: str, sizes: list[int], repeats: int, cuda: bool) -> Samples:
    """One client with a group of all devices; seconds an operation, by size."""
    import numpy as np

    import hearth

    measured: Samples = {}
    with hearth.connect(target) as node:
        devices = node.devices
        group = hearth.Group(devices)

        def finish() -> None:
            for device in devices:
                device.synchronize()

        for size in sizes:
            arrays = [device.zeros(size // 4, np.float32) for device in devices]
            count, samples = _count(size, cuda), []
            for repeat in range(repeats + 1):
                finish()
                started = time.perf_counter()
                for _ in range(count):
                    group.all_reduce(arrays)
                finish()
                if repeat:
                    samples.append((time.perf_counter() - started) / count)
            measured[str(size)] = samples
            for array in arrays:
                array.free()
    return measured


def nccl(rank: int, ranks: int, meet: str, sizes: list[int], repeats: int, cuda: bool) -> Samples:
    """One rank, in a process of its own; rank 0 leaves NCCL's unique id in the file `meet`."""
    import cupy
    from cupy.cuda import nccl

    cupy.cuda.Device(rank).use()
    cupy.zeros(1)  # makes the context
    file = Path(meet)
    if rank == 0:
        identity = nccl.get_unique_id()
        draft = file.with_suffix(".draft")
        draft.write_text(repr(identity))
        draft.rename(file)
    else:
        deadline = time.monotonic() + 60
        while not file.exists():
            if time.monotonic() > deadline:
                raise SystemExit("rank 0 left no id")
            time.sleep(0.01)
        import ast

        identity = ast.literal_eval(file.read_text())
    communicator = nccl.NcclCommunicator(ranks, identity, rank)
    stream = cupy.cuda.Stream(non_blocking=True)
    word = cupy.zeros(1, cupy.float32)
    cupy.cuda.get_current_stream().synchronize()

    def reduce(address: int, elements: int) -> None:
        communicator.allReduce(address, address, elements, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)

    measured: Samples = {}
    for size in sizes:
        array = cupy.zeros(size // 4, cupy.float32)
        cupy.cuda.get_current_stream().synchronize()
        count, samples = _count(size, cuda), []
        for repeat in range(repeats + 1):
            reduce(word.data.ptr, 1)  # a barrier
            stream.synchronize()
            started = time.perf_counter()
            for _ in range(count):
                reduce(array.data.ptr, size // 4)
            stream.synchronize()
            if repeat:
                samples.append((time.perf_counter() - started) / count)
        measured[str(size)] = samples
        del array
    communicator.destroy()
    return measured


def numpy_add(sizes: list[int], repeats: int, cuda: bool) -> Samples:
    """Seconds of an in-place add of two arrays of each size."""
    import numpy as np

    measured: Samples = {}
    for size in sizes:
        a, b = np.zeros(size // 4, np.float32), np.ones(size // 4, np.float32)
        count, samples = _count(size, cuda), []
        for repeat in range(repeats + 1):
            started = time.perf_counter()
            for _ in range(count):
                np.add(a, b, out=a)
            if repeat:
                samples.append((time.perf_counter() - started) / count)
        measured[str(size)] = samples
    return measured
