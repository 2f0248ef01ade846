"""A process that runs one attack: ``python -m tests.attacks.stranger MODULE FUNCTION SECONDS TARGET``.

Prints its counts as one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys

from tests.attacks.target import Target


def main() -> int:
    module, function, seconds, target = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack = getattr(importlib.import_module(module), function)
    print(json.dumps(attack(Target.from_json(target), float(seconds))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
