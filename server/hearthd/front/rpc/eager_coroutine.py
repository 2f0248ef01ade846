"""Eager coroutine: runs its first step when it is created, and the remaining steps in the task that awaits it.

A message is thus sent immediately, without waiting until the event loop runs a task. The work that follows the sending
still belongs to a task, with its errors and its cancellation.
"""

from __future__ import annotations

from asyncio import Future, isfuture
from collections.abc import Coroutine, Generator
from typing import Any


class EagerCoroutine:
    """A coroutine that has run its first step.

    It is awaited once, or closed. An error in the first step is raised when it is awaited.
    """

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
        future, resume = self._first, coroutine.send
        try:
            while True:
                argument: Any = None
                try:
                    yield future
                    resume = coroutine.send
                except BaseException as error:  # for example CancelledError
                    resume, argument = coroutine.throw, error
                future = resume(argument)
        except StopIteration:
            return

    def close(self) -> None:
        """Closes the coroutine. It must not be awaited afterwards."""
        if self._coroutine is not None:
            self._coroutine.close()
            self._coroutine = None
            if isfuture(self._first):
                self._first.add_done_callback(_retrieve_exception)


def _retrieve_exception(future: Future[Any]) -> None:
    """Retrieves the exception of a future that is no longer awaited.

    gRPC fails a write if the client has disconnected, and asyncio would log that the exception was never retrieved.
    """
    if not future.cancelled():
        future.exception()
