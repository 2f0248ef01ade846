"""Abstract profiles: times of a section of work, measured on the device and in the daemon.

`BaseProfile` has everything that `hearth.Profile` and `hearth.aio.Profile` have in common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth import base_stream as streams
from hearth.errors import ArgumentError, HearthError
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.reply import PendingResult


class BaseProfile:
    """Abstract profile: its times, and the commands that begin and end it."""

    def __init__(self, connection: Connection, stream: streams.BaseStream | None = None) -> None:
        self._connection = connection
        self._stream_argument = stream
        self._attachment: Attachment | None = None
        self._stream = 0
        self._handle = 0
        self._result: commands_pb2.ProfileResult | None = None

    @property
    def device_ns(self) -> int:
        """Nanoseconds of device time, between events recorded on the stream at the start and the end."""
        return self._done().device_ns

    @property
    def wall_ns(self) -> int:
        """Nanoseconds from the start to the end, by the daemon's clock."""
        return self._done().wall_ns

    def _begin(self) -> None:
        attachment = self._connection.attachment()
        self._stream = streams.resolve(self._stream_argument, self._connection, attachment)
        self._handle = self._connection.mint()
        self._result = None
        command = commands_pb2.Command(stream=self._stream)
        command.start_profile.profile = self._handle
        attachment.submit(command)
        self._attachment = attachment

    def _end(self, error: BaseException | None) -> PendingResult[None] | None:
        """Ends the profile. Returns the request to wait for; None if there is none."""
        command = commands_pb2.Command(stream=self._stream)
        command.end_profile.profile = self._handle
        assert self._attachment is not None
        if error is not None:  # the block's exception takes precedence; the profile is only closed
            if self._attachment.alive:
                # The answer carries failures of the stream. No caller waits for this answer, so they are raised later.
                reply = self._attachment.request(command, reports=True)
                on_late_error = reply.on_late_error

                def report(failed: HearthError) -> None:
                    # this failure has been reported already
                    if on_late_error is not None and failed.reason != "PROFILE_INVALID":
                        on_late_error(failed)

                reply.on_late_error = report
                reply.abandon()
            return None

        def read(result: commands_pb2.Result) -> None:
            self._result = result.profile

        return self._connection.request(command, read, self._attachment, reports=True)

    def __repr__(self) -> str:
        times = self._result
        state = "running" if times is None else f"{times.device_ns} ns on the device, {times.wall_ns} ns in total"
        return f"<hearth.Profile: {state}>"

    def _repr_html_(self) -> str:
        from hearth import html_repr

        result = self._result
        if result is None:
            return html_repr.pairs("Profile", [("state", "running")])
        times = [("device", html_repr.duration(result.device_ns)), ("wall", html_repr.duration(result.wall_ns))]
        return html_repr.pairs("Profile", times)

    def _done(self) -> commands_pb2.ProfileResult:
        if self._result is None:
            raise ArgumentError(
                "the profile has not ended.", reason="PROFILE_INVALID", fix="read the times after the with block."
            )
        return self._result
