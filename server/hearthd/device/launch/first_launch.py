"""First launch of a kernel: the driver may need an idle device for it, which a launch or a dispatch waits for."""

from __future__ import annotations

from collections.abc import Callable

from hearth_proto.reasons import Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.launch.binder import BoundLaunch
from hearthd.device.operation import Origin
from hearthd.device.resources.idle_work import Waiting
from hearthd.device.session.module import FunctionEntry


class FirstLaunch:
    """Wait of one launch for an idle device, if the driver would wait for other kernels in it.

    The launch is then issued while no kernel runs, so that the driver does not block the device-handle thread.
    """

    def __init__(self, device: DeviceContext, origin: Origin, entry: FunctionEntry, bound: BoundLaunch) -> None:
        self._device = device
        self._origin = origin
        self._entry = entry
        self.bound = bound
        self._outcome: bool | Refusal = False
        """True once the launch may be issued: it does not need an idle device any more. A Refusal if the wait or the
        launch was refused."""
        self._waiting: Waiting | None = None
        """The queued job of this launch, pending or done; None if there is none."""

    def check(self) -> None:
        """Raises Refusal if the wait, or the launch in it, was refused."""
        if isinstance(self._outcome, Refusal):
            raise self._outcome

    def ready(self, issue: Callable[[], bool]) -> bool:
        """Returns True if the launch may be issued. Raises Refusal like `check`.

        Otherwise `issue` is called while the device is idle, and the session is scheduled again. It issues the launch,
        or returns False if it has issued nothing, because the launch waits for something else; it may raise Refusal.
        """
        if self._outcome is False:
            self._wait(issue)
        self.check()
        return self._outcome is True

    def release(self) -> None:
        """Ends the wait of a launch that will not run, for example after the end of its session."""
        if self._waiting is not None:
            self._device.idle_work.drop(self._waiting)

    def _wait(self, issue: Callable[[], bool]) -> None:
        device, entry = self._device, self._entry
        if not device.server.first_launch_waits(self.bound.plan.function, self.bound.module.prints is not None):
            # Another launch has made the driver's allocations that this launch waited for.
            if self._waiting is not None:
                device.idle_work.drop(self._waiting)
            self._outcome = entry.launched = True
            return
        refused = entry.refused
        if refused is not None and not refused[1]():
            self._outcome = refused[0]
        elif self._waiting is None:
            description = f"the first launch of {self.bound.plan.name}"
            self._waiting = device.idle_work.load(
                self._origin.session, description, lambda: self._issue_when_idle(issue), self._refuse
            )

    def _refuse(self, refusal: Refusal) -> None:
        self._device.telemetry.loads_refused += 1
        self._entry.refused = refusal, self._device.idle_work.retry_condition()
        self._outcome = refusal
        self._device.kick(self._origin.session)

    def _issue_when_idle(self, issue: Callable[[], bool]) -> None:
        self._waiting = None
        try:
            if issue():
                # Not before: a launch that fails may not have made the driver's allocations.
                self._device.server.record_first_launch(self.bound.plan.function, self.bound.module.prints is not None)
                self._outcome = self._entry.launched = True
        except Refusal as refusal:
            self._outcome = refusal
        self._device.kick(self._origin.session)
