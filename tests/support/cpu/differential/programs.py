"""Random programs: the source of several kernels, and the memory contents expected after each launch."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

# The modules of steps and forms register their functions when they are imported.
from tests.support.cpu.differential import block_steps, function_forms, object_forms, tile_steps, warp_steps
from tests.support.cpu.differential.generator import MAX_THREADS, Bag, Generator
from tests.support.cpu.differential.kernels import Kernel, Shape, draw
from tests.support.cpu.differential.machine import CELLS

REGISTERED = (block_steps, function_forms, object_forms, tile_steps, warp_steps)

SCRATCH = 1024
"""Maximum number of threads of a grid."""

PRELUDE = f"""\
struct Env {{ const unsigned* in; unsigned* cells; unsigned n; }};
struct Pair {{ unsigned x; Env e; }};
__device__ inline unsigned rank() {{ return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }}
__device__ inline unsigned threads() {{ return blockDim.x * blockDim.y * blockDim.z; }}
__device__ inline unsigned block_rank() {{ return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }}
__device__ inline unsigned lane() {{ return rank() % 32u; }}
// The lanes that the thread's warp has: the last warp of a block need not be whole.
__device__ inline unsigned lanes() {{
    const unsigned left = threads() - rank() / 32u * 32u;
    return left >= 32u ? 0xffffffffu : (1u << left) - 1u;
}}
template <class T> struct Rows {{ T (*rows)[9]; __device__ T& operator[](unsigned i) const {{ return rows[i / 8u][i % 8u]; }} }};
struct Here {{ __device__ operator unsigned() const {{ return threadIdx.x * 3u + blockIdx.x; }} }};
// Blocks have at most {MAX_THREADS} threads.
"""


@dataclass
class Launch:
    """A launch of a kernel: its geometry, the memory before it, and the memory expected after it."""

    kernel: Kernel
    grid: Shape
    block: Shape
    data: np.ndarray
    cells: np.ndarray
    scalar: int

    @property
    def threads(self) -> int:
        return int(np.prod(self.grid) * np.prod(self.block))

    @property
    def shared(self) -> int:
        """Size of the dynamic shared memory in bytes."""
        return 4 * int(np.prod(self.block)) if self.kernel.dynamic_shared else 0

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the expected results of the threads, and the expected cells."""
        m = self.kernel.reference(self.grid, self.block, self.data, self.cells, self.scalar)
        return m.out.reshape(-1), m.cells

    def compare(self, out: np.ndarray, cells: np.ndarray) -> str:
        """Returns a description of the first differences between this memory and the expected memory; empty if they are
        equal."""
        lines = []
        expected_out, expected_cells = self.expected()
        wrong = np.flatnonzero(out != expected_out)
        if len(wrong):
            lines.append(f"{len(wrong)} of {self.threads} threads have wrong results:")
        per_block = int(np.prod(self.block))
        for at in wrong[:6].tolist():
            block, rank = divmod(at, per_block)
            lines.append(f"  block {block}, thread {rank}: expected {expected_out[at]:#010x}, got {out[at]:#010x}")
        wrong = np.flatnonzero(cells != expected_cells)
        lines += [
            f"  cells[{at}]: expected {expected_cells[at]:#010x}, got {cells[at]:#010x}" for at in wrong[:6].tolist()
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.kernel.name} with grid {self.grid} and block {self.block}"


@dataclass
class Program:
    """The kernels drawn from one seed, in one source."""

    seed: int
    kernels: list[Kernel]
    launches: list[Launch]

    def source(self, kernels: Collection[Kernel] | None = None) -> str:
        """Returns the source, with all kernels or only the given ones."""
        chosen = self.kernels if kernels is None else kernels
        return "\n".join([PRELUDE, *(f"// ---- {each.name}\n{each.text}" for each in chosen), ""])

    def name_expressions(self, kernels: Collection[Kernel] | None = None) -> list[str]:
        """Returns the C++ name expressions, of all kernels or only the given ones, that must be passed to the
        compiler."""
        return [each.name for each in (self.kernels if kernels is None else kernels) if each.is_expression]

    @property
    def headers(self) -> dict[str, str]:
        return {name: text for kernel in self.kernels for name, text in kernel.headers.items()}

    def launches_of(self, kernel: Kernel) -> list[Launch]:
        """Returns the launches of a kernel."""
        return [launch for launch in self.launches if launch.kernel is kernel]


def program(seed: int, count: int = 24, choose: Callable[[Kernel], bool] = lambda kernel: True) -> Program:
    """Returns the program of a seed. `choose` selects kernels; leaving out a kernel does not change the others."""
    rng = random.Random(f"program {seed}")
    kinds, kernel_forms = Bag(rng), Bag(rng)
    kernels, launches = [], []
    for number in range(count):
        own = random.Random(rng.getrandbits(64))
        kernel = draw(
            Generator(own, kinds, number, whole_warps=own.random() < 0.35, steps_left=own.randint(10, 26)), kernel_forms
        )
        state = np.random.default_rng(own.getrandbits(32))
        made = []
        for grid, block in kernel.shapes:
            data = state.integers(0, 1 << 32, 256, np.uint32)
            cells = state.integers(0, 1 << 32, CELLS + SCRATCH, np.uint32)
            for first, size in kernel.zeroed:
                cells[first : first + size] = 0
            made.append(Launch(kernel, grid, block, data, cells, int(state.integers(1 << 32))))
        if choose(kernel):
            kernels.append(kernel)
            launches += made
    return Program(seed, kernels, launches)
