"""Spans of the client, without a daemon; see `tests/daemon/operations/test_spans.py`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk.trace", exc_type=ImportError)  # installed by the extra `otel`

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

from hearth import telemetry
from hearth.errors import HearthError


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield found
    provider.shutdown()


def unused(*arguments: object, **keywords: object) -> Any:
    raise AssertionError("no span is made")


@telemetry.traced("adds", lambda a, b=0: {"a": a}, lambda result: {"result": result})
def add(a: int, b: int = 0) -> int:
    """Adds."""
    if b < 0:
        raise HearthError("not these.", reason="OUT_OF_BOUNDS")
    return a + b


@telemetry.traced("adds later", lambda a, b: None if b == 0 else {"a": a}, lambda result: {"result": result})
async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return add(a, b)


def test_functions(exporter: InMemorySpanExporter) -> None:
    assert add(1, b=2) == 3 and add.__doc__ == "Adds." and add.__name__ == "add"
    with pytest.raises(HearthError):
        add(1, -1)
    done, failed = exporter.get_finished_spans()
    assert done.name == "adds" and dict(done.attributes or {}) == {"a": 1, "result": 3}
    assert dict(failed.attributes or {}) == {"a": 1, "error.type": "OUT_OF_BOUNDS"}
    assert failed.status.status_code is trace.StatusCode.ERROR


def test_coroutine_functions(exporter: InMemorySpanExporter) -> None:
    async def both() -> None:
        assert await asyncio.gather(add_later(1, 2), add_later(3, 4), add_later(5, 0)) == [3, 7, 5]

    asyncio.run(both())
    made = exporter.get_finished_spans()
    outer = {span.context.span_id: span for span in made if span.name == "adds later" and span.context}
    inner = [span for span in made if span.name == "adds"]
    assert len(outer) == 2 and len(inner) == 3  # two concurrent tasks: each has its own outer span
    for span in inner:
        if span.parent is not None:
            assert (outer[span.parent.span_id].attributes or {})["a"] == (span.attributes or {})["a"]


def test_function_is_called_if_its_description_fails(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(TypeError, match="add"):
        add(1, 2, 3)  # type: ignore[call-arg]
    assert [span.name for span in exporter.get_finished_spans()] == ["adds"]


@pytest.mark.parametrize("provider", [None, trace.NoOpTracerProvider()])
def test_nothing_is_described_without_a_provider(provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    assert telemetry.traced("x", unused, unused)(lambda: 5)() == 5


def test_the_context_of_a_call(exporter: InMemorySpanExporter) -> None:
    assert telemetry.context() == ()
    long = TraceState([(name, "x" * 250) for name in "abc"])
    for state, shown in ((TraceState([("a", "b")]), "a=b"), (long, "")):
        own = SpanContext(0x11, 0x22, is_remote=False, trace_flags=TraceFlags(1), trace_state=state)
        with use_span(NonRecordingSpan(own)):
            carried = dict(telemetry.context())
        assert carried.pop("traceparent") == f"00-{0x11:032x}-{0x22:016x}-01"
        assert carried == ({"tracestate": shown} if shown else {})


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("unix:/run/hearth.sock", {"network.transport": "unix", "server.address": "/run/hearth.sock"}),
        ("node:7421", {"network.transport": "tcp", "server.address": "node", "server.port": 7421}),
        ("[::1]:7421", {"network.transport": "tcp", "server.address": "::1", "server.port": 7421}),
        ("node", {"network.transport": "tcp", "server.address": "node"}),
    ],
)
def test_addresses(target: str, expected: dict[str, Any]) -> None:
    connection: Any = SimpleNamespace(transport=SimpleNamespace(target=target, session_id="s"), ordinal=3)
    assert telemetry.of(connection) == {**expected, "hearth.session": "s", "hearth.device": 3}


def test_call_without_spans_costs_one_further_call() -> None:
    """Counts calls instead of time, because time is not conclusive on a busy machine; on an idle one it is half a
    microsecond."""
    program = """
import sys
from hearth import telemetry

class Some:
    def plain(self, stream=None, *, timeout=None): pass
    traced = telemetry.traced("x")(plain)

some = Some()
def calls(call):
    call()
    found = []
    sys.setprofile(lambda frame, event, about: found.append(event) if "call" in event else None)
    call()
    sys.setprofile(None)
    return len(found)
print(calls(lambda: some.traced(timeout=1)) - calls(lambda: some.plain(timeout=1)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1, done.stdout
