"""The cause of a device process's end, as text and as the refusal that its clients receive."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from hearth_proto.reasons import Reason, Refusal, from_status
from hearthd.front.links.link import DeviceLink

REPORT_GRACE = 0.2
"""Time, in seconds, for a stuck process to write the stacks of its threads to the log."""
EXIT_GRACE = 0.5
"""Time, in seconds, for a process that reported its end or closed its link to exit by itself. Afterwards it is
killed."""

ABANDONED, RESTART = "abandoned", "restart"
LABELS = frozenset(
    {ABANDONED, "exit", "fault", "launch", "link", RESTART, "signal", "start_timeout", "stuck", "unknown"}
)
"""Labels that an `ExitCause` may have; they are also labels of metrics."""
INTENDED = frozenset({ABANDONED, RESTART})
"""Ends that the front itself decided, which are attributed to no session: only closed sessions were left, or an
operator restarted the device."""


@dataclass(frozen=True)
class ExitCause:
    """The cause of the end of a device process."""

    label: str  # one of LABELS
    text: str
    kernels: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, device: int, generation: int) -> Refusal:
        """Returns the error for all pending work on the device."""
        return Refusal(
            Reason.DEVICE_LOST,
            f"Device {device} (generation {generation}) was lost: {self.text}.",
            fix="Buffers of this generation are gone, durable ones excepted: allocate and upload again; a new process "
            "is being started.",
            details={
                # Other clients must not learn the ids of these sessions.
                **{name: value for name, value in self.details.items() if name != "sessions"},
                "device": device,
                "generation": generation,
                "cause": self.label,
                **({"kernels": ", ".join(self.kernels)} if self.kernels else {}),
            },
            retry_after_s=0.5,
        )


def signal_name(number: int) -> str:
    """Returns the name of a signal. Real-time signals have no name and are returned as `signal N`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def find_cause(link: DeviceLink, exited: asyncio.Future[int | None]) -> ExitCause:
    """Returns the cause of the end of the process of `link`.

    It is taken from the process's own report, else from its link, else from its exit status.
    """
    if exited.done() and not link.closed.done():
        # The exit status may arrive before the last frames of the process: its results and the report of its end.
        await asyncio.wait({link.closed}, timeout=EXIT_GRACE)
    if link.fault.done():
        refusal = from_status(link.fault.result())
        kernel_names = refusal.details.get("kernels") or refusal.details.get("in_flight") or ""
        kernels = tuple(name.strip() for name in kernel_names.split(",") if name.strip())
        return ExitCause("fault", refusal.message.rstrip("."), kernels, refusal.details)
    link_error = link.closed.result() if link.closed.done() else ""
    if link_error:
        return ExitCause("link", link_error)
    await asyncio.wait({exited}, timeout=EXIT_GRACE)
    if not exited.done():
        return ExitCause("link", "it closed its link but did not exit")
    code = exited.result()
    if code is None:
        return ExitCause("unknown", "its process vanished")
    if code < 0:
        name = signal_name(-code)
        return ExitCause("signal", f"its process was killed by {name}", details={"signal": name})
    return ExitCause("exit", f"its process ended with exit code {code}", details={"exit_code": str(code)})
