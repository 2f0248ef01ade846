"""The start of an Execute stream: its window, and the attachment that the stream begins or resumes."""

from __future__ import annotations

from dataclasses import dataclass

import grpc.aio
from google.protobuf.message import DecodeError

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2
from hearthd.front import errors
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.resume_buffer import MIN_HARD_RESPONSES, ResumeBuffer
from hearthd.front.sessions.session import Session

EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ExecuteWindow:
    """Limits on the work and answers that one Execute stream may have under way."""

    max_batch_bytes: int = 8 << 20
    max_batches: int = 64
    max_unacked_bytes: int = 32 << 20
    max_queued_bytes: int = 32 << 20
    """Bytes of responses that wait for the client to read them or, if the client attached resumably, to acknowledge
    them. Above this limit no further batches of the client are taken."""
    max_kept: int = 8192
    """Number of responses that may wait for a resumable client's acknowledgement."""
    min_kept_hard: int = MIN_HARD_RESPONSES
    """Minimum of the hard limit on their number, however small `max_kept` is. Beyond that limit the attachment ends."""
    max_queued_hard: int = 256 << 20
    """Bytes of waiting responses above which the stream is ended, because its client sends without reading."""

    def lane_limits(self) -> dict[str, int]:
        """Returns the limits for the device process, which enforces them on a lane."""
        return {
            "max_batch_bytes": self.max_batch_bytes,
            "max_batches": self.max_batches,
            "max_unacked_bytes": self.max_unacked_bytes,
            "max_unread_bytes": self.max_queued_bytes,
            "max_unread_hard": self.max_queued_hard,
        }

    def create_resume_buffer(self) -> ResumeBuffer:
        """Returns a buffer for the responses that a resumable client has not acknowledged."""
        return ResumeBuffer(self.max_queued_bytes, self.max_kept, self.max_queued_hard, self.min_kept_hard)


def parse(message: object) -> device_pb2.Attach:
    """Returns the Attach in the first message of a stream. Raises a refusal if the message is anything else."""
    if message is EOF or not isinstance(message, bytes):
        raise errors.malformed("The stream ended before its Attach.", "Send ExecuteRequest.attach first.")
    try:
        request = device_pb2.ExecuteRequest.FromString(message)
    except DecodeError as error:
        raise errors.malformed(
            f"The first message of Execute is not a valid ExecuteRequest: {error}.", "Send ExecuteRequest.attach first."
        ) from None
    if request.WhichOneof("kind") != "attach":
        raise errors.malformed(
            f"The first message of Execute is {request.WhichOneof('kind') or 'empty'}, not attach.",
            "Send ExecuteRequest.attach first.",
        )
    return request.attach


async def begin(session: Session, ordinal: int, channel: Channel, resumable: bool, window: ExecuteWindow) -> None:
    """Begins a new attachment to `channel`, and drops the responses kept for an earlier attachment.

    Raises `HANDLE_IN_USE` if the channel already has a stream, or the loss of the device process.

    A client whose first stream broke before the answer to its Attach arrived begins again. Its first stream is
    therefore displaced.
    """
    _check_free(session, ordinal, channel, resumable)
    if channel.lane is not None:
        await channel.end_lane()
        _check_open(session)
        if channel.refusal is not None:
            raise channel.refusal
        _check_free(session, ordinal, channel, resumable)
        channel.leave_lane()
    if channel.sink is not None:
        channel.sink.displace()
    ended_channel = session.ended.get(ordinal)
    if ended_channel is not None:
        ended_channel.replies = None
    channel.replies = window.create_resume_buffer() if resumable else None
    channel.end_cancels()


def _check_open(session: Session) -> None:
    """Raises `SESSION_EXPIRED` if the session was closed while the caller waited; its channels are then closed too."""
    if session.closing:
        raise errors.session_expired()


def _check_free(session: Session, ordinal: int, channel: Channel, resumable: bool) -> None:
    """Raises `HANDLE_IN_USE` if the channel has a stream that may not be displaced."""
    sink = channel.sink
    if sink is not None and not (resumable and sink.unused and channel.replies is not None):
        raise Refusal(
            Reason.HANDLE_IN_USE,
            f"Session {session.id} already has an Execute stream on device {ordinal}.",
            fix="Use one Execute stream per session and device; end the other stream first.",
            details={"session": session.id, "device": ordinal},
        )


async def resume_channel(session: Session, attach: device_pb2.Attach) -> Channel:
    """Returns the channel of the attachment to resume, whether or not its device process still runs.

    Ends a stream and a lane that the channel still has. Raises if there is no such attachment, or if responses that
    would have to be sent again were dropped.
    """
    channel = _find_channel(session, attach)
    await channel.end_lane()
    _check_open(session)
    if channel.loss is None and channel.refusal is not None:
        raise channel.refusal
    replies = channel.replies
    if replies is None:
        raise _not_resumable(session, attach)
    # Some copies may have been lost with the device process.
    lossy = channel.lane is not None and channel.loss is not None
    replies.release(attach.received, lossy=lossy)
    if lossy:
        channel.batches.last = max(channel.batches.last, attach.last_seq_acked)
    if channel.sink is not None:
        channel.sink.displace()
    channel.leave_lane()
    return channel


def _find_channel(session: Session, attach: device_pb2.Attach) -> Channel:
    ordinal = attach.device
    channels = (session.channels.get(ordinal), session.ended.get(ordinal))
    matches = (channel for channel in channels if channel is not None and channel.link.generation == attach.generation)
    channel = next(matches, None)
    if channel is None:
        raise Refusal(
            Reason.DEVICE_LOST,
            f"Device {ordinal} (generation {attach.generation}) was lost while the client was away.",
            fix="Buffers of this generation are gone: allocate and upload again.",
            details={"device": ordinal, "generation": attach.generation},
        )
    if channel.replies is None:
        raise _not_resumable(session, attach)
    return channel


def _not_resumable(session: Session, attach: device_pb2.Attach) -> Refusal:
    return Refusal(
        Reason.INVALID_ARGUMENT,
        f"Session {session.id} has no attachment to device {attach.device} that can be resumed.",
        fix="Attach without `resume`; only what was attached with `resumable` can be resumed, and only until the "
        "next Attach without `resume`.",
        details={"session": session.id, "device": attach.device, "generation": attach.generation},
        fields=["attach.resume"],
    )
