"""A minimal collector of OpenTelemetry traces: OTLP over HTTP on the loopback interface, kept in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_WAIT_S = 20.0


class Span(NamedTuple):
    """A received span. Ids are hexadecimal digits; times are ns of Unix time; `resource` has the attributes of the
    sender."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    status: int
    start: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """Listens while it is used as a context manager."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self) -> dict[str, str]:
        """Returns the environment variables with which a daemon exports its spans to this collector within
        milliseconds."""
        return {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            "NO_PROXY": "127.0.0.1",
        }

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self._changed:
            for sender in request.resource_spans:
                resource = _attributes(sender.resource.attributes)
                for scope in sender.scope_spans:
                    self._spans += (
                        Span(
                            span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind,
                            span.status.code, span.start_time_unix_nano, span.end_time_unix_nano,
                            _attributes(span.attributes), resource,
                        )
                        for span in scope.spans
                    )  # fmt: skip
            self._changed.notify_all()

    @property
    def spans(self) -> list[Span]:
        """Returns all spans received so far."""
        with self._changed:
            return list(self._spans)

    def wait_for(self, matches: Callable[[Span], bool]) -> Span:
        """Waits for a span for which `matches` is true, and returns the first one."""
        deadline = time.monotonic() + _WAIT_S
        with self._changed:
            while True:
                for span in self._spans:
                    if matches(span):
                        return span
                assert self._changed.wait(deadline - time.monotonic()), [
                    (span.name, span.trace) for span in self._spans
                ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
