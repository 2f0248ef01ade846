"""Full disks: detection, and the refusal for clients, with the path and a fix.

A full disk is not caused by a request: it is never reported as a source that does not compile, and work without disk
access continues.
"""

from __future__ import annotations

import errno
import os
import tempfile

from hearth_proto.reasons import Reason, Refusal

RETRY_S = 5.0
"""Seconds after which a client may repeat a refused request: other processes free space, or an operator does."""

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_PHRASES = (*(os.strerror(number).lower() for number in _FULL_ERRNOS), "error: nospaceleft")
_QUOTING_MARKS = ("#error", "#warning", "static assertion")
"""Marks of lines that quote a source, and may therefore contain any text."""
_MIN_FREE_BYTES = 1 << 20
"""Smallest sufficient free space in bytes: with less, a compiler that maps its files crashes."""


def is_full(error: BaseException) -> bool:
    """True if the error reports a full disk, or a user's exhausted quota on it."""
    return isinstance(error, OSError) and error.errno in _FULL_ERRNOS


def says_full(text: str) -> bool:
    """True if a compiler's output reports a full disk: the system's text in the C locale, or zig's name for it."""
    lines = (line.lower() for line in text.splitlines())
    return any(
        phrase in line for line in lines if not any(mark in line for mark in _QUOTING_MARKS) for phrase in _PHRASES
    )


def without_room(path: str) -> bool:
    """True if there is hardly any free space at `path`."""
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _MIN_FREE_BYTES or (status.f_files > 0 and not status.f_favail)


def refusal(path: str, purpose: str, setting: str) -> Refusal:
    """Returns the refusal DISK_FULL.

    `purpose`: the data to be written at `path`; `setting`: the name of the setting that chooses the path.
    """
    return Refusal(
        Reason.DISK_FULL,
        f"The disk that holds {path} is full: there is no room for {purpose}.",
        fix=f"Free space there, or have {setting} name a directory with free space.",
        details={"path": path, "setting": setting},
        retry_after_s=RETRY_S,
    )


def of_error(error: OSError, cache: str) -> Refusal:
    """Returns the refusal for an error of a compile, whose files are in the `cache` directory or temporary."""
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if cache and (not path or path.startswith(cache)):
        return refusal(path or cache, "what is compiled", "cache.dir")
    return temporary(path)


def temporary(path: str = "") -> Refusal:
    """Returns the refusal for a compiler's temporary files."""
    return refusal(path or tempfile.gettempdir(), "a compiler's temporary files", "TMPDIR")
