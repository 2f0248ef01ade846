"""Long sweeps: `python -m tests.support.cpu.differential --seeds 200`.

Each wrong kernel is reported with its source, the command that runs it again, and both results. The exit status is 1 if
any kernel is wrong.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time

from tests.support.cpu.differential import nvrtc
from tests.support.cpu.differential.failures import Failure
from tests.support.cpu.differential.kernels import Kernel
from tests.support.cpu.differential.processes import check
from tests.support.cpu.differential.programs import Program, program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="programs to check (10)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--count", type=int, default=24, help="kernels of a program (24)")
    parser.add_argument("--kernel", default="", help="only the kernel of this name")
    parser.add_argument("--without", nargs="*", default=(), help="leave out kernels with these kinds of steps")
    parser.add_argument("--brief", action="store_true", help="one line for each wrong kernel, without its source")
    parser.add_argument("--nvrtc", action="store_true", help="compile with NVRTC instead of running on the CPU")
    parser.add_argument("--print", action="store_true", help="print the sources, and run nothing")
    given = parser.parse_args()

    def choose(kernel: Kernel) -> bool:
        return given.kernel in ("", kernel.name) and not set(given.without) & set(kernel.tags)

    failures: list[Failure] = []
    kernels = 0
    for seed in range(given.first, given.first + given.seeds):
        began = time.perf_counter()
        drawn = program(seed, given.count, choose)
        if given.print:
            print(drawn.source(), *(f"// ---- {name}\n{text}" for name, text in drawn.headers.items()), sep="\n")
            continue
        found = compiled(drawn) if given.nvrtc else check(drawn)
        failures += found
        kernels += len(drawn.kernels)
        took = time.perf_counter() - began
        print(f"seed {seed}: {len(found)} of {len(drawn.kernels)} kernels wrong, {took:.1f} s", flush=True)
        for failure in found:
            if given.brief:
                name = failure.kernel.name if failure.kernel else "all"
                print(f"  {name}: {' '.join(failure.what.split())[:200]}", flush=True)
            else:
                print(failure.report(), "\n", flush=True)
    if failures:
        print(f"{len(failures)} of {kernels} kernels wrong. Kinds that these have in common:")
        counts = collections.Counter(tag for each in failures if each.kernel for tag in each.kernel.tags)
        print(", ".join(f"{tag} {count}" for tag, count in counts.most_common(12)))
    return 1 if failures else 0


def compiled(drawn: Program) -> list[Failure]:
    """Returns the kernels that NVRTC does not compile."""
    if nvrtc.library() is None:
        raise SystemExit(f"the package {nvrtc.PACKAGE} is not installed")

    def compile_error(kernels: list[Kernel]) -> str:
        return nvrtc.compile_error(drawn, kernels, "compute_80")

    if not compile_error(drawn.kernels):
        return []
    each = [(kernel, compile_error([kernel])) for kernel in drawn.kernels]
    return [Failure(kernel, drawn.seed, text) for kernel, text in each if text]


if __name__ == "__main__":
    sys.exit(main())
