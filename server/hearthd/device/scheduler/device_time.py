"""Accounting of device time: each interval is divided among the sessions with work on the device.

Work of two sessions that is on the device at the same time may run in parallel or one after the other. The host cannot
distinguish the two cases, so each session pays half, unless it has already paid what its work takes alone. The charges
add up to the time during which the device had any work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from hearth_proto.frames import Kind
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.platform.telemetry import Telemetry
from hearthd.device.scheduler.backlog import Backlog

REPORT_S = 1.0
"""Interval between reports to the front, in seconds, while there is device time to report."""


class DeviceTimeMeter:
    """Measures device time, and charges it to the sessions, the payers. Device-handle thread only.

    Calls `send` with the frames for the front, and `charge` with each payer and the seconds that it pays.
    """

    def __init__(
        self,
        send: Callable[[int, bytes], None],
        telemetry: Telemetry,
        charge: Callable[[Backlog, float], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._send = send
        self._telemetry = telemetry
        self._charge = charge
        self.clock = clock
        self._under_way: dict[Backlog, int] = {}
        self._unreported: dict[str, float] = {}
        self._now = clock()
        self._reported_at = self._now

    @property
    def busy(self) -> bool:
        """True if any session has work on the device."""
        return bool(self._under_way)

    def advance(self) -> float:
        """Divides the time since the last call among the payers; returns the current time in seconds."""
        now = self.clock()
        if self._under_way:
            elapsed = now - self._now
            if len(self._under_way) == 1:
                self._pay(next(iter(self._under_way)), elapsed)
            else:
                self._share(elapsed)
            self._telemetry.device_busy_ns += int(elapsed * 1e9)
        self._now = now
        return now

    def _share(self, elapsed: float) -> None:
        share = elapsed / len(self._under_way)
        paying_share = [payer for payer in self._under_way if payer.debt >= share]
        paying_less = [payer for payer in self._under_way if payer.debt < share]
        if not paying_share:
            paying_share, paying_less = paying_less, []
        for payer in paying_less:
            elapsed -= payer.debt
            self._pay(payer, payer.debt)
        for payer in paying_share:
            self._pay(payer, elapsed / len(paying_share))

    def _pay(self, payer: Backlog, seconds: float) -> None:
        payer.used += seconds
        payer.debt = max(payer.debt - seconds, 0.0)
        session = payer.session.id
        self._unreported[session] = self._unreported.get(session, 0.0) + seconds
        self._charge(payer, seconds)

    def begin(self, payer: Backlog, since: float | None = None) -> float:
        """Counts one piece of the payer's work as on the device, from now or from `since`, and returns that time.

        Each call must be matched by one call of `end`.
        """
        before, now = self._now, self.advance()
        if since is not None and not self._under_way:
            self._now = now = min(max(before, since), now)
        if not (self._under_way or self._unreported):
            self._reported_at = now
        self._under_way[payer] = self._under_way.get(payer, 0) + 1
        return now

    def charge_interval(self, payer: Backlog, since: float) -> float:
        """Charges the interval from `since` to now for work that was alone on the device, and is done; returns now."""
        now = self.clock()
        if not self._unreported:
            self._reported_at = now
        self._pay(payer, now - since)
        self._telemetry.device_busy_ns += int((now - since) * 1e9)
        self._now = now
        return now

    def end(self, payer: Backlog) -> None:
        """Counts one piece of the payer's work as done."""
        self.advance()
        remaining = self._under_way.get(payer, 0) - 1
        if remaining > 0:
            self._under_way[payer] = remaining
        else:
            self._under_way.pop(payer, None)

    def report(self) -> None:
        """Reports to the front all device time that has not been reported."""
        self._reported_at = self.advance()
        reported = {session: int(seconds * 1e9) for session, seconds in self._unreported.items()}
        # The fraction lost by rounding stays in the account and is reported later.
        for session, nanoseconds in reported.items():
            self._unreported[session] -= nanoseconds / 1e9
        reported = {session: nanoseconds for session, nanoseconds in reported.items() if nanoseconds}
        if reported:
            self._send(Kind.METER, json.dumps(reported).encode())

    def forget(self, payer: Backlog) -> None:
        """Removes a payer whose session has ended, and reports its remaining time to the front."""
        self.advance()
        self._under_way.pop(payer, None)
        self.report()
        self._unreported.pop(payer.session.id, None)

    def poll(self, timeout: float | None) -> float | None:
        """Sends a report to the front if its time has come.

        Returns how long the loop may sleep, in seconds: at most `timeout`, and at most until the next report.
        """
        if not (self._under_way or self._unreported):
            return timeout
        remaining = self._reported_at + REPORT_S - self.clock()
        if remaining <= 0:
            self.report()
            remaining = REPORT_S
            if not self._under_way:
                self._unreported.clear()
                return timeout
        return at_most(remaining, timeout)
