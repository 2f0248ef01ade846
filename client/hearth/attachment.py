"""One Execute stream, driven by threads: those that submit, one that sends, one that receives.

A lone command goes at once; while a batch is on its way further commands gather, so that batches form by themselves
under load. Who submits faster than the daemon executes waits, the receiving thread never does.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hearth.errors import ClosedError, ConnectError, DeviceLostError, HearthError, TimeoutError
from hearth.reply import Reply
from hearth.session import Limits, Session
from hearth_proto.v1 import commands_pb2, device_pb2

if TYPE_CHECKING:
    from hearth.memory import Graveyard, Space
    from hearth.output import Prints
    from hearth.transport.base import Responses, Transport

_IDLE_S = 1.0
"""How late a buffer may be given back in the one race that `nudge` loses: it takes no lock."""


class Attachment:
    """A session's work on one device, from one attach to the loss or close of the stream."""

    def __init__(
        self,
        limits: Limits,
        on_end: Callable[[Attachment, HearthError, bool], None],
        on_late_error: Callable[[HearthError], None],
        prints: Prints | None = None,
    ) -> None:
        self.session = Session(limits)
        self._prints = prints
        if prints is not None:
            self.session.on_output = prints.add
        self.alive = False
        self.space: Space | None = None
        """Set by the connection once the generation is known."""
        self._on_end = on_end
        self._on_late_error = on_late_error
        self._graveyard: Graveyard | None = None
        self._requests_minted = itertools.count(1)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # the sender waits for commands or for the window
        self._change = threading.Condition(self._lock)  # others wait for room, for the attach, for quiet
        self._sender_waits = False
        self._watchers = 0
        self._responses: Responses | None = None

    # ---- life ----

    def open(self, transport: Transport, token: str, device: int, timeout: float) -> None:
        """Attaches. Raises what the daemon answers, or `TimeoutError`."""
        attach = device_pb2.ExecuteRequest(attach=device_pb2.Attach(session_token=token, device=device))
        self._responses = responses = transport.execute(self._requests(attach.SerializeToString()))
        threading.Thread(target=self._receive, args=(responses,), name=f"hearth-receive-{device}", daemon=True).start()
        with self._lock:
            self._await(lambda: self.session.attached or self.session.error is not None, timeout)
            error = self.session.error
            self.alive = self.session.attached and error is None
        if self.alive:
            return
        if error is None:
            error = TimeoutError(
                f"device {device} did not answer within {timeout:g} s.", reason="DEADLINE_EXCEEDED",
                fix="see `hearth status`, or connect with a longer timeout.",
            )  # fmt: skip
            self.end(error)
        raise error.again()

    def adopt(self, space: Space) -> None:
        """Works for `space` from now on, and empties its graveyard."""
        self.space = space
        self._graveyard = space.graveyard
        space.graveyard.nudge = self._nudge

    def end(self, error: HearthError) -> None:
        """Fails all that is outstanding with `error` and drops the stream."""
        with self._lock:
            was_alive = self.session.error is None
            self.alive = False
            report = self.session.fail(error)
            self._work.notify_all()
            self._change.notify_all()
        if self._responses is not None:
            self._responses.cancel()
        if was_alive:
            self._on_end(self, error, report)

    def settle(self, timeout: float) -> None:
        """Waits until everything queued was sent and acknowledged, `timeout` seconds at most."""
        with self._lock:
            self._bury()
            self._wake_sender()
            self._await(lambda: self.session.idle or self.session.error is not None, timeout)

    # ---- submit ----

    def launch(self, record: bytes) -> None:
        """Queues one packed launch; waits while the queue is full."""
        session = self.session
        with self._lock:
            if session.full or session.error is not None:
                self._await_room()
            session.launch(record)
            if self._sender_waits and session.sendable:
                self._sender_waits = False
                self._work.notify()

    def submit(self, command: commands_pb2.Command) -> None:
        """Queues a command that answers nothing."""
        self._add(command.SerializeToString(), 0, None, False)

    def count_up(self, key: object, n: int, command: Callable[[int], bytes]) -> None:
        """Queues a command that answers nothing and does something `n` times; see `Session.count_up`."""
        with self._lock:
            if self.session.full or self.session.error is not None:
                self._await_room()
            if self._graveyard is not None and self._graveyard.dead:
                self._bury()
            self.session.count_up(key, n, command)
            self._wake_sender()

    def request(self, command: commands_pb2.Command, *, reports: bool = False, barrier: bool = False) -> Reply:
        """Queues a command that answers; see `Session.add` for `barrier` and `Reply` for `reports`."""
        command.request = next(self._requests_minted)
        reply = Reply(reports=reports)
        reply.before = self._prints.deliver if self._prints is not None else None
        reply.on_late_error = self._on_late_error if reports else None
        self._add(command.SerializeToString(), command.request, reply, barrier)
        return reply

    def _add(self, data: bytes, request: int, reply: Reply | None, barrier: bool) -> None:
        with self._lock:
            if self.session.full or self.session.error is not None:
                self._await_room()
            if self._graveyard is not None and self._graveyard.dead:
                self._bury()  # first: what was freed is there again for what is allocated now
            self.session.add(data, request, reply, barrier=barrier)
            self._wake_sender()

    def _await_room(self) -> None:
        self._await(lambda: not self.session.full or self.session.error is not None, None)
        if self.session.error is not None:
            raise self.session.error.again()

    def _await(self, ready: Callable[[], bool], timeout: float | None) -> None:
        """Waits, with the lock held, for a change after which `ready` holds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._watchers += 1
        try:
            while not ready():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                self._change.wait(left)
        finally:
            self._watchers -= 1

    def _wake_sender(self) -> None:
        if self._sender_waits and self.session.sendable:
            self._sender_waits = False
            self._work.notify()

    # ---- free ----

    def _nudge(self) -> None:
        # Called by the garbage collector, perhaps in a thread that holds the lock: it must not wait for it.
        if self._lock.acquire(blocking=False):
            try:
                self._sender_waits = False
                self._work.notify()
            finally:
                self._lock.release()

    def _bury(self) -> None:
        if self._graveyard is None or self.session.error is not None:
            return
        dead = self._graveyard.dead
        buffers: list[int] = []
        others: list[commands_pb2.Command] = []
        while dead:
            kind, handle = dead.popleft()
            if kind == "buffer":
                buffers.append(handle)
            elif kind == "stream":
                others.append(commands_pb2.Command(destroy_stream=commands_pb2.DestroyStream(stream=handle)))
            elif kind == "event":
                others.append(commands_pb2.Command(destroy_event=commands_pb2.DestroyEvent(event=handle)))
            elif kind == "tensor_map":
                destroyed = commands_pb2.DestroyTensorMap(tensor_map=handle)
                others.append(commands_pb2.Command(destroy_tensor_map=destroyed))
            elif kind == "graph":
                others.append(commands_pb2.Command(destroy_graph=commands_pb2.DestroyGraph(graph=handle)))
            elif kind == "prepared":
                destroyed_list = commands_pb2.DestroyPrepared(prepared=handle)
                others.append(commands_pb2.Command(destroy_prepared=destroyed_list))
            else:
                others.append(commands_pb2.Command(unload_module=commands_pb2.UnloadModule(module=handle)))
        if buffers:
            others.insert(0, commands_pb2.Command(free=commands_pb2.Free(buffers=buffers)))
        for command in others:
            self.session.add(command.SerializeToString())

    # ---- the sender and the receiver ----

    def _requests(self, attach: bytes) -> Iterator[bytes]:
        """What gRPC's sending thread asks for; ends with the attachment."""
        yield attach
        session = self.session
        while True:
            with self._lock:
                while True:
                    if session.error is not None:
                        return
                    if session.attached:
                        self._bury()
                    batch = session.next_batch()
                    if batch is not None:
                        break
                    self._sender_waits = True
                    self._work.wait(_IDLE_S)
                    self._sender_waits = False
                if self._watchers:
                    self._change.notify_all()
            yield batch

    def _receive(self, responses: Responses) -> None:
        error: HearthError | None = None
        try:
            for response in responses:
                with self._lock:
                    self.session.receive(response)
                    error = self.session.fail_later
                    if error is not None:
                        break
                    self._wake_sender()
                    if self._watchers:
                        self._change.notify_all()
            else:
                error = ConnectError("the daemon ended the stream.", reason="DEVICE_UNAVAILABLE", fix="connect again.")
        except HearthError as refused:
            error = refused
        except Exception as unexpected:  # a receiver that dies silently would leave every waiter waiting
            error = HearthError(f"the connection failed: {unexpected!r}.", reason="INTERNAL")
        if isinstance(error, DeviceLostError):
            self.session.device_lost = True
        assert error is not None
        self.end(error)


def closed() -> ClosedError:
    """What every use of a closed node raises."""
    return ClosedError("this node is closed.", reason="CANCELLED", fix="connect again with hearth.connect().")
