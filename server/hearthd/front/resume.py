"""Which attachment an Attach begins or takes up: the Execute stream that broke, and the one that goes on for it."""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2
from hearthd.front.channel import Channel
from hearthd.front.execute import Attachment, Window
from hearthd.front.sessions import Session


def begin(session: Session, ordinal: int, channel: Channel, resumable: bool, window: Window) -> None:
    """A new attachment to `channel`; what was kept of an earlier one is dropped. Raises `HANDLE_IN_USE` where there is
    a stream already.

    A client whose first stream broke before it heard that it was attached begins again: such a stream gives way.
    """
    sink = channel.sink
    if sink is not None:
        silent = isinstance(sink, Attachment) and sink.untouched
        if not (resumable and silent and channel.replies is not None):
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"Session {session.id} already has an Execute stream on device {ordinal}.",
                fix="Use one Execute stream a session and device; end the other one first.",
                details={"session": session.id, "device": ordinal},
            )
        sink.displace()
    ended = session.ended.get(ordinal)
    if ended is not None:
        ended.replies = None
    channel.replies = window.replies() if resumable else None
    channel.batches.queue = session.queue


def take_up(session: Session, attach: device_pb2.Attach) -> Channel:
    """The channel of the attachment that goes on, in whichever device process it was; a stream of it that is thought to
    be there is ended. Raises where there is none, or where what is to be sent again is gone."""
    ordinal = attach.device
    places = (session.channels.get(ordinal), session.ended.get(ordinal))
    channel = next((each for each in places if each is not None and each.link.generation == attach.generation), None)
    if channel is None:
        raise Refusal(
            Reason.DEVICE_LOST,
            f"Device {ordinal} (generation {attach.generation}) was lost while the client was away.",
            fix="Buffers of this generation are gone: allocate and upload again.",
            details={"device": ordinal, "generation": attach.generation},
        )
    if channel.replies is None:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"Session {session.id} has no attachment to device {ordinal} that could be resumed.",
            fix="Attach without `resume`; only what was attached with `resumable` can be resumed, and only until the "
            "next Attach without `resume`.",
            details={"session": session.id, "device": ordinal, "generation": attach.generation},
        )
    channel.replies.release(attach.received)
    if channel.sink is not None:
        channel.sink.displace()
    return channel
