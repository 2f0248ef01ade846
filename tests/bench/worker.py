"""A fresh process for one side of a row: `python -m tests.bench.worker MODULE:FUNCTION JSON`.

Calls the function with the keywords of the JSON object and prints what it returns as one line. Functions that take part
in a simultaneous start call `ready`.
"""

from __future__ import annotations

import importlib
import json
import sys

RESULT = "@result "
READY = "@ready"


def ready() -> None:
    """Tells the parent that the work may start, and waits for its word."""
    print(READY, flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the parent is gone")


def main() -> None:
    """Entry point."""
    module, _, name = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    print(RESULT + json.dumps(result), flush=True)


if __name__ == "__main__":
    # Under its real name, so that `ready` and the constants exist once.
    importlib.import_module("tests.bench.worker").main()
