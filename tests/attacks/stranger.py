"""A process that runs one attack: ``python -m tests.attacks.stranger ROW SECONDS TARGET``.

It prints ``ready`` after everything that the attack needs is loaded, starts at the next line of its standard input (or
at the end of the input), and prints its counts as one line of JSON.

A real attacker has its own machine, but this one shares the daemon's. It runs at the lowest priority, so that the
daemon and the tenant have the processors almost to themselves.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from tests.attacks import rows
from tests.attacks.target import Target


def main() -> int:
    name, seconds, target = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(19)
    (row,) = rows.load([name])
    row.prepare()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(row.attack(Target.from_json(target), float(seconds))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
