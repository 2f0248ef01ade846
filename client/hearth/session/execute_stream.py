"""The Execute stream of an attachment, replaced by another when its connection breaks.

Only the receiving thread handles the end of a stream. If the daemon did not end the stream deliberately, the thread
opens another one and continues, within the session's lease. Submitting and waiting threads notice only the delay.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hearth.errors import ConnectError, DeviceLostError, HearthError, broken
from hearth.session.timing import Timing
from hearth.transport.backoff import Backoff, may_replace_stream
from hearth_proto.later import commands_pb2, device_pb2

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.lane_channel import LaneChannel
    from hearth.transport.base import Responses, Transport

ATTACH_S = 3.0
"""Time limit in seconds for the attach of an opened stream; after that, the stream is replaced by another."""
_STATUS_S = 5.0
"""Timeout, in seconds, of the daemon's answer about an attachment."""
_ABSENT_S = 1.0
"""Seconds for which the daemon must be absent before the client stops waiting: another daemon may be about to start."""
_MAX_OUTAGES = 1000
_MAX_FRUITLESS_LANES = 5
"""Consecutive lanes without a received frame after which no more are opened."""
_LANE_RETRY_MAX_S = 60.0
"""The longest time in seconds between two attempts to get a lane. The delay begins with `Timing.lane_retry` and doubles
with each consecutive attempt."""


class ExecuteStream:
    """Execute stream of one attachment, opened once. Its receiving thread ends with the attachment."""

    def __init__(
        self, attachment: Attachment, transport: Transport, token: str, device: int, lease: float, timing: Timing
    ) -> None:
        self.outages: deque[float] = deque(maxlen=_MAX_OUTAGES)
        """Durations of the last outages, from the break to the next attach, in seconds."""
        self.resumed = 0
        """Number of outages after which the stream was resumed."""
        self._attachment = attachment
        self._transport = transport
        self._token = token
        self._device = device
        self._lease = lease
        self._responses: Responses | None = None
        """The stream that was opened last."""
        self._offer: device_pb2.LaneOffer | None = None
        self._channel: LaneChannel | None = None
        self._fruitless_lanes = 0
        """Number of consecutive lanes that ended before a frame was received over them."""
        self._first_retry_pause = self._retry_pause = timing.lane_retry
        self._lane_retry_at: float | None = None
        """Monotonic time from which this stream may be replaced by one with a lane; None: it has a lane, or was offered
        none."""

    def open(self) -> None:
        """Sends the first attach, and starts the receiving thread, which passes responses to the attachment."""
        responses = self._attach()
        name = f"hearth-receive-{self._device}"
        threading.Thread(target=self._run, args=(responses,), name=name, daemon=True).start()

    def cancel(self) -> None:
        """Drops the stream; another one continues unless the attachment has ended."""
        responses = self._responses
        if responses is not None:
            responses.cancel()

    def status(self) -> device_pb2.AttachmentStatusResponse:
        """Asks the daemon for its position in the attachment. Raises `HearthError`."""
        request = device_pb2.AttachmentStatusRequest(
            session_token=self._token, device=self._device, generation=self._attachment.session.generation
        )
        answer: device_pb2.AttachmentStatusResponse = self._transport.call_device(
            "AttachmentStatus", request, device_pb2.AttachmentStatusResponse, _STATUS_S
        )
        return answer

    def put_into_effect(self, command: commands_pb2.Command) -> None:
        """Makes a queued Cancel command take effect immediately. Raises `HearthError`.

        Args:
            command: The command, with its request number.
        """
        request = device_pb2.CancelRequest(
            session_token=self._token,
            device=self._device,
            generation=self._attachment.session.generation,
            command=command,
        )
        self._transport.call_device("Cancel", request, commands_pb2.Done, _STATUS_S)

    def _attach(self) -> Responses:
        """Opens a stream. Raises `HearthError`."""
        number = self._attachment.begin()
        attach = self._attachment.session.attach(self._token, self._device)
        self._responses = responses = self._transport.execute(self._requests(number, attach), self._process_early)
        if self._attachment.over.is_set():  # the attachment may have ended after `cancel` read the previous stream
            responses.cancel()
        return responses

    def _requests(self, number: int, attach: bytes) -> Iterator[bytes]:
        """Yields the requests to gRPC's sending thread."""
        yield attach
        while (request := self._attachment.next_request(number)) is not None:
            yield request

    def _run(self, responses: Responses) -> None:
        attachment, stream = self._attachment, iter(responses)
        try:
            while True:
                error = self._cause(self._receive(stream))
                if not (may_replace_stream(error) and attachment.session.attached) or attachment.over.is_set():
                    break
                stream = self._reattach(error)
        except HearthError as refusal:
            error = refusal
        except Exception as failure:  # otherwise every waiting thread would wait forever
            error = HearthError(f"the connection failed: {failure!r}.", fix="connect again, and report the error.")
        if isinstance(error, DeviceLostError):
            attachment.session.device_lost = True
        attachment.end(error)

    def _receive(self, stream: Iterator[device_pb2.ExecuteResponse]) -> HearthError:
        """Processes responses until the stream ends, and returns the error with which it ended."""
        try:
            for response in stream:
                error = self._deliver(response)
                if error is not None:
                    return error
        except HearthError as stream_error:
            return stream_error
        return broken("the daemon ended the stream.")

    def _deliver(self, response: device_pb2.ExecuteResponse) -> HearthError | None:
        """Processes one response. Returns the error with which it ends the attachment or the stream, if any."""
        if self._channel is not None and not _is_valid_beside_lane(response):
            # the daemon sends the response again, in order, after the next attach
            return broken("the daemon sent a response on the stream while a lane was in use.")
        offered = response.WhichOneof("kind") == "attached" and response.attached.lane.path
        if offered and self._transport.lanes and self._fruitless_lanes < _MAX_FRUITLESS_LANES:
            self._offer = response.attached.lane
            self._lane_retry_at = time.monotonic() + self._retry_pause
            self._attachment.hold_work()
        error = self._attachment.deliver(response)
        if error is not None:
            return error
        if self._offer is not None and self._attachment.may_open_lane():
            self._open_lane(self._offer)
        elif self._lane_retry_at is not None and time.monotonic() >= self._lane_retry_at and self._attachment.idle():
            return self._replace_for_lane()
        return None

    def _replace_for_lane(self) -> HearthError:
        """Leaves the stream for another that may have a lane. Returns the error with which the stream ends."""
        self._retry_pause = min(2 * self._retry_pause, _LANE_RETRY_MAX_S)
        if self._responses is not None:
            self._responses.leave()
        return broken("the stream was closed so that a new one can get a lane.")

    def _process_early(self, response: bytes) -> bool:
        """Processes a serialized response early if it completes a request and no lane is in use or being opened.

        Called by the transport's thread, after all responses before it were delivered.
        """
        return self._channel is None and self._offer is None and self._attachment.process_early(response)

    def _open_lane(self, offer: device_pb2.LaneOffer) -> None:
        self._offer = None
        lane = self._transport.lane(offer)
        responses = self._responses
        assert responses is not None
        self._channel = self._attachment.use_lane(lane, responses.leave, f"hearth-lane-{self._device}")
        if self._channel is not None:
            self._lane_retry_at, self._retry_pause = None, self._first_retry_pause

    def _cause(self, stream_error: HearthError) -> HearthError:
        """Returns the error that ends or suspends the attachment after its stream ended with `stream_error`."""
        channel, self._channel, self._offer, self._lane_retry_at = self._channel, None, None, None
        if channel is None:
            return stream_error
        self._fruitless_lanes = 0 if channel.received_any else self._fruitless_lanes + 1
        if self._responses is not None:
            self._responses.leave()
        if channel.error is not None:
            return channel.error
        if isinstance(stream_error, DeviceLostError) and not self._attachment.session.device_lost:
            return broken(stream_error.message)  # the next attach reports what was lost with it
        return stream_error

    def _reattach(self, cause: HearthError) -> Iterator[device_pb2.ExecuteResponse]:
        """Attaches another stream, with repeated attempts.

        Raises the daemon's refusal, or `ConnectError` after the lease.
        """
        attachment, backoff, started = self._attachment, Backoff(self._lease), time.monotonic()
        attachment.suspend(cause)
        last_present = started  # monotonic time at which the daemon last existed, or may have existed
        while True:
            try:
                stream = self._attach_once()
                self.outages.append(time.monotonic() - started)
                self.resumed += 1
                return stream
            except HearthError as error:
                if not may_replace_stream(error) or attachment.over.is_set():
                    raise
                retry_after = error.retry_after or 0.0
            if not self._transport.absent():
                last_present = time.monotonic()
            pause = backoff.pause(retry_after)
            if pause is None or time.monotonic() - last_present > _ABSENT_S:
                raise self._lost(cause, time.monotonic() - started)
            attachment.over.wait(pause)

    def _attach_once(self) -> Iterator[device_pb2.ExecuteResponse]:
        """Makes one attempt to attach again."""
        responses = self._attach()
        timer = threading.Timer(ATTACH_S, responses.cancel)
        timer.daemon = True
        timer.start()
        try:
            stream = iter(responses)
            for response in stream:
                error = self._deliver(response)
                if error is not None:
                    raise error
                return stream
        finally:
            timer.cancel()
        raise broken("the daemon ended the stream.")

    def _lost(self, cause: HearthError, seconds: float) -> ConnectError:
        return ConnectError(
            f"the connection to {self._transport.target} was lost and could not be restored within "
            f"{seconds:.3g} s: {cause.message}",
            fix="check that the daemon is running and reachable, then connect again; the daemon frees the "
            "session's memory on the device if the client does not return within the lease of "
            f"{self._lease:g} s.",
            details={"lease_s": f"{self._lease:g}"},
        )


def _is_valid_beside_lane(response: device_pb2.ExecuteResponse) -> bool:
    """True if a response may arrive over the stream while a lane is in use.

    An ack is valid at any time, and the loss of the device ends the attachment.
    """
    kind: str | None = response.WhichOneof("kind")
    return kind == "ack" or (kind == "event" and response.event.WhichOneof("kind") == "device_lost")
