"""A coroutine that takes its first step where it is begun, and the others in the task that awaits it.

What is to go out at once does not wait until the event loop gives a task its turn; what is to be done once it is out
still has a task, with its errors and its cancellation.
"""

from __future__ import annotations

from asyncio import Future, isfuture
from collections.abc import Coroutine, Generator
from typing import Any


class EagerCoroutine:
    """Awaited once, or closed; what its first step raises is raised there."""

    __slots__ = ("_coroutine", "_error", "_first")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine: Coroutine[Any, Any, Any] | None = coroutine
        self._error: BaseException | None = None
        self._first: Any = None
        """The future that the coroutine waits for."""
        try:
            self._first = coroutine.send(None)
        except StopIteration:
            self._coroutine = None
        except Exception as error:
            self._coroutine, self._error = None, error

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is None:
            if self._error is not None:
                raise self._error
            return
        waited, step = self._first, coroutine.send
        try:
            while True:
                argument: Any = None
                try:
                    yield waited
                    step = coroutine.send
                except BaseException as thrown:  # CancelledError
                    step, argument = coroutine.throw, thrown
                waited = step(argument)
        except StopIteration:
            return

    def close(self) -> None:
        """Closes the coroutine, which is not awaited any more."""
        if self._coroutine is not None:
            self._coroutine.close()
            self._coroutine = None
            if isfuture(self._first):
                self._first.add_done_callback(_look)


def _look(ended: Future[Any]) -> None:
    """Retrieves the exception of a future that is not awaited any more: gRPC fails a write whose client is gone, and
    asyncio would log that it was never retrieved."""
    if not ended.cancelled():
        ended.exception()
