"""A new process for one side of a row: `python -m tests.bench.worker MODULE:FUNCTION JSON`.

Calls the function with the keywords of the JSON object and prints the result as one line. Functions that take part in a
simultaneous start call `ready`.
"""

from __future__ import annotations

import importlib
import json
import sys

RESULT = "@result "
READY = "@ready"


def ready() -> float:
    """Reports that the work may start, and waits for the parent's start signal; returns its `time.monotonic()`, which
    is the same for all workers."""
    print(READY, flush=True)
    word = sys.stdin.readline()
    if not word:
        raise SystemExit("the parent is gone")
    return float(word)


def main() -> None:
    """Entry point."""
    module, _, name = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    print(RESULT + json.dumps(result), flush=True)


if __name__ == "__main__":
    # Imported under its real name, so that `ready` and the constants exist only once.
    importlib.import_module("tests.bench.worker").main()
