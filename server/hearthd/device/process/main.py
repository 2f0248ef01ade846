"""Start of a device process: process attributes, confinement, device, and event loop."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import socket
from multiprocessing import forkserver
from multiprocessing.connection import Connection

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.confinement import attributes
from hearthd.device.backend.server import DeviceFault
from hearthd.device.broker.main import start_broker
from hearthd.device.outbox import Outbox
from hearthd.device.platform.confine import confine
from hearthd.device.platform.sandbox import adopt_orphans
from hearthd.device.process.device_process import DeviceProcess, make_server
from hearthd.shared.device_spec import DeviceSpec
from hearthd.shared.lifeline import die_with
from hearthd.shared.log import configure
from hearthd.shared.malloc import keep_freed_memory

EXIT_FAULT = 70
"""Exit status of a process whose device could not be opened (EX_SOFTWARE)."""

KEEP_BYTES = 1 << 30
"""Most freed host memory, in bytes, that a device process keeps for later copies."""

PR_SET_TIMERSLACK = 29

SLACK_NS = 1000
"""Slack of timed sleeps, in nanoseconds. The default of 50 us is longer than most kernels take."""


def main(
    link: socket.socket,
    spec: DeviceSpec,
    descriptors: socket.socket,
    lifeline: Connection,
) -> None:
    """Runs a device process; entry point."""
    _die_with_the_front(link, lifeline)
    attributes.close_to_others()  # also protects the broker, which is forked later
    adopt_orphans()
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK_NS)  # for this thread, which becomes the device-handle thread
    keep_freed_memory(KEEP_BYTES)
    configure(spec.log_level, spec.log_format)
    # SIGUSR1 writes every thread's stack to the log. The front sends it before it kills a process that is stuck.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # A terminal or service manager signals the whole process group, but the front decides when a device process ends.
    ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)  # the fork server blocks them
    try:
        broker = start_broker(spec)  # before any thread or CUDA context exists
        kept_descriptors = [lifeline.fileno(), *(end.fileno() for end in (link, descriptors, *broker.ends))]
        confined = confine(spec, kept_descriptors)
        process = DeviceProcess(link, spec, make_server(spec, broker), broker, descriptors, confined)
    except (Refusal, DeviceFault) as error:
        refusal = error if isinstance(error, Refusal) else Refusal(Reason.DEVICE_UNAVAILABLE, str(error))
        link.setblocking(True)
        outbox = Outbox(link, lambda _wanted: None)
        outbox.put(Kind.FAULT, refusal.to_status().SerializeToString())
        outbox.send_all()
        os._exit(EXIT_FAULT)
    process.device.output.capture()  # this process owns its standard output
    process.run()
    # Stream and compile threads may be in native code that never returns, and no state needs to be saved.
    os._exit(0)


def _die_with_the_front(link: socket.socket, lifeline: Connection) -> None:
    """Makes the kernel kill this process when the front is gone, in whatever state.

    The end of the forkserver has no effect on this process.

    The forkserver lives as long as any process has its "alive" pipe open. Its children inherit the pipe and do not use
    it, so a device process that is stuck would keep the forkserver alive; therefore the pipe is closed here.
    """
    alive = getattr(forkserver, "_forkserver", None)
    if alive is not None and alive._forkserver_alive_fd is not None:
        os.close(alive._forkserver_alive_fd)
        alive._forkserver_alive_fd = None
    os.set_inheritable(lifeline.fileno(), False)
    with contextlib.suppress(OSError):  # a process that is not stuck also notices the end of the link
        if not die_with(lifeline.fileno()):
            os._exit(0)
    poll = select.poll()
    poll.register(link, select.POLLHUP)
    if poll.poll(0):  # the front has already gone
        os._exit(0)
