"""`python -m tests.fuzz --seconds 60 [--only NodeService/Describe]`: fuzzes each RPC and each socket for the given
time."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.fuzz.run import Fuzz, fuzzing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each RPC and each socket")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", action="append", choices=Fuzz.names(), default=None)
    parser.add_argument("--report", type=Path, default=None)
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}")
    sent: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="hearth-fuzz-") as cache, fuzzing(Path(cache), chosen.seed) as fuzz:
        for name in chosen.only or Fuzz.names():
            known = len(fuzz.problems)
            sent[name] = fuzz.run(name, chosen.seconds)
            codes = ", ".join(f"{code} {count}" for code, count in fuzz.codes.get(name, {}).items())
            print(f"{name}: {sent[name]} calls; {codes}", flush=True)
            for problem in fuzz.problems[known : known + 5]:
                print(f"  PROBLEM {problem}", flush=True)
    for problem in fuzz.problems[-5:]:
        print(f"PROBLEM {problem}")
    print(f"{sum(sent.values())} calls, {len(fuzz.problems)} problems")
    if chosen.report:
        chosen.report.write_text(json.dumps({"sent": sent, "problems": fuzz.problems}, indent=1))
    return 1 if fuzz.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
