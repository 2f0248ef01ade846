"""What comes on a gRPC call, offered first to whoever can take it at once, in gRPC's own thread.

gRPC's iterator has the thread that iterates woken for each message, and once more for each that is sent; between them,
it and the thread that waits for what came fight for the interpreter. So this asks the call itself, as that iterator
does, and wakes who iterates for what nobody took. For that it needs of gRPC what is not public: where it is not as it
was from 1.76 to 1.85, `of` says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import grpc

cygrpc: Any = sys.modules.get("grpc._cython.cygrpc")

WANTED = True
"""Off: gRPC's iterator does it all."""
_OF_CYGRPC = ("ReceiveMessageOperation", "OperationType", "get_fork_epoch")
_OF_STATE = ("condition", "due", "code", "fork_epoch")


class Incoming:
    """The messages of one call. Iterated once, by one thread; nothing is asked for before, and nobody else may iterate
    over the call."""

    def __init__(self, call: Any, taken: Callable[[bytes], bool]) -> None:
        self._call = call
        self._operate: Callable[[tuple[object, ...], Callable[[Any], bool]], bool] = call._call.operate
        self._state = call._state
        self._taken = taken
        self._left: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        self._put = self._done = 0
        """How many messages were left to who iterates, and how many it is done with: each is written by one thread."""

    def __iter__(self) -> Iterator[bytes]:
        """What was not taken, in order; what is behind such a message is offered to nobody before it is done with.
        Raises as gRPC's own iterator where the call ends with an error."""
        self._begin()
        while (message := self._left.get()) is not None:
            if isinstance(message, Exception):
                raise message
            yield message
            self._done += 1
        if self._call.code() is not grpc.StatusCode.OK:
            raise self._call

    def _begin(self) -> None:
        state, asked = self._state, cygrpc.OperationType.receive_message
        with state.condition:
            if state.code is None:
                # Until `_came` takes it out: gRPC's thread serves the call until nothing is due.
                state.due.add(asked)
                if self._ask():
                    return
                state.due.discard(asked)
        self._left.put(None)

    def _ask(self) -> bool:
        """For the next message; False where the call is over."""
        return bool(self._operate((cygrpc.ReceiveMessageOperation(0),), self._came))

    def _came(self, event: Any) -> bool:
        """Called by gRPC's thread, which an error would end; whether it has no more to do for this call."""
        state, ended = self._state, None
        try:
            message = event.batch_operations[0].message()
            if message is not None:
                if self._put != self._done or not self._taken(message):
                    self._put += 1
                    self._left.put(message)
                with state.condition:
                    if state.code is None and self._ask():
                        return False
        except Exception as error:
            ended = error
        with state.condition:
            state.due.discard(cygrpc.OperationType.receive_message)
            state.condition.notify_all()
            over = not state.due and state.fork_epoch >= cygrpc.get_fork_epoch()
        self._left.put(ended)
        return over


def of(call: Any, taken: Callable[[bytes], bool]) -> Incoming | None:
    """The messages that `taken` does not take; None where gRPC has to be asked by its iterator."""
    state = getattr(call, "_state", None)
    if (
        WANTED
        and hasattr(getattr(call, "_call", None), "operate")
        and all(hasattr(cygrpc, name) for name in _OF_CYGRPC)
        and all(hasattr(state, name) for name in _OF_STATE)
    ):
        return Incoming(call, taken)
    return None
