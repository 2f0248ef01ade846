"""A tenant that works during an attack: ``python -m tests.attacks.well_behaved TARGET TOKEN``.

It launches a kernel and synchronizes, checks the result, and pauses, until its standard input ends. For each line of
input it prints its steps and its errors since the last report, as a line of JSON. The pause makes its rate independent
of the speed of an idle machine.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time

import numpy as np

import hearth

PAUSE = 0.005
"""Seconds between two steps."""
PROBE = 64
"""Number of steps between two checks of the result."""
SOURCE = """
extern "C" __global__ void add(float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1.0f;
}
"""


def work(target: str, token: str, asked: queue.SimpleQueue[bool]) -> None:
    """Works until `asked` yields False; at each True it reports the work since the last report: steps as pairs
    (monotonic start time, seconds), and errors as pairs (time, text)."""
    steps: list[object] = []
    errors: list[object] = []
    with hearth.connect(target, token=token, timeout=60) as node:
        gpu = node.device(0)
        add = gpu.RawModule(code=SOURCE).get_function("add")
        x = gpu.zeros(1024, np.float32)
        add((4,), (256,), (x, np.int32(1024)))
        gpu.synchronize()
        print("ready", flush=True)
        done = 1
        while True:
            if not asked.empty():
                if not asked.get():
                    return
                print(json.dumps({"steps": steps, "errors": errors}), flush=True)
                steps.clear()
                errors.clear()
            begin = time.monotonic()
            try:
                add((4,), (256,), (x, np.int32(1024)))
                gpu.synchronize()
                done += 1
                if done % PROBE == 0 and not (x.get() == done).all():
                    errors.append((begin, f"a wrong result after {done} steps"))
            except hearth.HearthError as error:
                errors.append((begin, f"{error.reason}: {error}"))
            steps.append((begin, time.monotonic() - begin))
            time.sleep(PAUSE)


def main() -> int:
    target, token = sys.argv[1:]
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def read() -> None:
        for _ in sys.stdin:
            asked.put(True)
        asked.put(False)

    threading.Thread(target=read, daemon=True).start()
    work(target, token, asked)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
