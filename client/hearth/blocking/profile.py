"""Profiles and traces of a ``with`` block: the end of the block blocks until the work is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.profiling.base_profile import BaseProfile
from hearth.profiling.base_trace import BaseTrace

if TYPE_CHECKING:
    from typing import Self


class Profile(BaseProfile):
    """Times of the work of a block: ``with gpu.profile() as p: ...``, then `device_ns` and `wall_ns`.

    Profiles may be nested and may overlap.

    The end of the block blocks until the work is done, and raises failures of the stream. If a failure was already
    reported inside the block, by a `get` or the end of an inner profile, the end raises `HearthError` with the reason
    ``PROFILE_INVALID``, because the times would not be those of the requested work.
    """

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ending = self._end(error)
        if ending is not None:
            ending.wait()


class Trace(BaseTrace):
    """The commands of a block: ``with gpu.trace() as t: ...``, then `events`, or ``save("trace.json")``.

    Contains every command of this session on the device, of all streams and threads. The end of the block blocks until
    the work is done. A failed command appears in the trace; its error is raised where it would be raised without a
    trace.
    """

    def __enter__(self) -> Self:
        self._pause()
        self._begin().wait()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ending = self._end(error)
        if ending is not None:
            try:
                ending.wait()
            finally:
                self._resume()
