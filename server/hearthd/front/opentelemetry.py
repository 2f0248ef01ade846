"""OpenTelemetry traces: a span for each call, if OpenTelemetry is installed and the environment asks for traces.

The variables are OpenTelemetry's own (``OTEL_TRACES_EXPORTER``, ``OTEL_EXPORTER_OTLP_ENDPOINT``, ...). Without them
nothing is imported. Only the front creates spans: the forkserver of device processes starts earlier, and does not use
OpenTelemetry. A thread of OpenTelemetry sends the spans, and drops those that it cannot send in time.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import structlog

from hearth_proto import VERSION
from hearth_proto.reasons import Code

if TYPE_CHECKING:
    from contextvars import Token

    from hearthd.front.errors import Context
    from hearthd.front.tenancy.tenants import Caller, NamedSession

log = structlog.get_logger("hearthd.spans")

_FLUSH_S = 2.0
"""Maximum time, in seconds, that the end of the daemon waits until the last spans have been sent."""
_ENABLING_VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_FAILED = frozenset(("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"))
"""Status codes that OpenTelemetry's conventions count as failures of the server."""
_PEER = re.compile(r"ipv[46]:\[?(.*?)]?:(\d+)")
_GROUP = "opentelemetry_traces_exporter"


class _TracingUnavailable(Exception):
    """Traces cannot be exported. The text is the reason; `fix` is the remedy."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


# ---- on and off ----


def exporters(environ: Mapping[str, str]) -> list[str]:
    """Returns the names of the span exporters that the environment asks for. Empty: no traces."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or not any(map(environ.get, _ENABLING_VARIABLES)):
        return []
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or ""
    otlp = _PROTOCOLS.get(protocol.strip() or "http/protobuf", f"otlp with the protocol {protocol}")
    names = [name.strip() for name in (environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")]
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def switch_on(environ: Mapping[str, str] = os.environ) -> None:
    """Starts tracing if the environment asks for traces, or if the process already has a provider.

    A provider exists under `opentelemetry-instrument`, or if an embedder has set one. An error is logged, and the
    daemon serves without traces.
    """
    try:
        provider = _existing_provider()
        owns_provider = provider is None
        if provider is None:
            names = exporters(environ)
            if not names:
                return
            provider = _create_provider(names)
        _Tracing.active = _Tracing(provider, owns_provider=owns_provider)
    except _TracingUnavailable as error:
        log.warning("no_traces", why=str(error), fix=error.fix)
    except Exception as error:  # for example an invalid number
        log.warning("no_traces", why=f"{type(error).__name__}: {error}", fix="see the OTEL_ variables")


def switch_off() -> None:
    """Sends the remaining spans, and waits for that up to `_FLUSH_S` seconds."""
    tracing, _Tracing.active = _Tracing.active, None
    if tracing is not None and tracing.owns_provider:
        shutdown = threading.Thread(target=tracing.provider.shutdown, name="traces-end", daemon=True)
        shutdown.start()
        shutdown.join(_FLUSH_S)


def _existing_provider() -> Any:
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    return None if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)) else provider


def _create_provider(names: list[str]) -> Any:
    try:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise _TracingUnavailable(
            f"the environment asks for traces, and OpenTelemetry is not installed: {error}",
            "install the extra hearth-gpu[otel] (in a clone: pip install '.[otel]'), or set OTEL_SDK_DISABLED=true",
        ) from None
    detected = OTELResourceDetector().detect().attributes  # OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME
    attributes = {"service.name": "hearthd", "service.version": VERSION, "host.name": socket.gethostname()}
    provider = TracerProvider(resource=Resource.create({**attributes, **detected}), shutdown_on_exit=False)
    for name in names:
        provider.add_span_processor(BatchSpanProcessor(_create_exporter(name)))
    return provider


def _create_exporter(name: str) -> Any:
    from importlib.metadata import entry_points

    matches = list(entry_points(group=_GROUP, name=name))
    if not matches:
        installed = ", ".join(sorted({entry_point.name for entry_point in entry_points(group=_GROUP)})) or "none"
        raise _TracingUnavailable(
            f"no exporter {name!r} for traces is installed; there are: {installed}",
            "install the extra hearth-gpu[otel] (in a clone: pip install '.[otel]'), which has otlp over "
            "http/protobuf, or name another in OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_PROTOCOL",
        )
    return matches[0].load()()


class _Tracing:
    """Tracing with a provider."""

    active: _Tracing | None = None
    """The tracing of this process; None: it is off."""

    def __init__(self, provider: Any, *, owns_provider: bool) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.provider = provider
        self.owns_provider = owns_provider
        self.api: Any = trace
        self.tracer: Any = provider.get_tracer("hearthd", VERSION)
        self.propagator = TraceContextTextMapPropagator()


# ---- calls ----


_current_span: ContextVar[CallSpan | None] = ContextVar("hearthd_call_span", default=None)


def begin(service: str, method: str, context: Context) -> CallSpan | None:
    """Starts the span of a call, whose parent is the span of the caller. None: tracing is off."""
    tracing = _Tracing.active
    if tracing is None:
        return None
    try:
        return CallSpan(tracing, service, method, context)
    except Exception:  # an error of tracing must not fail a call
        log.exception("no_span", service=service, method=method)
        return None


def of_session(session: NamedSession) -> None:
    """Records the session of the current call in its span."""
    call = _current_span.get()
    if call is not None:
        call.set_attributes({"hearth.session": session.id, "hearth.tenant": session.tenant.name})


def of_caller(caller: Caller) -> Caller:
    """Records the tenant of the current call's caller in its span, and returns the caller."""
    call = _current_span.get()
    if call is not None:
        call.set_attributes({"hearth.tenant": caller.tenant.name})
    return caller


class CallSpan:
    """The span of one call, which begins and ends in one task. Lines logged in between have its `trace_id`."""

    def __init__(self, tracing: _Tracing, service: str, method: str, context: Context) -> None:
        api = tracing.api
        self._api = api
        self._span: Any = tracing.tracer.start_span(
            f"{service}/{method}",
            context=tracing.propagator.extract(_text_metadata(context)),
            kind=api.SpanKind.SERVER,
            attributes={
                "rpc.system": "grpc",
                "rpc.service": service,
                "rpc.method": method,
                **_peer_attributes(context),
            },
        )
        self._token: Token[CallSpan | None] = _current_span.set(self)
        trace_id = api.format_trace_id(self._span.get_span_context().trace_id)
        self._log_context = structlog.contextvars.bind_contextvars(trace_id=trace_id)

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Adds attributes. Does nothing after the span has ended."""
        if self._span.is_recording():
            self._span.set_attributes(attributes)

    def end(self, code: str, reason: str) -> None:
        """Ends the span with the name of gRPC's status code and, if the call was refused or failed, the reason."""
        try:
            self._span.set_attribute("rpc.grpc.status_code", int(Code[code]))
            if code != "OK":
                self._span.set_attribute("error.type", reason or code)
            if code in _FAILED:
                self._span.set_status(self._api.StatusCode.ERROR, reason)
            self._span.end()
            _current_span.reset(self._token)
            structlog.contextvars.reset_contextvars(**self._log_context)
        except Exception:  # may happen if the task does not end by itself, but with the event loop
            log.debug("span_not_ended", exc_info=True)


def _text_metadata(context: Context) -> dict[str, str]:
    """Returns the text entries of the metadata.

    The metadata of a framed call (`FramedCall`) are read directly: asking the call for them would identify its caller,
    which is left to the code that needs it.
    """
    metadata: Any = getattr(context, "metadata", None)
    if metadata is None:
        metadata = context.invocation_metadata()
    return {str(name): value for name, value in metadata or () if isinstance(value, str)}


def _peer_attributes(context: Context) -> dict[str, Any]:
    peer = context.peer()
    match = _PEER.fullmatch(peer)
    if match is not None:
        return {"network.transport": "tcp", "client.address": match[1], "client.port": int(match[2])}
    return {"network.transport": "unix"} if peer.startswith("unix:") else {}


# ---- devices ----


def device_started(device: int, generation: int, started_at: float) -> None:
    """Records a span for a device process that is ready. `started_at`: monotonic time at which its start began."""
    tracing = _Tracing.active
    if tracing is not None:
        start_ns = time.time_ns() - int((time.monotonic() - started_at) * 1e9)
        attributes = {"hearth.device": device, "hearth.generation": generation}
        tracing.tracer.start_span("hearth.device_start", _root(), start_time=start_ns, attributes=attributes).end()


def device_lost(device: int, generation: int, cause: str, message: str) -> None:
    """Records a span for a device process that has ended, or was never ready."""
    tracing = _Tracing.active
    if tracing is not None:
        attributes = {"hearth.device": device, "hearth.generation": generation, "error.type": cause}
        span = tracing.tracer.start_span("hearth.device_lost", _root(), attributes=attributes)
        span.set_status(tracing.api.StatusCode.ERROR, message)
        span.end()


def _root() -> Any:
    """Returns the context of spans that belong to no call."""
    from opentelemetry.context import Context

    return Context()
