"""Replies without an attachment."""

from __future__ import annotations

import threading

from hearth.session.reply import Reply
from hearth.session.waiters import Waiters


def lone_reply(*, reports: bool = False) -> Reply:
    """Returns a reply that no attachment receives: the test completes it."""
    return Reply(Waiters(threading.Lock()), reports=reports)
