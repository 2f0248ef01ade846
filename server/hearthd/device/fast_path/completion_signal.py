"""Completion signal: the device writes the number of the waiting request into memory that the client shares, as soon as
a copy is done. The client reads it before this process has seen that the device is done.

A signal reports success, and cannot be revoked. So it is written only for a request that waits for one track, of a
session without other work under way, where no error but that of the device itself is possible, which then writes
nothing. The answer follows the signal as usual.
"""

from __future__ import annotations

from hearth_proto.reasons import Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.fast_path import plain_batch
from hearthd.device.fast_path.inline_batch import InlineBatch
from hearthd.device.flows.segment import Segment
from hearthd.device.session.stream import LogicalStream


def signal(device: DeviceContext, batch: InlineBatch, stream: LogicalStream, request: bytes) -> Segment | None:
    """Has the device signal that all work of the stream so far is done, under `request` in its encoded form. Returns
    None where it will not; otherwise the segment, to be dropped when the track has completed the work before a callback
    registered after this call."""
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
    except Refusal:  # the driver cannot write it: the answer suffices
        session.signals = None
        return None
    segment.hold()
    return segment
