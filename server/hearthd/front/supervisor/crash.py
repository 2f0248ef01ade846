"""The crash record of a device process of the CPU backend, and the cause of its end that the record shows.

See `hearthd.shared.crash_record`.
"""

from __future__ import annotations

import dataclasses
import os

import structlog

from hearthd.front.links.link import DeviceLink
from hearthd.front.supervisor.exit_cause import INTENDED, ExitCause, signal_name
from hearthd.shared import crash_record
from hearthd.shared.crash_record import Crash, CrashRecord, RunningKernel

log = structlog.get_logger("hearthd.supervisor")

_MAX_NAMES = 16
"""Maximum number of kernels that are named."""


class CrashFile:
    """The crash record of one process; without `file` there is none.

    The process shares the file, and both processes may write to it.
    """

    def __init__(self, file: int | None = None) -> None:
        self._file = file

    @classmethod
    def of(cls, backend: str, link: DeviceLink) -> CrashFile:
        """Creates a record and hands it to the process of the link.

        On CUDA there is none: a kernel that fails does not end its process, and the process itself names the kernels.
        """
        if backend != "cpu" or link.descriptors is None:
            return cls()
        file: int | None = None
        try:
            file = crash_record.make()
            link.descriptors.send(crash_record.FILE, {}, [file])
            return cls(file)
        except OSError as error:  # a crash is then reported without the names of kernels; nothing else is affected
            log.warning("crash_record", device=link.ordinal, error=str(error))
            if file is not None:
                os.close(file)
            return cls()

    def explain(self, cause: ExitCause) -> ExitCause:
        """Returns the cause with the details from the record.

        Called after the process has ended, or when it is about to end.
        """
        if self._file is None:
            return cause
        try:
            return explain(cause, crash_record.read(self._file))
        except OSError as error:
            log.warning("crash_record", error=str(error))
            return cause

    def close(self) -> None:
        """Closes the record. A second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def explain(cause: ExitCause, record: CrashRecord) -> ExitCause:
    """Returns the cause, with the kernels that ran if it names none. Pure.

    A process that exited because of a fault of its device has itself reported the kernels in flight.
    """
    if cause.label == "fault" or cause.label in INTENDED:
        return cause
    crash, running = record.crash, record.running
    if crash is not None and cause.details.get("signal") == signal_name(crash.signal):
        if crash.sender:
            sender = str(crash.sender)
            return _with_running_kernels(cause, f", sent by process {sender}", running, {"sender": sender})
        if crash.culprit is not None:
            return _with_culprit(cause, crash, crash.culprit)
        return _with_running_kernels(cause, " outside of all kernels", running, {})
    return _with_running_kernels(cause, "", running, {})


def _with_culprit(cause: ExitCause, crash: Crash, culprit: RunningKernel) -> ExitCause:
    """Adds the kernel that is known to have caused the crash. The other kernels that ran are not mentioned."""
    block = ", ".join(map(str, crash.block))
    details = {"kernel": culprit.kernel, "block": block}
    text = f"{cause.text} in kernel {culprit.kernel}"
    if crash.address is not None:
        details["address"] = f"{crash.address:#x}"
        text += f" at address {crash.address:#x}"
    text += f", block ({block})"
    if crash.message:
        details["message"] = crash.message
        text += f": {crash.message}"
    if culprit.session:
        details["sessions"] = culprit.session
    return _extend_cause(cause, text, (culprit.kernel,), details)


def _with_running_kernels(
    cause: ExitCause, suffix: str, running: tuple[RunningKernel, ...], details: dict[str, str]
) -> ExitCause:
    """Adds all kernels that ran, because any of them, or none, may have caused the crash."""
    kernels = tuple(dict.fromkeys(entry.kernel for entry in running))
    sessions = dict.fromkeys(entry.session for entry in running if entry.session)
    text = cause.text + suffix
    if kernels:
        names = ", ".join(kernels[:_MAX_NAMES]) + (", ..." if len(kernels) > _MAX_NAMES else "")
        text += f" while {f'kernel {names} was' if len(kernels) == 1 else f'kernels {names} were'} running"
    # If the session of a kernel is unknown, no session is named, because the unknown one may be the cause.
    if len(sessions) == len({entry.session for entry in running}):
        details = {**details, "sessions": ", ".join(sessions)} if sessions else details
    return _extend_cause(cause, text, kernels, details)


def _extend_cause(cause: ExitCause, text: str, kernels: tuple[str, ...], details: dict[str, str]) -> ExitCause:
    return dataclasses.replace(cause, text=text, kernels=kernels, details={**cause.details, **details})
