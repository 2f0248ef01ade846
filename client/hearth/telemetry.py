"""OpenTelemetry spans around calls that wait or take long, if the application uses OpenTelemetry.

This module imports nothing for that: an application that creates spans has loaded OpenTelemetry itself and configured a
tracer provider. A command that is sent one way, such as a launch, has no span; its error appears in the span of the
call that raises it. The client's spans are the parents of the daemon's spans, because calls carry the W3C trace
context.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Attributes = Mapping[str, "str | int | float | bool"]

_API: Final = "opentelemetry.trace"
_COROUTINE: Final = 0x80
"""The value of `inspect.CO_COROUTINE`; an import of `inspect` would take longer than all imports needed to connect."""
_MAX_STATE: Final = 512
"""Maximum number of characters of ``tracestate`` that are passed on, which is the minimum that W3C requires. Metadata
is bounded, and a call must not fail because of its trace."""
_modules: Final = sys.modules
_tracer: tuple[Any, Any] = (None, None)
"""The application's tracer provider, and the tracer obtained from it."""


def traced(
    name: str,
    describe: Callable[..., Attributes | None] | None = None,
    outcome: Callable[[Any], Attributes] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function, or a coroutine function, so that each call runs in a span.

    The callbacks are not called if no spans are made.

    Args:
        name: Name of the span.
        describe: Called with the function's arguments; returns the attributes of the span, or None if the call is to
            have no span. None: `location`.
        outcome: Called with the function's result; returns further attributes of the span. None: no further attributes.

    Returns:
        The decorator.
    """
    describe_call = describe or location

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _COROUTINE:
            coroutine: Callable[P, T] = _traced_coroutine(function, name, describe_call, outcome)
            return coroutine

        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> T:
            tracer = _find_tracer() if _API in _modules else None
            attributes = None if tracer is None else _attributes_of(describe_call, args, keywords)
            if attributes is None:
                return function(*args, **keywords)
            with _span(tracer, name, attributes) as current:
                result = function(*args, **keywords)
                if outcome is not None:
                    current.set_attributes(_attributes_of(outcome, (result,), {}) or {})
                return result

        return call

    return wrap


def _traced_coroutine(
    function: Callable[..., Any],
    name: str,
    describe: Callable[..., Attributes | None],
    outcome: Callable[[Any], Attributes] | None,
) -> Any:
    @wraps(function)
    async def call(*args: Any, **keywords: Any) -> Any:
        tracer = _find_tracer() if _API in _modules else None
        attributes = None if tracer is None else _attributes_of(describe, args, keywords)
        if attributes is None:
            return await function(*args, **keywords)
        with _span(tracer, name, attributes) as current:
            result = await function(*args, **keywords)
            if outcome is not None:
                current.set_attributes(_attributes_of(outcome, (result,), {}) or {})
            return result

    return call


def context() -> tuple[tuple[str, str], ...]:
    """Returns the metadata that carries the current span with a call; empty without a span.

    Its keys are ``traceparent`` and ``tracestate``.
    """
    if _API not in _modules:
        return ()
    try:
        if not _modules[_API].get_current_span().get_span_context().is_valid:
            return ()
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
    except Exception:  # e.g. half imported by another thread: no call may fail because of its trace
        return ()
    if len(carrier.get("tracestate", "")) > _MAX_STATE:
        del carrier["tracestate"]
    return tuple(carrier.items())


def is_enabled() -> bool:
    """Returns True if spans are made: the application has configured a tracer provider of OpenTelemetry."""
    return _API in _modules and _find_tracer() is not None


# ---- attributes of spans ----


def location(owner: Any, /, *_: object, **__: object) -> Attributes:
    """Returns daemon, session and device as attributes, for an object that has a connection or is a node or a group."""
    connection = getattr(owner, "_connection", None)
    if connection is not None:
        return of(connection)
    session = getattr(owner, "_session", None)
    return {} if session is None else _of_transport(session.transport)


def of(connection: Any) -> dict[str, Any]:
    """Returns daemon, session and device of a connection as attributes."""
    return {**_of_transport(connection.transport), "hearth.device": connection.ordinal}


def of_array(array: Any, /, *_: object, **__: object) -> Attributes:
    """Returns the attributes for reading an array."""
    return {**of(array._connection), "hearth.bytes": array.nbytes}


def of_upload(array: Any, host: Any, /, *_: object, **__: object) -> Attributes | None:
    """Returns the attributes for writing a host array; None if its bytes are sent inside a command, one way."""
    if host.nbytes <= array._connection.limits.max_inline_bytes:
        return None
    return {**of(array._connection), "hearth.bytes": host.nbytes}


def of_dispatch(device: Any, function: Any, /, *_: object, **__: object) -> Attributes:
    """Returns the attributes for the dispatch of a kernel."""
    return {**of(device._connection), "hearth.kernel": str(getattr(function, "name", ""))}


def of_result(pending: Any, /, *_: object, **__: object) -> Attributes | None:
    """Returns the attributes for waiting for a dispatch; None if the dispatch has completed."""
    job = pending._job
    return None if job.result is not None else of(job.connection)


def of_name(device: Any, name: Any, /, *_: object, **__: object) -> Attributes:
    """Returns the attributes for an array that is published or attached under a name."""
    return {**of(device._connection), "hearth.name": str(name)}


def of_group(group: Any, ranks: Any, /, *_: object, **__: object) -> Attributes:
    """Returns the attributes for forming a group over daemons."""
    return {"hearth.ranks": len(ranks)}


def of_target(target: object = None, /, *_: object, **__: object) -> Attributes:
    """Returns the target of a connect, as the caller gave it, as an attribute."""
    return {} if target is None else {"hearth.target": str(target)}


def of_node(node: Any, /) -> Attributes:
    """Returns the attributes of a session that has been opened."""
    return {**_of_transport(node._session.transport), "hearth.tenant": node.tenant}


def _of_transport(transport: Any) -> dict[str, Any]:
    """Returns session and address of a transport as attributes.

    By OpenTelemetry's conventions, the address of a Unix socket is its path.
    """
    attributes: dict[str, Any] = {"hearth.session": transport.session_id}
    target: str = transport.target
    if target.startswith("unix:"):
        return {**attributes, "network.transport": "unix", "server.address": target.removeprefix("unix:")}
    host, _, port = target.rpartition(":")
    attributes |= {"network.transport": "tcp", "server.address": host.strip("[]") or target}
    return {**attributes, "server.port": int(port)} if port.isdecimal() else attributes


# ---- internals ----


def _attributes_of(describe: Callable[..., Attributes | None], args: Any, keywords: Any) -> Attributes | None:
    """Returns the attributes that `describe` returns; no attributes if it fails.

    It fails for wrong arguments, which the called function itself reports.
    """
    try:
        return describe(*args, **keywords)
    except Exception:
        return {}


def _find_tracer() -> Any:
    """Returns the tracer of the application's provider; None if there is no active provider.

    While OpenTelemetry is not completely imported, no provider is active.
    """
    global _tracer  # noqa: PLW0603 - replaced as a whole
    try:
        api = _modules[_API]
        provider = api.get_tracer_provider()
        known_provider, tracer = _tracer
        if known_provider is not provider:
            from hearth_proto import VERSION

            inactive = isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider))
            tracer = None if inactive else provider.get_tracer("hearth", VERSION)
            _tracer = provider, tracer
        return tracer
    except Exception:  # half imported by another thread, or configured wrongly, which is not for Hearth to report
        return None


@contextmanager
def _span(tracer: Any, name: str, attributes: Attributes) -> Iterator[Any]:
    """Makes a span around a block, and records the error that the block raises."""
    kind = _modules[_API].SpanKind.CLIENT
    with tracer.start_as_current_span(name, kind=kind, attributes=attributes) as current:
        try:
            yield current
        except BaseException as error:
            current.set_attribute("error.type", getattr(error, "reason", None) or type(error).__qualname__)
            raise
