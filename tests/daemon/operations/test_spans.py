"""OpenTelemetry: spans of the client, spans of the daemon, and traces that contain both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk.trace", exc_type=ImportError)  # part of the extra otel

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import hearth
from hearth.transport.framed import FramedTransport
from hearth.transport.grpc import GrpcTransport
from tests.support.client.internals import session_of
from tests.support.daemon.collector import Collector, Span
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment
from tests.support.daemon.kernels import COMMON, saxpy_works
from tests.support.daemon.raw import Raw
from tests.support.daemon.tenants import tenants

LARGE = 3 << 20
"""Size in bytes: more than fits into a command."""
SERVER = 2
"""Value of SPAN_KIND_SERVER."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as listening:
        yield listening


@pytest.fixture(scope="module")
def traced(cache: Path, collector: Collector) -> Iterator[DaemonProcess]:
    """A daemon that exports its spans to the collector."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in collector.environment().items():
            patch.setenv(name, value)
        process = DaemonProcess(cache, cpu_count=1)
    yield process
    code, log, left = process.stop(), process.log(), process.left_behind()
    process.remove()
    assert code == 0 and not left, log
    assert "no_traces" not in log and "no_span" not in log, log


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this process, which acts as an application with OpenTelemetry during the test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def names(exporter: InMemorySpanExporter) -> list[str]:
    return [span.name for span in exporter.get_finished_spans()]


def last(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(span for span in reversed(exporter.get_finished_spans()) if span.name == name)


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Returns the trace id and the span id, in the collector's format."""
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


# ---- the client ----


def test_waiting_calls_have_spans_and_one_way_calls_have_none(
    daemon: DaemonProcess, exported: InMemorySpanExporter
) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        module = gpu.RawModule(code=COMMON)
        add_one = module.get_function("add_one")
        x = gpu.zeros(4, np.int32)
        x.set(np.ones(4, np.int32))
        add_one((1,), (4,), (x, np.int32(4)))
        event = gpu.current_stream.record()
        assert names(exported) == ["hearth.connect"]
        event.synchronize()
        module.compile()
        assert x.get().tolist() == [2] * 4
        gpu.asarray(np.zeros(LARGE, np.uint8))
        gpu.flush()
        gpu.synchronize()
        gpu.current_stream.synchronize()
        node.synchronize()
        session = node.session_id
        assert names(exported)[1:] == [
            "hearth.event.synchronize", "hearth.compile", "hearth.get", "hearth.upload", "hearth.flush",
            "hearth.synchronize", "hearth.stream.synchronize", "hearth.synchronize",
        ]  # fmt: skip
    assert names(exported)[-1] == "hearth.close"
    where = {"hearth.session": session, "network.transport": "unix", "server.address": daemon.unix[5:]}
    assert said(last(exported, "hearth.connect")) == {
        **where, "hearth.target": daemon.unix, "hearth.tenant": "default"
    }  # fmt: skip
    assert said(last(exported, "hearth.get")) == {**where, "hearth.device": 0, "hearth.bytes": 16}
    assert said(last(exported, "hearth.upload"))["hearth.bytes"] == LARGE
    assert all(span.kind is SpanKind.CLIENT for span in exported.get_finished_spans())
    assert all(span.status.status_code is StatusCode.UNSET for span in exported.get_finished_spans())


def test_spans_of_dispatches_and_publications(daemon: DaemonProcess, exported: InMemorySpanExporter) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        add_one = gpu.RawModule(code=COMMON).get_function("add_one")
        a = np.zeros(4, np.int32)
        (out,) = gpu.dispatch(add_one, 1, 4, [hearth.InOut(a), np.int32(4)])
        assert out.tolist() == [1] * 4
        assert said(last(exported, "hearth.dispatch"))["hearth.kernel"] == "add_one"
        pending = gpu.dispatch_async(add_one, 1, 4, [hearth.InOut(a), np.int32(4)])
        assert "hearth.dispatch.result" not in names(exported)
        pending.result()
        pending.result()
        assert names(exported).count("hearth.dispatch.result") == 1
        gpu.asarray(a).publish("spans-of-a-test")
        gpu.attach("spans-of-a-test")
        assert said(last(exported, "hearth.publish"))["hearth.name"] == "spans-of-a-test"
        assert said(last(exported, "hearth.attach"))["hearth.name"] == "spans-of-a-test"


def test_errors_are_recorded_in_the_span_of_the_wait(daemon: DaemonProcess, exported: InMemorySpanExporter) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        with pytest.raises(hearth.CompileError):
            gpu.RawModule(code="this is no program").compile()
        x = gpu.zeros(4, np.int32)
        x.free()
        with pytest.raises(hearth.InvalidHandleError):
            x.get()
        with pytest.raises(TypeError):
            x.get(no_such_argument=1)  # type: ignore[call-arg]
    with pytest.raises(hearth.ConnectError):
        hearth.connect("unix:/nowhere/hearth.sock")
    for name, reason in (("hearth.compile", "COMPILE_FAILED"), ("hearth.connect", "DEVICE_UNAVAILABLE")):
        span = last(exported, name)
        assert span.status.status_code is StatusCode.ERROR and span.status.description
        assert said(span)["error.type"] == reason
        assert [event.name for event in span.events] == ["exception"]
    freed, wrong = [span for span in exported.get_finished_spans() if span.name == "hearth.get"]
    assert said(freed)["error.type"] == "INVALID_HANDLE" and said(wrong)["error.type"] == "TypeError"


@pytest.mark.parametrize("way", ["api", "nothing", "half", "wrong"])
def test_client_works_without_a_tracer_provider(way: str, daemon: DaemonProcess) -> None:
    """OpenTelemetry is loaded without a provider, not loaded, being loaded by another thread, or configured wrongly."""
    program = f"""
import sys, types
way = {way!r}
if way in ("api", "wrong"):
    import opentelemetry.trace
if way == "half":
    sys.modules["opentelemetry.trace"] = types.ModuleType("opentelemetry.trace")
import numpy as np, hearth
with hearth.connect({daemon.unix!r}) as node:
    gpu = node.device(0)
    assert gpu.asarray(np.arange(4)).get().tolist() == [0, 1, 2, 3]
    gpu.synchronize()
    node.status()
if way == "nothing":
    assert not [name for name in sys.modules if name.startswith("opentelemetry")]
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
"""
    env = environment(**({"OTEL_PYTHON_TRACER_PROVIDER": "no_such_provider"} if way == "wrong" else {}))
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- client and daemon ----


@pytest.mark.parametrize("way", ["frames", "grpc", "tcp"])
def test_one_trace_goes_through_client_and_daemon(
    way: str, traced: DaemonProcess, collector: Collector, exported: InMemorySpanExporter
) -> None:
    target = traced.grpc if way == "tcp" else traced.unix
    application = trace.get_tracer("application")
    with (
        application.start_as_current_span("request") as request,
        hearth.connect(target, lanes=way != "grpc") as node,
    ):
        assert isinstance(session_of(node).transport, FramedTransport if way == "frames" else GrpcTransport)
        node.status()
        session = node.session_id
    trace_id, request_id = f"{request.get_span_context().trace_id:032x}", f"{request.get_span_context().span_id:016x}"

    def of_call(method: str) -> Span:
        name = f"hearth.v1.NodeService/{method}"
        return collector.wait_for(lambda span: span.name == name and span.trace == trace_id)

    opened, asked, closed = of_call("OpenSession"), of_call("GetStatus"), of_call("CloseSession")
    assert (trace_id, opened.parent) == ids(last(exported, "hearth.connect"))
    assert (trace_id, closed.parent) == ids(last(exported, "hearth.close"))
    assert asked.parent == request_id
    assert opened.kind == SERVER and opened.start < opened.end and opened.status == 0
    assert opened.resource["service.name"] == "hearthd" and opened.resource["service.version"]
    seen = dict(opened.attributes)
    if way == "tcp":
        assert seen.pop("client.address") == "127.0.0.1" and seen.pop("client.port")
    assert seen == {
        "rpc.system": "grpc", "rpc.service": "hearth.v1.NodeService", "rpc.method": "OpenSession",
        "rpc.grpc.status_code": 0, "hearth.session": session, "hearth.tenant": "default",
        "network.transport": "tcp" if way == "tcp" else "unix",
    }  # fmt: skip


def test_transfers_belong_to_the_upload_and_the_get(
    traced: DaemonProcess, collector: Collector, exported: InMemorySpanExporter
) -> None:
    """The transfers use separate gRPC streams."""
    with hearth.connect(traced.unix, lanes=False) as node:
        x = node.device(0).asarray(np.zeros(LARGE, np.uint8))
        x.get()
    for method, name in (("Upload", "hearth.upload"), ("Download", "hearth.get")):
        place = ids(last(exported, name))
        span = collector.wait_for(lambda span, place=place: (span.trace, span.parent) == place)  # type: ignore[misc]
        assert span.name == f"hearth.v1.DeviceService/{method}"
        assert span.attributes["hearth.session"] == node.session_id


def test_calls_without_a_trace_begin_their_own(traced: DaemonProcess, collector: Collector) -> None:
    before = {span.id for span in collector.spans}
    with Raw(traced.unix):
        pass
    span = collector.wait_for(lambda span: span.id not in before and span.name.endswith("/OpenSession"))
    assert span.parent == "" and span.trace.strip("0")


def test_refusals_have_their_code_and_reason(
    traced: DaemonProcess, collector: Collector, exported: InMemorySpanExporter
) -> None:
    with (
        trace.get_tracer("application").start_as_current_span("request") as request,
        traced.connect() as node,
        pytest.raises(hearth.InvalidHandleError),
    ):
        node.end_session("no-such-session")
    wanted = f"{request.get_span_context().trace_id:032x}"
    span = collector.wait_for(lambda span: span.trace == wanted and span.name.endswith("/EndSession"))
    # NOT_FOUND: an answer to the client, not a failure of the daemon
    assert span.attributes["rpc.grpc.status_code"] == 5
    assert span.attributes["error.type"] == "INVALID_HANDLE" and span.status == 0


@pytest.mark.parametrize(
    "traceparent", ["", "00-0-0-01", "ff-" + "1" * 32 + "-" + "2" * 16 + "-01", "x" * 4000, "00-" + "0" * 53]
)
def test_invalid_trace_context_is_ignored(
    traceparent: str, traced: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: Sequence[tuple[str, str]] = (("traceparent", traceparent), ("tracestate", "=,=,,a" * 100))
    monkeypatch.setattr("hearth.telemetry.context", lambda: shown)
    for lanes in (True, False):
        with traced.connect(lanes=lanes) as node:
            assert node.status()


def test_log_entries_have_the_trace_id(traced: DaemonProcess, exported: InMemorySpanExporter) -> None:
    with traced.connect():
        pass
    assert f'"trace_id": "{ids(last(exported, "hearth.connect"))[0]}"' in traced.log()


def test_spans_of_a_lost_and_restarted_device(traced: DaemonProcess, collector: Collector) -> None:
    with traced.connect() as node:
        gpu = node.device(0)
        gpu.synchronize()
        generation = gpu.generation
        os.kill(traced.device_pid(), signal.SIGKILL)
        lost = collector.wait_for(lambda span: span.name == "hearth.device_lost")
        back = collector.wait_for(
            lambda span: span.name == "hearth.device_start" and span.attributes["hearth.generation"] == generation + 1
        )
        assert lost.attributes["hearth.device"] == 0 and lost.attributes["hearth.generation"] == generation
        assert lost.status == 2 and lost.attributes["error.type"]
        assert lost.parent == back.parent == "" and back.start < back.end


def test_tenants(start_daemon: StartDaemon, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers callers without a session, too; the last spans are exported before the daemon ends."""
    for name, value in {**collector.environment(), "OTEL_BSP_SCHEDULE_DELAY": "60000"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "of-tenants")
    config, tokens = tenants("alice")
    daemon = start_daemon(**config)
    with daemon.connect(token=tokens["alice"]) as node:
        node.describe()
    with pytest.raises(hearth.AuthenticationError):
        daemon.connect(token="wrong")
    assert daemon.stop() == 0
    mine = [span for span in collector.spans if span.resource["service.name"] == "of-tenants"]
    described = next(span for span in mine if span.name.endswith("/Describe"))
    assert described.attributes["hearth.tenant"] == "alice"
    refused = [span for span in mine if span.name.endswith("/OpenSession")][-1]
    assert refused.attributes["error.type"] == "UNAUTHENTICATED" and "hearth.tenant" not in refused.attributes
    assert not any(tokens["alice"] in str(span) for span in mine)


# ---- errors in the environment ----


def test_absent_collector_causes_no_delay(start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon serves, and ends without delay."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    daemon = start_daemon()
    with daemon.connect() as node:
        saxpy_works(node.device(0))
    assert daemon.stop() == 0


def test_invalid_environment_is_only_reported(start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    daemon = start_daemon()
    assert "no exporter 'zipkin'" in daemon.log() and "otlp_proto_http" in daemon.log()
    with daemon.connect() as node:
        assert node.status()
