"""What the device writes into memory that a client shares, as soon as a copy is done: the number of the request that
waits for that. The client has it before this process has seen that the device is done, let alone said so.

It says that all went well, and cannot be taken back: so it is written only for who waits for one track, of a session of
which nothing else is under way, where nothing could fail any more but the device itself, which writes nothing then. The
answer follows it as ever.
"""

from __future__ import annotations

from hearth_proto.reasons import Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.fast_path import plain_batch
from hearthd.device.fast_path.inline_batch import InlineBatch
from hearthd.device.flows.segment import Segment
from hearthd.device.session.stream import LogicalStream


def signal(device: DeviceContext, batch: InlineBatch, stream: LogicalStream, request: bytes) -> Segment | None:
    """Has the device say that what the stream has been given so far is done, to who waits for that under `request`,
    as it is written. None: it will not. Else where: to be dropped when the track has come to its end, which is to be
    asked for behind it."""
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
    except Refusal:  # the driver will not: the answer does
        session.signals = None
        return None
    segment.hold()
    return segment
