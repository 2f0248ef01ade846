"""Routes collectives over the links: passes messages to the coordinator, sends its messages, and runs its timer.

Groups over daemons are matched in the same way. The owner of their links (`hearthd.front.peers.groups`) presents the
parts of remote ranks, passes on their messages, and sends messages to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Protocol
from weakref import WeakSet

import structlog

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.collectives import errors
from hearthd.front.collectives.coordinator import Coordinator
from hearthd.front.collectives.match import GROUP, DeviceMessage, MatchKey, Presentation, RankLocation
from hearthd.front.collectives.matcher import fail_message
from hearthd.front.links.link import DeviceLink
from hearthd.front.sessions.channel import Channel

log = structlog.get_logger("hearthd.collectives")


def merge_runs(messages: list[DeviceMessage]) -> list[DeviceMessage]:
    """Merges `go` messages to local ranks: one message for each sequence of operations on one communicator."""
    merged: list[DeviceMessage] = []
    runs: dict[RankLocation, dict[str, Any]] = {}
    for location, body in messages:
        run = runs.get(location)
        if run is not None and _extends(run, body):
            run["count"] = run.get("count", 1) + 1
            continue
        runs.pop(location, None)
        message = body
        if body["op"] == "go" and not location.node and not body["group"]:
            message = runs[location] = dict(body)
        merged.append(DeviceMessage(location, message))
    return merged


def _extends(run: dict[str, Any], body: dict[str, Any]) -> bool:
    count = run.get("count", 1)
    return (
        body["op"] == "go"
        and body["sequence"] == run["sequence"] + count
        and body["index"] == run["index"] + count
        and all(body[name] == run[name] for name in ("comm", "channel", "devices"))
    )


class GroupRelay(Protocol):
    """The relay for groups over daemons."""

    def relay_message(self, link: DeviceLink, body: dict[str, Any]) -> bool:
        """Called first for each COLLECTIVE frame of a local device process.

        Returns True if the frame concerned a group over daemons and was handled.

        If this front coordinates the group, the relay passes a `present` back through `CollectiveRouter.present`.
        Messages about a communicator that this front has created may be left to the router.
        """
        ...

    def on_device_lost(self, link: DeviceLink, cause: str) -> None:
        """Handles the end of a local device process.

        The router has failed the operations that the process had presented. The channels of the link still show which
        sessions had ranks there.
        """
        ...

    def on_session_closed(self, session: str) -> None:
        """Handles a session that is about to close on the devices."""
        ...


class CollectiveRouter:
    """The router of the node. All methods run in the event loop, so that all links see the same order."""

    def __init__(self, devices: Collection[int], timeout: float) -> None:
        self.coordinator = Coordinator(timeout)
        self.send_to_peer: Callable[[RankLocation, dict[str, Any]], None] = lambda location, body: None
        """Sends a message to a rank of another daemon. `body["group"]` is the id of the group in hexadecimal."""
        self.relay: GroupRelay | None = None
        self._devices = frozenset(devices)
        self._links: dict[RankLocation, DeviceLink] = {}
        self._closing: WeakSet[Channel] = WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        """The time at which the timer fires. uvloop's timer handles do not report a time that has passed."""

    # ---- messages of local device processes ----

    def on_frame(self, device: int, link: DeviceLink, body: dict[str, Any]) -> None:
        """Handles a COLLECTIVE frame."""
        location = RankLocation.of(link)
        self._links[location] = link
        try:
            if body["op"] == "wedged":
                self._end_wedged_process(link, str(body["comm"]))
            elif self.relay is not None and self.relay.relay_message(link, body):
                pass
            elif body["op"] in ("present", "withdraw"):
                self._present(link, body)
            else:
                self.on_message(location, body)
        except (KeyError, TypeError, ValueError) as error:
            log.error("collective_malformed", device=device, body=str(body)[:200], error=repr(error))

    def _present(self, link: DeviceLink, body: dict[str, Any]) -> None:
        channel = link.channels.get(int(body["channel"]))
        if channel is None or channel in self._closing:
            return  # the session has just ended
        location = RankLocation.of(link)
        devices = tuple(map(int, body["devices"]))
        group = str(body.get("group") or "")
        key = MatchKey(GROUP + group if group else channel.session_id, devices, int(body["sequence"]))
        refusal = errors.unknown_group(group) if group else errors.invalid_group(devices, link.ordinal, self._devices)
        if body["op"] == "withdraw":
            if refusal is None:
                self.withdraw(key, devices.index(link.ordinal), body)
        elif refusal is not None:
            self._send([fail_message(key, Presentation.of(location, body), refusal)])
        else:
            self.present(key, devices.index(link.ordinal), location, body, int(body.get("count") or 1))

    def _end_wedged_process(self, link: DeviceLink, comm: str) -> None:
        """Ends a device process whose communicator cannot be aborted. A new process takes its place."""
        log.error("communicator_wedged", device=link.ordinal, generation=link.generation, comm=comm)
        link.abandon(f"its communicator {comm} could not be aborted")

    # ---- also used for groups over daemons ----

    def present(self, key: MatchKey, rank: int, location: RankLocation, body: dict[str, Any], count: int = 1) -> None:
        """Handles a rank's part in an operation, or in `count` consecutive operations.

        Each of several operations is ordered after the previous one. Raises KeyError, TypeError or ValueError if `body`
        is not a valid `present` message.
        """
        now = self._now()
        messages = self.coordinator.present(key, rank, location, body, now, count)
        self._send(merge_runs(messages) if count > 1 else messages)
        if self._timer is None or now + float(body.get("timeout") or 0) < self._timer_due:
            self._arm_timer()

    def withdraw(self, key: MatchKey, rank: int, body: dict[str, Any]) -> None:
        """Handles a rank's message that it will not take part in an operation.

        Raises KeyError, TypeError or ValueError if `body` is not a valid `withdraw` message.
        """
        self._send(self.coordinator.withdraw(key, rank, body))
        self._arm_timer()

    def on_message(self, location: RankLocation, body: dict[str, Any], owner: str = "") -> None:
        """Handles a message of a rank's process about a communicator.

        The messages are `id`, `joined`, `join_failed`, `failed` and `progress`. `owner`: for a message of another
        daemon, the group in which it takes part. Raises the same errors as `present`.
        """
        self._send(self.coordinator.on_message(location, body, owner))
        self._arm_timer()

    def on_loss(self, lost: RankLocation | int, cause: str, owners: Collection[str] = ()) -> None:
        """Handles the loss of a device process or a whole node, with the ranks that `owners` had there.

        `owners`: sessions and groups. Node numbers differ between groups, so for other nodes only the groups in
        `owners` are affected.
        """
        self._send(self.coordinator.on_loss(lost, cause, owners))
        self._arm_timer()

    def end_owner(self, owner: str, message: str, reason: Reason = Reason.COMMUNICATOR_FAILED) -> None:
        """Handles the end of a group or a session.

        Waiting operations fail, the communicators of a group are aborted, and nothing of the owner is kept.
        """
        self._send(self.coordinator.end_owner(owner, Refusal(reason, message, fix="Use another group.")))
        self._arm_timer()

    def link(self, location: RankLocation) -> DeviceLink | None:
        """Returns the link to a local device process that has sent a message about collectives, or None."""
        return self._links.get(location)

    # ---- events of devices and sessions ----

    def on_device_lost(self, link: DeviceLink, cause: str) -> None:
        """Handles the end of a device process, with the ranks of its sessions on the device."""
        sessions = {channel.session_id for channel in link.channels.values()}
        location = RankLocation.of(link)
        self._links.pop(location, None)
        self.on_loss(location, cause, sessions)
        if self.relay is not None:
            self.relay.on_device_lost(link, cause)

    def on_device_ended(self, link: DeviceLink) -> None:
        """Handles the end of a device process that served no more sessions.

        It may have communicators with processes that continue.
        """
        location = RankLocation.of(link)
        if self._links.pop(location, None) is None:
            return  # it took part in no collective, or was lost
        cause = "its process has ended"
        self._send(self.coordinator.on_loss(location, cause, intended=True), log.info)
        self._arm_timer()
        if self.relay is not None:
            self.relay.on_device_lost(link, cause)

    def on_session_closed(self, session: str) -> None:
        """Handles a session that is about to close on the devices."""
        for link in self._links.values():  # later messages of its processes are ignored
            self._closing.update(channel for channel in link.channels.values() if channel.session_id == session)
        self.end_owner(
            session, "The session ended before all ranks had presented the operation.", Reason.SESSION_EXPIRED
        )
        if self.relay is not None:
            self.relay.on_session_closed(session)

    def stop(self) -> None:
        """Stops the timer, and forgets the device processes.

        Called at the end of the daemon; operations that still wait are not answered.
        """
        self._links.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _send(self, messages: list[DeviceMessage], write: Callable[..., None] = log.warning) -> None:
        """Sends the messages. Failures and aborts are logged with `write`."""
        for location, body in messages:
            if body["op"] in ("fail", "abort"):
                write(
                    "collective_failed", device=location.device, node=location.node, op=body["op"],
                    reason=body.get("reason", ""),
                )  # fmt: skip
            if location.node:
                self.send_to_peer(location, body)
                continue
            link = self.link(location)
            if link is not None:
                link.send_json(Kind.COLLECTIVE, body)

    def _arm_timer(self) -> None:
        deadline = self.coordinator.deadline
        if self._timer is not None:
            if deadline is not None and self._timer_due <= deadline:
                return  # the timer fires early enough, and then checks again
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer_due = deadline
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._now() + 1e-3  # a timer may fire a clock tick early
        self._send(self.coordinator.expire(now))
        self._arm_timer()
