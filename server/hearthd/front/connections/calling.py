"""The connection that the running call came by, as a context variable, so that whatever accepts or refuses a credential
(the authenticator, the session table) reports it without being passed the call."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from hearthd.front.connections.limiter import ConnectionSlot

_CALLING: ContextVar[ConnectionSlot | str] = ContextVar("calling", default="")


def enter(context: Any) -> None:
    """A call begins in this task."""
    slot = getattr(context, "slot", None)
    _CALLING.set(context.peer() if slot is None else slot)


def current() -> ConnectionSlot | str:
    """The slot of a call that came as frames, gRPC's name of the peer otherwise; empty outside of calls. Never the call
    itself: tasks that it starts would keep it alive."""
    return _CALLING.get()
