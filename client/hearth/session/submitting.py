"""Threads that submit to a device: what they queue, what they wait for, and when they let others have a turn.

Who submits faster than the daemon executes waits.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hearth.codec import batch
from hearth.errors import HearthError
from hearth.session import send_queue
from hearth.session.lane_user import LaneUser
from hearth.session.memory import burials
from hearth.session.protocol import Session
from hearth.session.reply import Reply
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.codec.encode import Plain
    from hearth.session.memory import Kind
    from hearth.session.reply import ReplyLike
    from hearth.session.send_queue import Limits

_TURN_S = 0.5e-3
"""How long commands may lie in the queue, though they could be sent, before who submits lets others have a turn."""
_LANE_TURN_S = 50e-6
"""How long it lets them over a lane, where it sends itself what is worth it: the receiving thread alone needs a turn,
to say what is done."""


class Submitting(LaneUser):
    """An attachment, as threads that submit know it."""

    def __init__(
        self, limits: Limits, on_late_error: Callable[[HearthError], None], requests: Iterator[int] | None
    ) -> None:
        """`requests`: mints their numbers, where others number theirs alike."""
        self._requests_minted = requests if requests is not None else itertools.count(1)
        super().__init__(Session(limits, next(self._requests_minted)))
        self._before: Callable[[], None] | None = None
        """Called by who waits for an answer, before the wait returns with it."""
        self._on_late_error = on_late_error
        self._dead: deque[tuple[Kind, int]] = deque()
        """What was freed and has to be given back."""
        self._change = threading.Condition(self._lock)  # others wait for room, for the attach, for quiet
        self._waiting_since = 0.0
        """When the queue was empty last, but for what was then submitted."""

    def launch(self, record: bytes) -> None:
        """Queues one packed launch; waits while the queue is full."""
        session = self.session
        with self._lock:
            if (
                session.queued >= send_queue.QUEUE_COMMANDS  # `session.full`, spelled out
                or session.queued_bytes >= send_queue.QUEUE_BYTES
                or session.error is not None
            ):
                self._await_room()
            session.launch(record)
            laned = self._laned
            if laned is not None:
                laned.push_work()
            elif self._sender_waits and session.sendable:
                self._call_sender()

    def submit(self, command: commands_pb2.Command | Plain, worth: int = 1) -> None:
        """Queues a command that answers nothing; it is as good a reason to send a batch as `worth` others."""
        self._add(command.SerializeToString(), 0, None, False, worth)

    def count_up(self, key: object, n: int, command: Callable[[int], bytes]) -> None:
        """Queues a command that answers nothing and does something `n` times; see `Session.count_up`."""
        with self._lock:
            self._make_ready()
            self.session.count_up(key, n, command)
            self._wake_sender(False)

    def request(self, command: commands_pb2.Command | Plain, *, reports: bool = False, barrier: bool = False) -> Reply:
        """Queues a command that answers; see `Session.add` for `barrier` and `Reply` for `reports`."""
        return self.ask(command.SerializeToString(), reports=reports, barrier=barrier)

    def ask(
        self,
        command: bytes,
        *,
        reports: bool = False,
        barrier: bool = False,
        on_error: Callable[[], None] | None = None,
    ) -> Reply:
        """The same for a command that is serialized, without a request; `on_error` is the reply's."""
        request = next(self._requests_minted)
        reply = Reply(reports=reports, waiting=self)
        reply.before = self._before
        reply.request = request
        if on_error is not None:
            reply.on_error = on_error
        if reports:
            reply.on_late_error = self._on_late_error
        command = batch.asking(request, command)
        try:
            with self._lock:
                session = self.session
                if (
                    session.error is not None or self._dead
                    or session.queued >= send_queue.QUEUE_COMMANDS  # `session.full`, spelled out
                    or session.queued_bytes >= send_queue.QUEUE_BYTES
                ):  # fmt: skip
                    self._make_ready()
                laned = self._laned
                if laned is not None:
                    laned.push_request(command, request, reply, barrier)
                    return reply
                if session.add_ready(command, request, reply, barrier):
                    self._wake_sender()
                    return reply
            self._add(command, request, reply, barrier)
            return reply
        except BaseException:  # KeyboardInterrupt: it may have gone out, and nobody will take the answer
            reply.abandon()
            raise

    def _make_ready(self) -> None:
        """Waits for room in the queue, and puts there first what was freed: it is there again for what is allocated
        now."""
        if self.session.full or self.session.error is not None:
            self._await_room()
        if self._dead:
            self.bury()

    def hear(self, command: commands_pb2.Command, reply: ReplyLike, *, one_way: bool) -> None:
        """Queues a command that answers `reply`, which nobody need wait for. `one_way`: where the attachment ends
        before, it counts as lost work that nobody was waiting for."""
        self.tell(command.SerializeToString(), reply, one_way=one_way)

    def tell(self, command: bytes, reply: ReplyLike, *, one_way: bool) -> None:
        """The same for a command that is serialized, without a request."""
        request = next(self._requests_minted)
        data, session = batch.asking(request, command), self.session
        with self._lock:
            if one_way:
                session.submitted += 1
            if self._laned is not None and not (session.error is not None or self._dead or session.full):
                self._laned.push_request(data, request, reply, False)
                return
        self._add(data, request, reply, False)

    def _add(self, data: bytes, request: int, reply: ReplyLike | None, barrier: bool, worth: int = 1) -> None:
        session = self.session
        with self._lock:
            self._make_ready()
            first = not session.queued
            session.add(data, request, reply, barrier=barrier, worth=worth)
            if self._laned is not None and reply is not None:
                self._laned.push_awaited()
                return
            self._wake_sender(reply is not None)
            if first:
                self._waiting_since = time.monotonic()
            elif time.monotonic() - self._waiting_since > _TURN_S and reply is None and session.sendable:
                self._give_way()

    def _give_way(self) -> None:
        """Waits until the sending thread has had its turn, but not for long: a thread that submits without a pause
        keeps the interpreter to itself for 5 ms at a time (`sys.getswitchinterval`), and to send takes several
        turns."""
        self._watch()
        try:
            self._change.wait(_TURN_S if self._laned is None else _LANE_TURN_S)
        finally:
            self.watchers -= 1
            self._waiting_since = time.monotonic()

    def _await_room(self) -> None:
        self._await(lambda: not self.session.full or self.session.error is not None, None)
        if self.session.error is not None:
            raise self.session.error.again()

    def _await(self, ready: Callable[[], bool], timeout: float | None) -> None:
        """Waits, with the lock held, for a change after which `ready` holds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._watch()
        try:
            while not ready():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                self._change.wait(left)
        finally:
            self.watchers -= 1

    def _watch(self) -> None:
        self.watchers += 1
        if self._laned is not None:
            self._laned.expect()

    def _wake_sender(self, awaited: bool = True) -> None:
        if self._laned is not None:
            self._laned.push_awaited() if awaited else self._laned.push_work()
        elif self._sender_waits and (self.session.sendable or self.session.receipt_due):
            self._call_sender()

    def bury(self) -> None:
        """Queues what was freed; with the lock held."""
        if self.session.error is not None:
            return
        for command in burials(self._dead):
            self.session.add(command.SerializeToString())

    def changed(self) -> None:
        """Something came over the lane; with the lock held."""
        if self.watchers:
            self._change.notify_all()
