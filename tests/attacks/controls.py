"""Control rows: the cost of a daemon without an attack, and with permitted requests of unauthenticated clients."""

from __future__ import annotations

import urllib.error
import urllib.request

from tests.attacks.rows import Row
from tests.attacks.target import Target, Until


def nothing(target: Target, seconds: float) -> dict[str, int]:
    """No attack: shows the effect of the measurement itself."""
    Until(seconds).wait()
    return {}


def probes(target: Target, seconds: float) -> dict[str, int]:
    """Sends health probes one after another, like a load balancer but without pauses."""
    until, answered, failed = Until(seconds), 0, 0
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while until:
        try:
            with opener.open(f"http://{target.http}/healthz", timeout=5) as answer:
                answered += answer.status == 200
        except (urllib.error.URLError, OSError):
            failed += 1
    return {"answered": answered, "failed": failed}


ROWS = (Row("nothing", nothing), Row("probes", probes))
