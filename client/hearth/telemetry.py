"""Spans of OpenTelemetry's around what waits or is long, where the application uses that.

Nothing is imported for it: an application that makes spans has loaded OpenTelemetry itself, and configured a provider.
What is sent one way, a launch for one, has no span; an error of it is in that of the wait which
raises it. The daemon's spans have those from here as their parents: calls carry W3C's trace context.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Protocol

    class _Connection(Protocol):
        """A connection to a device: `hearth.session.connection.Connection`."""

        transport: Any
        ordinal: int

    class _Session(Protocol):
        """A session on a node: `hearth.session.lease.NodeSession`."""

        transport: Any

    class _Node(Protocol):
        """A node: `hearth.base_node.BaseNode`."""

        @property
        def _session(self) -> _Session: ...
        @property
        def tenant(self) -> str: ...


P = ParamSpec("P")
T = TypeVar("T")
Attributes = Mapping[str, "str | int | float | bool"]

_API: Final = "opentelemetry.trace"
_COROUTINE: Final = 0x80
"""`inspect.CO_COROUTINE`; to import that would take longer than all that is needed to connect."""
_MOST_STATE: Final = 512
"""Characters of ``tracestate`` that are passed on, the least that W3C asks for: metadata is bounded, and a call is not
to fail for its trace."""
_modules: Final = sys.modules
_tracer: tuple[Any, Any] = (None, None)
"""The application's provider, and the tracer that was got from it."""


class _Nothing:
    """A span where there are none."""

    __slots__ = ()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def set_attribute(self, name: str, value: Any) -> None: ...
    def set_attributes(self, attributes: Attributes) -> None: ...


_NOTHING: Final = _Nothing()


def span(name: str, /, attributes: Attributes | None = None) -> AbstractContextManager[Any]:
    """``with span("hearth.get", {"hearth.bytes": 4096}):`` one around the block, with the error that it raises."""
    tracer = _find_tracer() if _API in _modules else None
    return _NOTHING if tracer is None else _recorded(tracer, name, attributes)


def traced(
    name: str,
    describe: Callable[..., Attributes | None] | None = None,
    outcome: Callable[[Any], Attributes] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function, or a coroutine function, in a span of `name`.

    `describe`: gets the function's arguments and says what stands in the span, or None for a call without one; without
    it, what `place` says. `outcome`: the same of what is returned. Neither is called if no spans are made.
    """
    describing = describe or place

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _COROUTINE:
            awaiting: Callable[P, T] = _awaiting(function, name, describing, outcome)
            return awaiting

        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> T:
            if _API not in _modules or _find_tracer() is None:
                return function(*args, **keywords)
            attributes = _said(describing, args, keywords)
            if attributes is None:
                return function(*args, **keywords)
            with span(name, attributes) as current:
                result = function(*args, **keywords)
                if outcome is not None:
                    current.set_attributes(_said(outcome, (result,), {}) or {})
                return result

        return call

    return wrap


def _awaiting(
    function: Callable[..., Any],
    name: str,
    describe: Callable[..., Attributes | None],
    outcome: Callable[[Any], Attributes] | None,
) -> Any:
    @wraps(function)
    async def call(*args: Any, **keywords: Any) -> Any:
        made = _API in _modules and _find_tracer() is not None
        attributes = _said(describe, args, keywords) if made else None
        if attributes is None:
            return await function(*args, **keywords)
        with span(name, attributes) as current:
            result = await function(*args, **keywords)
            if outcome is not None:
                current.set_attributes(_said(outcome, (result,), {}) or {})
            return result

    return call


def context() -> tuple[tuple[str, str], ...]:
    """Metadata that carries the current span with a call: ``traceparent`` and ``tracestate``; empty without a span."""
    if _API not in _modules:
        return ()
    try:
        if not _modules[_API].get_current_span().get_span_context().is_valid:
            return ()
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
    except Exception:  # half imported by another thread, say: no call fails for its trace
        return ()
    if len(carrier.get("tracestate", "")) > _MOST_STATE:
        del carrier["tracestate"]
    return tuple(carrier.items())


def made() -> bool:
    """True if spans are made: the application has set up a tracer provider of OpenTelemetry."""
    return _API in _modules and _find_tracer() is not None


# ---- what stands in spans ----


def place(owner: Any, /, *_: object, **__: object) -> Attributes:
    """Daemon, session and device of what has a connection, or is a node or a group."""
    connection = getattr(owner, "_connection", None)
    if connection is not None:
        return of(connection)
    session = getattr(owner, "_session", None)
    return {} if session is None else _of_transport(session.transport)


def of(connection: _Connection) -> dict[str, Any]:
    """Daemon, session and device of a connection."""
    return {**_of_transport(connection.transport), "hearth.device": connection.ordinal}


def of_array(array: Any, /, *_: object, **__: object) -> Attributes:
    """An array that is read."""
    return {**of(array._connection), "hearth.bytes": array.nbytes}


def of_upload(array: Any, host: Any, /, *_: object, **__: object) -> Attributes | None:
    """A host array that is written; none that goes inside of a command, one way."""
    if host.nbytes <= array._connection.limits.max_inline_bytes:
        return None
    return {**of(array._connection), "hearth.bytes": host.nbytes}


def of_dispatch(device: Any, function: Any, /, *_: object, **__: object) -> Attributes:
    """A kernel that is dispatched."""
    return {**of(device._connection), "hearth.kernel": str(getattr(function, "name", ""))}


def of_result(pending: Any, /, *_: object, **__: object) -> Attributes | None:
    """A dispatch that is waited for, unless it is done."""
    job = pending._job
    return None if job.result is not None else of(job.connection)


def of_name(device: Any, name: Any, /, *_: object, **__: object) -> Attributes:
    """An array that is published, or attached, under a name."""
    return {**of(device._connection), "hearth.name": str(name)}


def of_group(group: Any, ranks: Any, /, *_: object, **__: object) -> Attributes:
    """A group over daemons that is formed."""
    return {"hearth.ranks": len(ranks)}


def of_target(target: object = None, /, *_: object, **__: object) -> Attributes:
    """The target of a connect, as the caller gave it."""
    return {} if target is None else {"hearth.target": str(target)}


def of_node(node: _Node, /) -> Attributes:
    """A session that was opened."""
    return {**_of_transport(node._session.transport), "hearth.tenant": node.tenant}


def _of_transport(transport: Any) -> dict[str, Any]:
    """Returns the span attributes of a transport; by the conventions, a Unix socket's address is its path."""
    found: dict[str, Any] = {"hearth.session": transport.session_id}
    target: str = transport.target
    if target.startswith("unix:"):
        return {**found, "network.transport": "unix", "server.address": target.removeprefix("unix:")}
    host, _, port = target.rpartition(":")
    found |= {"network.transport": "tcp", "server.address": host.strip("[]") or target}
    return {**found, "server.port": int(port)} if port.isdecimal() else found


# ---- inside ----


def _said(describe: Callable[..., Attributes | None], args: Any, keywords: Any) -> Attributes | None:
    """The attributes that `describe` returns; none if it fails, since the called function reports wrong arguments."""
    try:
        return describe(*args, **keywords)
    except Exception:
        return {}


def _find_tracer() -> Any:
    """The tracer of the application's provider; None where it has none, or OpenTelemetry is not all there."""
    global _tracer  # noqa: PLW0603 - replaced as a whole
    try:
        api = _modules[_API]
        provider = api.get_tracer_provider()
        known, tracer = _tracer
        if known is not provider:
            from hearth.version import __version__

            inactive = isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider))
            tracer = None if inactive else provider.get_tracer("hearth", __version__)
            _tracer = provider, tracer
        return tracer
    except Exception:  # half imported by another thread, or set up wrongly: not ours to tell
        return None


@contextmanager
def _recorded(tracer: Any, name: str, attributes: Attributes | None) -> Iterator[Any]:
    kind = _modules[_API].SpanKind.CLIENT
    with tracer.start_as_current_span(name, kind=kind, attributes=attributes) as current:
        try:
            yield current
        except BaseException as error:
            current.set_attribute("error.type", getattr(error, "reason", None) or type(error).__qualname__)
            raise
