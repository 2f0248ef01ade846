"""Published events: events that other sessions of the same tenant attach by name, in the same device process.

A publisher and the sessions that attach its event share one record of it, the `EventMark`. A session waits for the
record that is current when its wait runs, as with CUDA's events between processes. The publisher's session may end
before the others: work that it had submitted completes, and so does the event's last record.
"""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import EventEntry, EventMark
from hearthd.shared.published_names import MAX_NAME, check_name

Name = tuple[str, str]
"""The tenant and the name of a published event."""


class PublishedEvents:
    """Names of published events, and the release of events. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device
        self._marks: dict[Name, EventMark] = {}
        self._names: dict[EventMark, tuple[Name, DeviceSession]] = {}
        """Name and publisher of each published event."""

    def __len__(self) -> int:
        """Returns the number of published events."""
        return len(self._marks)

    # ---- commands ----

    def publish(self, origin: Origin, command: commands_pb2.PublishEvent) -> Operation:
        """Returns the operation that publishes the event after its earlier records.

        Raises Refusal: INVALID_ARGUMENT for a name that is not valid or an event that is attached, CAPTURE_INVALID for
        an event of a capture. The operation fails with NAME_IN_USE if another event has the name, unless the command
        replaces it.
        """
        check_name(command.name, "an event")
        session, event = origin.session, origin.session.events.find(command.event)
        check_owned(event, "published")
        name = session.tenant, command.name

        def run() -> bool:
            if event.capture is not None:
                raise Refusal(
                    Reason.CAPTURE_INVALID,
                    f"event {event.handle} was recorded in a capture, and cannot be published",
                    fix="record it outside a capture",
                    details={"event": event.handle},
                )
            holder = self._marks.get(name)
            if holder is not None and holder is not event.mark and not command.replace:
                raise Refusal(
                    Reason.NAME_IN_USE,
                    f"an event of tenant {session.tenant} is published as {command.name!r} already",
                    fix="replace it (replace=True), or use another name",
                    details={"name": command.name},
                )
            if holder is not None:
                self._end_name(holder)
            self._end_name(event.mark)  # an event has one name
            event.published = True
            self._marks[name], self._names[event.mark] = event.mark, (name, session)
            origin.reply()
            return True

        return Operation(origin, run, writes=(event,))

    def attach(self, origin: Origin, command: commands_pb2.AttachEvent) -> None:
        """Makes a handle of a published event. Raises Refusal(NOT_PUBLISHED), and the refusals of a new handle."""
        session = origin.session
        mark = self._marks.get((session.tenant, command.name))
        if mark is None:
            raise Refusal(
                Reason.NOT_PUBLISHED,
                f"no event is published as {command.name[:MAX_NAME]!r} by a session of tenant {session.tenant} in this "
                "process of the device",
                fix="publish it first, event.publish(name), in a session on the same device; dedicated sessions have "
                "separate processes, and share no events",
                details={"name": command.name[:MAX_NAME], "tenant": session.tenant},
            )
        entry = session.events.add(command.event, EventEntry(command.event, mark))
        mark.holders += 1
        entry.attached = True
        origin.reply()

    # ---- end ----

    def release(self, event: EventEntry) -> None:
        """Releases a handle of an event: the name ends with the publisher's, and the record with the last one."""
        mark = event.mark
        if event.published:
            self._end_name(mark)
        mark.holders -= 1
        if not mark.holders and mark.event is not None:
            self._device.tracks.retire(mark.event)
            mark.event = None

    def close(self, session: DeviceSession) -> None:
        """Releases all events of a closed session, and the names of events that it was about to destroy."""
        for event in session.events.items.values():
            self.release(event)
        for mark in [mark for mark, (_, publisher) in self._names.items() if publisher is session]:
            self._end_name(mark)

    def _end_name(self, mark: EventMark) -> None:
        published = self._names.pop(mark, None)
        if published is not None:
            del self._marks[published[0]]


def check_owned(event: EventEntry, done: str) -> None:
    """Raises Refusal(READ_ONLY) if the event is attached: only its publisher records and publishes it."""
    if event.attached:
        raise Refusal(
            Reason.READ_ONLY,
            f"event {event.handle} is attached, and cannot be {done}: only the session that published it records it",
            fix="record an event of this session, and publish that one",
            details={"event": event.handle},
        )
