"""A client of the soak test, in a separate process: `python -m tests.soak.client KIND NUMBER SEED TARGET`.

Reports its work on standard output, one line of JSON every two seconds. Reads from standard input how long to rest
after each round, in multiples of the round's duration; the client ends when its standard input ends.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback

from tests.soak.ledger import Ledger
from tests.soak.trouble import KINDS
from tests.soak.work import Client

SAY_S = 2.0
LEAST_REST_S = 0.05
MOST_REST_S = 5.0


class Pace:
    """Length of the rests, which the parent sets."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.over = threading.Event()

    def listen(self) -> None:
        for line in sys.stdin:
            self.factor = float(line)
        self.over.set()

    def rest(self, worked: float) -> None:
        self.over.wait(min(MOST_REST_S, max(LEAST_REST_S, self.factor * worked)))


def main(kind: str, number: int, seed: int, target: str) -> None:
    ledger, pace = Ledger(), Pace()
    client = Client(target, random.Random(seed), ledger, number)
    threading.Thread(target=pace.listen, daemon=True).start()
    said = time.monotonic()
    while not pace.over.is_set():
        rounds = KINDS[kind](client)
        try:
            while not pace.over.is_set():
                began = time.monotonic()
                next(rounds)
                now = time.monotonic()
                ledger.count("rounds")
                pace.rest(now - began)
                if now - said > SAY_S:
                    said = now
                    print(ledger.line(), flush=True)
        except StopIteration:
            continue
        except Exception as error:
            text = "".join(traceback.format_exception(error)).strip().splitlines()
            ledger.wrong(f"{type(error).__name__}: {error} at {' < '.join(text[-6:-1])}", "errors")
            pace.over.wait(1.0)
        finally:
            rounds.close()  # type: ignore[attr-defined]
    print(ledger.line(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
