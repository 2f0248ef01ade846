"""Copies between host memory and a device process of this host: one command for what lies in a segment, the ring for
all else. Each says how many bytes it has seen to, from the beginning; the rest goes another way.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from hearth.deferred import ours
from hearth.errors import HearthError
from hearth.lookout import DOWN, UP
from hearth.one_way import Ending, heard_otherwise, lost_on_the_way
from hearth.segments import address_of, known
from hearth.transfer import short
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.attachment import Attachment
    from hearth.connection import Connection
    from hearth.deferred import Whose
    from hearth.progress import Progress
    from hearth.reply import Reply
    from hearth.segments import Place, Segment
    from hearth.shared_memory import Shared
    from hearth.transfer import Part


def write(
    connection: Connection,
    attachment: Attachment,
    part: Part,
    data: memoryview,
    progress: Progress | None,
    *,
    inline: bool,
    blocking: bool,
) -> int:
    """Uploads `data`; `inline`: it need not come here, but for memory that is shared. What lies in a segment is not
    taken when this returns, unless `blocking`."""
    place = known.find(address_of(data), len(data))
    if place is None and inline:
        return 0
    shared = connection.shared_memory().for_attachment(attachment)
    if shared is None:
        return 0
    named = _named(shared, place)
    if place is not None and named is not None:
        return _write_pinned(connection, shared, part, place, named, data, progress, blocking)
    if inline:
        return 0
    from hearth import ring_transfer  # pinned arrays do without

    return ring_transfer.Upload(connection, shared, part, np.frombuffer(data, np.uint8), progress).run()


def read(
    connection: Connection,
    attachment: Attachment,
    part: Part,
    into: memoryview,
    timeout: float | None,
    progress: Progress | None,
    *,
    inline: bool,
    blocking: bool,
) -> int:
    """Downloads into `into`; see `write`. What lies in a segment is not there when this returns, unless `blocking`."""
    place = known.find(address_of(into), len(into))
    if place is None and inline:
        return 0
    shared = connection.shared_memory().for_attachment(attachment)
    if shared is None:
        return 0
    named = _named(shared, place)
    if place is not None and named is not None:
        return _read_pinned(connection, shared, part, place, named, into, timeout, progress, blocking)
    if inline:
        return 0
    from hearth import ring_transfer

    return ring_transfer.Download(connection, shared, part, np.frombuffer(into, np.uint8), progress, timeout).run()


def _named(shared: Shared, place: Place | None) -> commands_pb2.Shared | None:
    """A place in a segment, as commands name it; None: it is in none that the daemon has."""
    number = 0 if place is None else shared.number(place.segment)
    return commands_pb2.Shared(segment=number, offset=place.offset) if place is not None and number else None


def _write_pinned(
    connection: Connection,
    shared: Shared,
    part: Part,
    place: Place,
    named: commands_pb2.Shared,
    data: memoryview,
    progress: Progress | None,
    blocking: bool,
) -> int:
    size = len(data)
    command = part.write()
    command.write.size = size
    command.write.shared.CopyFrom(named)
    lookout, begun = shared.attachment.lookout, monotonic()
    lookout.begin(UP, size, begun)
    if blocking:
        try:
            _wait(shared.attachment.request(command), shared, place, data, None)
            lookout.end(UP, size, begun, monotonic())
        except HearthError as error:
            if shared.lost(error):
                return 0
            raise
    else:
        end = partial(_write_ended, connection, shared, place.segment, ours(part), size, begun)
        shared.attachment.hear(command, Ending(end, data), one_way=True)
    if progress is not None:
        progress(size, size)
    return size


def _read_pinned(
    connection: Connection,
    shared: Shared,
    part: Part,
    place: Place,
    named: commands_pb2.Shared,
    into: memoryview,
    timeout: float | None,
    progress: Progress | None,
    blocking: bool,
) -> int:
    size = len(into)
    command = part.read(size)
    command.read.shared.CopyFrom(named)
    lookout, begun = shared.attachment.lookout, monotonic()
    lookout.begin(DOWN, size, begun)
    if blocking:
        try:
            result = _wait(shared.attachment.request(command, reports=True), shared, place, into, timeout)
            lookout.end(DOWN, size, begun, monotonic())
        except HearthError as error:
            if shared.lost(error):
                return 0
            raise
        if result.read.size != size:
            raise short(result.read.size, size)
    else:
        end = partial(_read_ended, connection, shared, place.segment, ours(part), size, begun)
        shared.attachment.hear(command, Ending(end, into), one_way=True)
    if progress is not None:
        progress(size, size)
    return size


def _wait(reply: Reply, shared: Shared, place: Place, memory: memoryview, timeout: float | None) -> commands_pb2.Result:
    """The answer. The session keeps the memory until it has come, whoever waits for it no more."""
    unanswered = partial(_unanswered, shared, place.segment, memory)
    reply.on_error = unanswered
    if reply.error is not None:
        unanswered()
    return reply.wait(timeout)


def _unanswered(shared: Shared, segment: Segment, memory: memoryview) -> None:
    """A command with the segment failed: where its attachment ended, it may run all the same."""
    if shared.attachment.session.error is not None:
        segment.spoiled = True


def _write_ended(
    connection: Connection,
    shared: Shared,
    segment: Segment,
    whose: Whose,
    size: int,
    begun: float,
    _: commands_pb2.Result | None,
    error: HearthError | None,
) -> None:
    if error is None:
        shared.attachment.lookout.end(UP, size, begun, monotonic())
        return
    _unanswered(shared, segment, memoryview(b""))
    if not heard_otherwise(shared.attachment, error):
        connection.defer(lost_on_the_way(error) if shared.lost(error) else error, whose)


def _read_ended(
    connection: Connection,
    shared: Shared,
    segment: Segment,
    whose: Whose,
    size: int,
    begun: float,
    result: commands_pb2.Result | None,
    error: HearthError | None,
) -> None:
    if result is not None and result.read.size != size:
        error = short(result.read.size, size)
    if error is None:
        shared.attachment.lookout.end(DOWN, size, begun, monotonic())
        return
    _unanswered(shared, segment, memoryview(b""))
    if shared.attachment.session.error is not error:
        connection.defer(lost_on_the_way(error) if shared.lost(error) else error, whose)
