"""Fatal exit of a device process that loses its device: reports the reason and exits immediately.

A lost context cannot be repaired, and a kernel cannot be stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import termios
import time
from collections.abc import Sequence
from typing import NoReturn

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.scheduler.device_time import DeviceTimeMeter

EXIT_TIMEOUT_S = 0.3
"""Longest time, in seconds, to wait until the front has read the reason."""

_RECEIVE_BYTES = 64 << 10


def abort_process(
    device: DeviceContext,
    meter: DeviceTimeMeter,
    link: socket.socket,
    reason: str,
    *,
    fix: str = "",
    sessions: Sequence[str] | None = None,
) -> NoReturn:
    """Sends the reason over the link to the front, and kills the process.

    `sessions` are the sessions whose kernels may have caused the failure; by default those of all kernels in flight.
    """
    tracks, outbox, spec = device.tracks, device.outbox, device.spec
    refusal = Refusal(
        Reason.DEVICE_LOST,
        f"device {spec.ordinal} was lost: {reason}",
        fix=fix or "check the named kernels; allocate and upload everything that was on the device again",
        details={
            "device": spec.ordinal,
            "generation": spec.generation,
            "in_flight": ", ".join(tracks.in_flight()),
            "sessions": ", ".join(sessions if sessions is not None else tracks.running_sessions()),
        },
    )
    device.output.send()
    outbox.put(Kind.STATS, json.dumps(device.telemetry.snapshot()).encode())
    meter.report()
    outbox.put(Kind.FAULT, refusal.to_status().SerializeToString())
    outbox.send_all()
    _linger(link)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL ends the process")


def send_output(device: DeviceContext, link: socket.socket) -> None:
    """Sends the kernels' output. Returns when the front has read it, or after `EXIT_TIMEOUT_S`."""
    device.output.send()
    device.outbox.send_all()
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    with contextlib.suppress(OSError):
        while _unread(link) and time.monotonic() < deadline:
            time.sleep(0.001)


def _unread(link: socket.socket) -> int:
    """Returns how many bytes, as counted by the operating system, the front has not read from the link."""
    answer = fcntl.ioctl(link.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


def _linger(link: socket.socket) -> None:
    """Waits until the front has read the reason and closed the link.

    An earlier exit could break a write of the front, and lose the reason with it.
    """
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    with contextlib.suppress(OSError):
        while (remaining := deadline - time.monotonic()) > 0:
            link.settimeout(remaining)
            if not link.recv(_RECEIVE_BYTES):
                return
