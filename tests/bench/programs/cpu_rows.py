"""Measures the rows `cpu` without a daemon, for use during development:

python -m tests.bench.programs.cpu_rows [--seconds 0.3] [--only reverse barriers warp_sums]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

from tests.bench import processes
from tests.bench.stats import Samples

SIDES = ("hearth", "loops", "numpy")


def main() -> None:
    """Prints microseconds for one launch (median), and those of the C++ loop and of NumPy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each kernel and side")
    parser.add_argument("--only", nargs="+", default=[], metavar="KERNEL", help="of those in cpu_kernels.cu")
    parser.add_argument("--cache", default="", help="directory of compiled files; default: a temporary directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as temporary:
        arguments = {"cache": options.cache or temporary, "seconds": options.seconds, "only": options.only}
        measured: dict[str, Samples] = {
            side: processes.run_worker(f"rows.cpu:{side}", arguments, processes.environment(processes.ROOT))
            for side in SIDES
        }
    print(f"{'us a launch':12}" + "".join(f"{side:>12}" for side in SIDES))
    for name in measured["hearth"]:
        medians = [statistics.median(measured[side].get(name) or [float("nan")]) * 1e6 for side in SIDES]
        print(f"{name:12}" + "".join(f"{median:12.1f}" for median in medians))


if __name__ == "__main__":
    main()
