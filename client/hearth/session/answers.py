"""What one attachment's requests are answered, and what else the daemon says of its own accord; without I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hearth.codec import batch, decode
from hearth.errors import DeviceLostError, HearthError, from_status
from hearth.session.acks import Receipts
from hearth.session.send_queue import Limits, Outgoing
from hearth_proto import later
from hearth_proto.later import commands_pb2, device_pb2

if TYPE_CHECKING:
    from hearth.session.reply import ReplyLike

_LARGE = 32 << 10
"""Bytes of a response from which on protobuf, which copies what was read twice, takes longer than to do without."""


class Answers(Outgoing):
    """Who waits for which answer. `first_request`: see `Session`."""

    def __init__(self, limits: Limits, first_request: int) -> None:
        super().__init__(limits)
        self.error: HearthError | None = None
        """Set once the attachment is over: nothing more goes in or out."""
        self.fail_later: HearthError | None = None
        """The response that was received ends the attachment; the driver calls `fail` with this."""
        self.device_lost = False
        self.draining = False
        self.on_output: Callable[[str], None] = lambda text: None
        """Takes what kernels of the session printed."""
        self.receipts = Receipts()
        self._first_request = first_request
        self._replies: dict[int, ReplyLike] = {}
        self._completed = 0
        """The request that was answered last."""
        self._settled = 0
        self._barriers: dict[int, int] = {}  # request of a device-wide sync -> one-way work that it covers

    @property
    def outstanding(self) -> int:
        """How many replies are waited for."""
        return len(self._replies)

    @property
    def unreported(self) -> bool:
        """Whether one-way work was added that no sync of all streams has covered since."""
        return self.submitted > self._settled

    def receive(self, response: device_pb2.ExecuteResponse) -> None:
        """Takes one response. A response that breaks the protocol fails the attachment."""
        raise NotImplementedError

    def receive_serialized(self, data: bytes) -> None:
        """Takes one response as it came. That a request is done, which most say, or what is expected for it, is read
        without making a message."""
        if not self.receive_done(data):
            self.receive_other(data)

    def receive_other(self, data: bytes) -> None:
        """One that `receive_done` does not take."""
        # Small ones protobuf reads sooner, once it is there.
        answer = decode.read_answer(data) if len(data) > _LARGE or not later.are_here() else None
        if answer is None:
            self.receive(device_pb2.ExecuteResponse.FromString(data))
        elif self.error is None:
            self._complete(answer)

    def receive_done(self, data: bytes) -> bool:
        """The same, where it says that of a request that is waited for; False, with nothing done, for any other."""
        request, rest = batch.answered(data)
        reply = self._replies.get(request)
        if reply is None or self.error is not None:
            return False
        result = decode.DONE
        if rest != batch.DONE:
            expected = reply.expected
            if expected is None or rest != expected[0]:
                return False
            result = expected[1]
        covered = self._barriers.get(request)
        if covered is not None and covered > self._settled:
            self._settled = covered
        reply.set_result(result)
        self._completed = request  # from here on `_counted_off`, spelled out
        if covered is not None:
            self._barriers.pop(request, None)
        self._replies.pop(request, None)
        receipts = self.receipts
        receipts.responses = count = receipts.responses + 1
        if count >= receipts.responses_due:
            receipts.due = True
        return True

    def _counted_off(self, request: int) -> None:
        """Its answer is where it belongs."""
        self._completed = request
        self._barriers.pop(request, None)
        self._replies.pop(request, None)
        self.receipts.response()

    def _complete(self, result: commands_pb2.Result) -> None:
        """Counts it last: where this is interrupted, the daemon says it again, and each step can be done twice."""
        request = result.request
        reply = self._replies.get(request)
        if reply is None:
            if request >= self._first_request and request != self._completed:
                self._broken(f"request {request} is answered, which was not asked or was answered before")
            self.receipts.response()
            return
        covered = self._barriers.get(request) if self._barriers else None
        if covered is not None:  # an error was reported with it, so that the work before is settled either way
            self._settled = max(self._settled, covered)
        kind = result.WhichOneof("kind")
        if result.HasField("error"):
            reply.set_error(from_status(result.error))
        else:
            if kind == "read":
                self.receipts.size(len(result.read.data))
            elif kind == "dispatch":
                self.receipts.size(sum(map(len, result.dispatch.outputs)))
            reply.set_result(result)
        self._counted_off(request)

    def _event(self, event: device_pb2.Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "output":
            self.on_output(event.output.text)
        elif kind == "draining":
            self.draining = True
        elif kind == "protocol_error":
            self.fail_later = from_status(event.protocol_error)
        elif kind == "device_lost":
            lost = from_status(event.device_lost.status)
            if not isinstance(lost, DeviceLostError):
                lost = DeviceLostError(lost.message or "the device process ended.", reason="DEVICE_LOST", fix=lost.fix)
            if event.device_lost.in_flight:
                lost.details.setdefault("in_flight", ", ".join(event.device_lost.in_flight))
            self.device_lost = True
            self.fail_later = lost

    def _broken(self, what: str) -> None:
        self.fail_later = HearthError(
            f"the daemon broke the protocol: {what}.", reason="MALFORMED_MESSAGE",
            fix="update client and daemon to the same version.",
        )  # fmt: skip
