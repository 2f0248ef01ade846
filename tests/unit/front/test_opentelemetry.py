"""The daemon's traces: settings of the environment and their errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk.trace", exc_type=ImportError)  # the extra `otel`

import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hearthd.front import opentelemetry


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, []),
        ({"OTEL_SERVICE_NAME": "x"}, []),
        ({"OTEL_TRACES_EXPORTER": ""}, []),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "True"}, []),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ["otlp_proto_http"]),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp_proto_http", "console"]),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        (
            {
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            ["otlp_proto_http"],
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            ["otlp with the protocol http/json"],
        ),
    ],
)
def test_exporters_requested_by_the_environment(environ: Mapping[str, str], expected: list[str]) -> None:
    assert opentelemetry.exporters(environ) == expected


@pytest.fixture
def off() -> Iterator[None]:
    yield
    opentelemetry.switch_off()
    assert opentelemetry._Tracing.active is None


def told(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the log entry written by switching traces on."""
    with structlog.testing.capture_logs() as logged:
        opentelemetry.switch_on(environ)
    assert opentelemetry._Tracing.active is None
    (only,) = logged
    return dict(only)


@pytest.mark.usefixtures("off")
def test_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = told({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
    assert entry["event"] == "no_traces" and "console" in entry["why"] and "hearth-gpu[otel]" in entry["fix"]
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    entry = told({"OTEL_TRACES_EXPORTER": "otlp"})
    assert "not installed" in entry["why"] and "hearth-gpu[otel]" in entry["fix"]


@pytest.mark.usefixtures("off")
def test_invalid_value_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    assert "ValueError" in told({"OTEL_TRACES_EXPORTER": "console"})["why"]


class Call:
    """A fake context with the methods that traces use."""

    def __init__(self, *metadata: tuple[str, Any]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return "ipv6:[::1]:5000"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """An exporter of the process's existing provider, as with `opentelemetry-instrument` or in an embedder."""
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    opentelemetry.switch_on({})
    yield found
    opentelemetry.switch_off()
    with trace.get_tracer("after").start_as_current_span("still there"):
        pass
    assert found.get_finished_spans()[-1].name == "still there"  # an existing provider is not shut down


def test_existing_provider_is_used(exporter: InMemorySpanExporter) -> None:
    call: Any = Call(("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"), ("x-bin", b"\0"))
    begun = opentelemetry.begin("a.Service", "Method", call)
    assert begun is not None
    begun.end("INTERNAL", "INTERNAL")
    (span,) = exporter.get_finished_spans()
    assert span.name == "a.Service/Method" and span.status.status_code is trace.StatusCode.ERROR
    assert span.parent is not None and f"{span.parent.trace_id:032x}" == "1" * 32
    assert dict(span.attributes or {}) == {
        "rpc.system": "grpc", "rpc.service": "a.Service", "rpc.method": "Method", "rpc.grpc.status_code": 13,
        "error.type": "INTERNAL", "network.transport": "tcp", "client.address": "::1", "client.port": 5000,
    }  # fmt: skip
    begun.set_attributes({"too": "late"})
    assert "trace_id" not in structlog.contextvars.get_contextvars()


def test_a_span_that_cannot_be_made_fails_no_call(exporter: InMemorySpanExporter) -> None:
    class Broken(Call):
        def peer(self) -> str:
            raise ValueError

    broken: Any = Broken()
    assert opentelemetry.begin("a.Service", "Method", broken) is None


def test_without_traces_nothing_is_done() -> None:
    call: Any = None  # the context is not used
    assert opentelemetry.begin("a.Service", "Method", call) is None


@pytest.mark.parametrize(
    ("modules", "environ"),
    [
        ("hearthd.front.daemon.daemon", {}),
        (
            "hearthd.device.process.main, hearthd.device.cpu.server, hearthd.device.process.device_process",
            {"OTEL_TRACES_EXPORTER": "otlp"},
        ),
    ],
)
def test_opentelemetry_is_loaded_only_if_used(modules: str, environ: dict[str, str]) -> None:
    """Covers a front without tracing and, with or without tracing, device processes and their compilers."""
    code = f"""
import sys, {modules}
if "hearthd.front.opentelemetry" in sys.modules:
    sys.modules["hearthd.front.opentelemetry"].switch_on({{}})
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
