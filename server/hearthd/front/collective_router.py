"""Collectives on the links: feeds the matcher and the communicators, sends what they say, keeps their time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import structlog

from hearth_proto.frames import Kind
from hearthd.front.collectives import Matcher, Send
from hearthd.front.communicators import Communicators
from hearthd.front.link import DeviceLink

log = structlog.get_logger("hearthd.collectives")


class CollectiveRouter:
    """One for the node. Everything happens in the event loop, so all links see one order."""

    def __init__(self, devices: Collection[int], timeout: float) -> None:
        self._matcher = Matcher(devices, timeout)
        self._communicators = Communicators()
        self._links: dict[tuple[int, int], DeviceLink] = {}  # by device and generation
        self._timer: asyncio.TimerHandle | None = None

    def on_frame(self, device: int, link: DeviceLink, body: dict[str, Any]) -> None:
        """A COLLECTIVE frame has come."""
        self._links[device, link.generation] = link
        try:
            if body["op"] == "present":
                self._present(device, link, body)
            else:
                self._send(self._communicators.message(device, body, link.generation))
        except (KeyError, TypeError, ValueError) as error:
            log.error("collective_malformed", device=device, body=str(body)[:200], error=repr(error))
        self._arm()

    def _present(self, device: int, link: DeviceLink, body: dict[str, Any]) -> None:
        channel = link.channels.get(int(body["channel"]))
        if channel is None:
            return  # the session has just ended
        sends, match = self._matcher.present(channel.session_id, device, body, self._now(), link.generation)
        if match is not None:
            sends += self._communicators.submit(match)
        self._send(sends)

    def on_device_lost(self, link: DeviceLink, why: str) -> None:
        """A device process has ended, and with it the part that its sessions had on the device."""
        self._links.pop((link.ordinal, link.generation), None)
        sessions = {channel.session_id for channel in link.channels.values()}
        self._send(self._matcher.device_lost(link.ordinal, why, sessions))
        self._send(self._communicators.device_lost(link.ordinal, why, link.generation))
        self._arm()

    def on_session_closed(self, session: str) -> None:
        """A session is about to close on the devices."""
        self._send(self._matcher.session_closed(session))
        self._communicators.session_closed(session)
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _send(self, sends: list[Send]) -> None:
        for device, body, process in sends:
            link = self._links.get((device, process))
            if body["op"] in ("fail", "abort"):
                log.warning("collective_failed", device=device, op=body["op"], reason=body.get("reason", ""))
            if link is not None:
                link.send_json(Kind.COLLECTIVE, body)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = [when for when in (self._matcher.deadline, self._communicators.deadline) if when is not None]
        if due:
            self._timer = asyncio.get_running_loop().call_at(min(due), self._expire)

    def _expire(self) -> None:
        now = self._now() + 1e-3  # a timer may fire a clock tick early
        self._send(self._matcher.expire(now))
        self._send(self._communicators.expire(now))
        self._arm()
