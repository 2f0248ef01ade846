"""Refusals of the HTTP listener: counted by reason, logged at a limited rate, and answered without an HTTP library."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from hearthd.shared.log import LogThrottle

log = structlog.get_logger("hearthd.http")

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Server": "hearthd",  # without the versions of the libraries
}
"""Header fields of every response that does not set them itself."""
REASONS = {
    "head_too_large": "More than 16 KiB, or 64 headers.",
    "line_too_long": "A request line of more than 4 KiB.",
    "bad_request": "Bytes that are no HTTP/1.1 request, or a request without Host.",
    "method": "A method other than GET and HEAD.",
    "body": "A request with a body.",
    "host": "A Host header that is not this daemon's (`http.hosts`).",
    "origin": "A page of another origin asked for data.",
    "head_timeout": "Headers that were not complete within `http.header_timeout`.",
    "write_timeout": "An answer that was not read within `http.write_timeout`.",
    "connections": "No probe, on a connection beyond `http.max_connections` or those of an address.",
    "handshake": "A TLS handshake that failed or took too long.",
}  # fmt: skip
_LOG_INTERVAL_S = 10.0
"""Minimum interval, in seconds, between log lines of one reason."""


class Refusals(Collector):
    """Counts and logs refusals. A Prometheus collector."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Number of refusals, by reason."""
        self._log_throttle = LogThrottle(_LOG_INTERVAL_S)

    def add(self, reason: str, peer: str) -> None:
        """Counts a refusal.

        Logs the first refusal of a reason, then at most one line with their number every ten seconds.
        """
        self.counts[reason] += 1
        times = self._log_throttle.times(reason, time.monotonic())
        if times:
            log.warning("http_refused", reason=reason, peer=peer, times=times)

    def collect(self) -> Iterable[Metric]:
        """Yields the number of refusals by reason. Called at each scrape."""
        refused = CounterMetricFamily(
            "hearth_http_refusals", "HTTP requests and connections refused or closed, by reason.",
            labels=["reason"],
        )  # fmt: skip
        for reason in REASONS:
            refused.add_metric([reason], self.counts[reason])
        yield refused


def answer(status: int, error: str, fix: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Returns the bytes of a refusal after which the connection is closed."""
    body = json.dumps({"error": error, "fix": fix}).encode()
    fields = {
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **HEADERS,
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode() + body
