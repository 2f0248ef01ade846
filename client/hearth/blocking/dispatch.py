"""A dispatch in progress whose result the calling thread waits for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from hearth import telemetry
from hearth.codec import timeouts
from hearth.kernels.base_pending_dispatch import BasePendingDispatch, run_job

if TYPE_CHECKING:
    import numpy as np

    from hearth.kernels.base_pending_dispatch import Carrier


class PendingDispatch(BasePendingDispatch):
    """A dispatch in progress, returned by `Device.dispatch_async`.

    The dispatch completes even if the program keeps no reference to this object.
    """

    def _start_transfers(self) -> Carrier:
        """Starts a thread that transfers the dispatch's inputs and outputs."""
        carrier = threading.Thread(target=run_job, args=(self._job,), name="hearth-dispatch", daemon=True)
        carrier.start()
        return carrier

    @telemetry.traced("hearth.dispatch.result", telemetry.of_result)
    def result(self, timeout: float | None = None) -> list[np.ndarray[Any, Any]]:
        """Returns the outputs, in the order of the arguments.

        Blocks until the dispatch is done; every call returns the same arrays.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Returns:
            The outputs as host arrays.

        Raises:
            HearthError: The dispatch failed; raised by every call.
            TimeoutError: The dispatch is still pending; it continues.
            ArgumentError: `timeout` is not a number of seconds.
        """
        return self._finish(timeouts.check_wait(timeout))

    def cancel(self) -> bool:
        """Cancels the dispatch if the device has not begun it. Blocks for one request to the device.

        Returns:
            True if the dispatch is cancelled, so that `result` raises `CancelledError`. False if it has ended or has
            begun; it then completes.

        Raises:
            UnsupportedError: The daemon is of an earlier version.
        """
        cancelling = self._queue_cancel()
        if cancelling is None:
            return False
        cancelling.put_into_effect()
        return cancelling.dropped.wait() > 0
