"""Completion signal: the device tells the client directly that a copy is done.

As soon as the copy is done, the device writes the number of the waiting request into memory that the client shares. The
client reads the number before this process has noticed the completion.

A signal reports success and cannot be revoked. Therefore it is used only for a request that waits for one track, in a
session without other work under way, where only an error of the device itself is possible; in that case the device
writes nothing. The answer follows the signal as usual.
"""

from __future__ import annotations

from hearth_proto.reasons import Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.fast_path import plain_batch
from hearthd.device.fast_path.inline_batch import InlineBatch
from hearthd.device.flows.segment import Segment
from hearthd.device.session.stream import LogicalStream


def signal(device: DeviceContext, batch: InlineBatch, stream: LogicalStream, request: bytes) -> Segment | None:
    """Makes the device signal that all work of the stream so far is done, under `request`, an encoded varint.

    Returns None if the device will not signal; otherwise the segment. The caller must drop the segment after the track
    has completed this work, in a callback registered after this call.
    """
    session, lane = batch.session, batch.lane
    signals = session.signals
    if (
        signals is None
        or lane is None
        or not lane.clear
        or stream.errors
        or session.deferred
        or device.output.suspects
        or device.tracks.pending_outcomes.open
    ):
        return None
    segment = signals.segment
    try:
        device.server.signal(signals.address, plain_batch.number(request), stream.track.stream)
    except Refusal:  # the driver cannot write there; the answer alone is sufficient
        session.signals = None
        return None
    segment.hold()
    return segment
