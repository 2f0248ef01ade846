"""Completion signal: the device notifies the client directly that a copy is done.

As soon as the copy is done, the device writes the number of the waiting request into memory that the client shares. The
client reads the number before this process has noticed the completion.

A signal reports success and cannot be revoked. Therefore it is used only for a request that waits for one track, in a
session without other work under way, where only an error of the device itself is possible; in that case the device
writes nothing. The answer follows the signal as usual.
"""

from __future__ import annotations

from hearth_proto.reasons import Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.flows.segment import Segment
from hearthd.device.operation import Origin


def signal(device: DeviceContext, origin: Origin) -> Segment | None:
    """Makes the device signal, under the request of `origin`, that all work of its stream so far is done.

    Returns None if the device will not signal; otherwise the segment. The caller must drop the segment after the track
    has completed this work, in a callback registered after this call.
    """
    session, stream = origin.session, origin.stream
    signals = session.signals
    if signals is None or not origin.request or origin.batch is None:
        return None
    lane = device.outbox.lanes.get(session.channel)
    if (
        lane is None
        or not lane.clear
        or session.streams.marked
        or session.deferred.waiting
        or session.snapshots
        or session.trace is not None
        or device.output.suspects
        or device.tracks.pending_outcomes.open
    ):
        return None
    try:
        device.server.signal(signals.address, origin.request, stream.track.stream)
    except Refusal:  # the driver cannot write there; the answer alone is sufficient
        session.signals = None
        return None
    segment = signals.segment
    segment.hold()
    return segment
