"""The cause of a device process's end, in words and as the refusal that its clients get."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

from hearth_proto.reasons import Reason, Refusal, from_status
from hearthd.front.links.link import DeviceLink

REPORT_GRACE = 0.2
"""Seconds that a stuck process has to write its stacks to the log."""
EXIT_GRACE = 0.5
"""A process that said why it ends, or closed its link, has this long to be gone before it is killed."""

ABANDONED, RESTART = "abandoned", "restart"
LABELS = frozenset(
    {ABANDONED, "exit", "fault", "launch", "link", RESTART, "signal", "start_timeout", "stuck", "unknown"}
)
"""Labels that an `ExitCause` may have, for metrics."""
INTENDED = frozenset({ABANDONED, RESTART})
"""Ends by the front itself, which count against no session: closed sessions alone were left, an operator."""


@dataclass(frozen=True)
class ExitCause:
    """Why a device process ended."""

    label: str  # one of LABELS
    text: str
    kernels: tuple[str, ...] = ()
    details: tuple[tuple[str, str], ...] = ()

    def refusal(self, device: int, generation: int) -> Refusal:
        """Returns the error of all pending work on the device."""
        return Refusal(
            Reason.DEVICE_LOST,
            f"Device {device} (generation {generation}) was lost: {self.text}.",
            fix="Buffers of this generation are gone, durable ones excepted: allocate and upload again; a new process "
            "is being started.",
            details={
                **{name: value for name, value in self.details if name != "sessions"},  # theirs alone to know
                "device": device,
                "generation": generation,
                "cause": self.label,
                **({"kernels": ", ".join(self.kernels)} if self.kernels else {}),
            },
            retry_after_s=0.5,
        )


def signal_name(number: int) -> str:
    """Real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def find_cause(link: DeviceLink, exited: asyncio.Future[int | None]) -> ExitCause:
    """Finds the cause of the end of the process behind `link`: its own report, else its link, else its exit status."""
    if exited.done() and not link.closed.done():
        # The exit status may overtake what the process wrote before it: its results, and why it ends.
        await asyncio.wait({link.closed}, timeout=EXIT_GRACE)
    if link.fault.done():
        refusal = from_status(link.fault.result())
        names = refusal.details.get("kernels") or refusal.details.get("in_flight") or ""
        kernels = tuple(name.strip() for name in names.split(",") if name.strip())
        return ExitCause("fault", refusal.message.rstrip("."), kernels, tuple(refusal.details.items()))
    why = link.closed.result() if link.closed.done() else ""
    if why:
        return ExitCause("link", why)
    await asyncio.wait({exited}, timeout=EXIT_GRACE)
    if not exited.done():
        return ExitCause("link", "it closed its link and went on")
    code = exited.result()
    if code is None:
        return ExitCause("unknown", "its process vanished")
    if code < 0:
        name = signal_name(-code)
        return ExitCause("signal", f"its process was killed by {name}", details=(("signal", name),))
    return ExitCause("exit", f"its process ended with exit code {code}", details=(("exit_code", str(code)),))
