"""Retries of calls whose error says that a further attempt may succeed.

The rules are those of gRPC as far as they suit users. The pause before the next attempt is at least the time that the
daemon gave (`HearthError.retry_after`, gRPC's RetryInfo), and at least a backoff that grows from attempt to attempt.
Both have jitter, so that clients that were refused together do not return together. All attempts share one deadline; if
the next attempt would be too late, the error is raised immediately.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, ParamSpec, TypeVar, cast

from hearth.codec import timeouts
from hearth.errors import ConnectError, HearthError
from hearth_proto.retries import Retry, retry

_P = ParamSpec("_P")
_T = TypeVar("_T")

_FIRST_S = 0.1
_GROWTH = 1.6
_MAX_PAUSE_S = 5.0
_SPREAD = 0.2


def retrying(
    *, timeout: float = 60.0, idempotent: bool = False, on_retry: Callable[[HearthError, float], object] | None = None
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorates a function so that it is called again if the daemon temporarily lacked room or was not reachable.

    >>> @hearth.retrying(timeout=30)
    ... def train(gpu): ...

    Only work that has not begun is repeated: the errors for which `HearthError.retryable` is true. The function should
    therefore do one thing that can be refused, or be safe to run twice. Coroutine functions are awaited again.

    Args:
        timeout: Seconds for all attempts together. If there is no time for another attempt, the last error is raised.
        idempotent: Also calls the function again if a device, its arrays, the session or the connection were lost
            during the call; the function must then make the objects that it needs again.
        on_retry: Called with the error and the seconds until the next attempt.

    Returns:
        The decorator.

    Raises:
        ArgumentError: `timeout` is not above 0.
    """
    timeouts.check(timeout)

    def next_pause(error: HearthError, pauses: Pauses) -> float | None:
        """Returns the seconds until the next attempt, after `on_retry` was called; None: there is no further attempt.

        Args:
            error: Error of the last attempt.
            pauses: Pauses of this call.
        """
        pause = pauses.after(error) if may_retry(error, idempotent) else None
        if pause is not None and on_retry is not None:
            on_retry(error, pause)
        return pause

    def wrap(function: Callable[_P, _T]) -> Callable[_P, _T]:
        if inspect.iscoroutinefunction(function):
            return cast("Callable[_P, _T]", _awaiting(function, timeout, next_pause))

        @functools.wraps(function)
        def call(*args: _P.args, **keywords: _P.kwargs) -> _T:
            pauses = Pauses(timeout)
            while True:
                try:
                    return function(*args, **keywords)
                except HearthError as error:
                    pause = next_pause(error, pauses)
                    if pause is None:
                        raise
                time.sleep(pause)

        return call

    return wrap


def _awaiting(
    function: Callable[..., Awaitable[Any]],
    timeout: float,
    next_pause: Callable[[HearthError, Pauses], float | None],
) -> Callable[..., Awaitable[Any]]:
    """Wraps a coroutine function with the same retries."""
    import asyncio

    @functools.wraps(function)
    async def call(*args: Any, **keywords: Any) -> Any:
        pauses = Pauses(timeout)
        while True:
            try:
                return await function(*args, **keywords)
            except HearthError as error:
                pause = next_pause(error, pauses)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    return call


def retry_until(attempt: Callable[[float], _T], timeout: float) -> _T:
    """Calls `attempt` until it succeeds. Blocks during the pauses.

    Args:
        attempt: The function, which receives the seconds left.
        timeout: Seconds for all attempts together.

    Returns:
        The result of `attempt`.

    Raises:
        HearthError: The error of an attempt that is not retryable, or of the last attempt.
    """
    return _retry(attempt, Pauses(timeout), None)


def retry_after_failure(
    failed: HearthError, attempt: Callable[[float], _T], timeout: float, reasons: Collection[str]
) -> _T:
    """Continues like `retry_until` after a first attempt has failed. Blocks during the pauses.

    Args:
        failed: The error of the first attempt.
        attempt: The function, which receives the seconds left.
        timeout: Seconds for all further attempts together.
        reasons: Reasons for which a further attempt is made; other errors are raised immediately.

    Returns:
        The result of `attempt`.

    Raises:
        HearthError: The error of an attempt that is not to be repeated, or of the last attempt.
    """
    pauses = Pauses(timeout)
    pause = pauses.after(failed)
    if pause is None:
        raise failed
    time.sleep(pause)
    return _retry(attempt, pauses, reasons)


def _retry(attempt: Callable[[float], _T], pauses: Pauses, reasons: Collection[str] | None) -> _T:
    while True:
        try:
            return attempt(max(pauses.remaining, _FIRST_S))
        except HearthError as error:
            may_retry = error.retryable and (reasons is None or error.reason in reasons)
            pause = pauses.after(error) if may_retry else None
            if pause is None:
                raise
        time.sleep(pause)


def may_retry(error: HearthError, idempotent: bool) -> bool:
    """Decides whether a failed call may be repeated.

    Args:
        error: The error of the call.
        idempotent: The call may run twice.

    Returns:
        True if it may be repeated.
    """
    if error.retryable:
        return True
    return idempotent and (retry(error.reason) is Retry.ANEW or error.broken or isinstance(error, ConnectError))


class Pauses:
    """Computes the pause before each next attempt, until `timeout` seconds have passed."""

    def __init__(
        self,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] | None = None,
    ) -> None:
        self._clock = clock
        self._deadline = clock() + timeout
        self._pause = _FIRST_S
        self._uniform = uniform

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self._deadline - self._clock()

    def after(self, error: HearthError) -> float | None:
        """Returns the seconds to wait after a failed attempt.

        Args:
            error: The error of the attempt.

        Returns:
            The pause in seconds; None: the next attempt would be too late.
        """
        if self._uniform is None:
            import random  # imported after the first failure, because the import takes long

            self._uniform = random.uniform
        pause = max(error.retry_after or 0.0, self._pause * self._uniform(1 - _SPREAD, 1.0))
        pause *= self._uniform(1.0, 1 + _SPREAD)  # the pause is never shorter than the daemon asked for
        self._pause = min(_MAX_PAUSE_S, self._pause * _GROWTH)
        return pause if pause < self.remaining else None
