"""Profiles: device time of a stretch of one stream's work, between two events, and the failures in that stretch.

Profiles of one stream nest and overlap, and run concurrently with those of other streams; each has a separate pair of
events. A command that fails on the stream between the start and the end of a profile fails every profile that is open
at that point, because their times would not describe the intended work. The failure itself is reported once, as usual:
at the end of the innermost of these profiles, or at an earlier sync, read or flush. Ends of profiles after that report
answer `PROFILE_INVALID`. Failures of other streams and sessions, and of commands after the end, do not affect a
profile.
"""

from __future__ import annotations

import time
from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream, ProfileEntry
from hearthd.device.session.stretch import Stretch
from hearthd.device.streams.stream_errors import surface

MAX_OPEN = 1024
"""Most open profiles of one session: each holds an event, and records every failure of its stream."""


class ProfileCommands:
    """Executes the profile commands. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device

    def start(self, origin: Origin, command: commands_pb2.StartProfile) -> Operation:
        """Opens a profile.

        Its device clock starts with the stream's next work, so that a compile in between is not counted.
        """
        session = origin.session
        if len(session.profiles) >= MAX_OPEN:
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"{len(session.profiles)} profiles are open; the maximum is {MAX_OPEN}",
                fix="end some of them",
                details={"open": len(session.profiles), "allowed": MAX_OPEN},
            )
        profile = ProfileEntry(command.profile, origin.stream, time.perf_counter_ns(), Stretch(origin.position))
        session.profiles.add(command.profile, profile)
        origin.stream.profiles.append(profile)

        def run() -> bool:
            origin.stream.starting.append(profile)
            origin.reply()
            return True

        return Operation(origin, run, writes=(origin.stream, profile))

    def end(self, origin: Origin, command: commands_pb2.EndProfile) -> Operation:
        """Ends a profile.

        The answer, with the times or the failures, is sent when the stream's earlier work is done.
        """
        if not origin.answered:
            raise Refusal(Reason.INVALID_ARGUMENT, "a profile end needs a request number", fix="set Command.request")
        session = origin.session
        profile = session.profiles.find(command.profile)
        if profile.stream is not origin.stream:
            raise Refusal(
                Reason.PROFILE_INVALID,
                f"profile {command.profile} was started on stream {profile.stream.handle}, "
                f"not on {origin.stream.handle}",
                fix="end it on the stream where it was started",
                details={"profile": command.profile, "stream": profile.stream.handle},
            )
        session.profiles.pop(command.profile)
        profile.stretch.until = origin.position
        operation = Operation(origin, partial(self._end, origin, profile), writes=(origin.stream, profile))
        operation.on_failure = lambda _refusal: self._release(profile)
        return operation

    def _end(self, origin: Origin, profile: ProfileEntry) -> bool:
        device = self._device
        device.begin(origin.stream)
        start = profile.start
        assert start is not None, "`begin` starts the clock at the latest"
        end = device.server.record(origin.stream.track.stream, timing=True)
        # Failures of single calls have no position that distinguishes them from later failures: they are collected now.
        collected = origin.stream.errors.pop_all(origin.position, reported=False)

        def answer() -> None:
            for failure in collected:
                failure.surfaced = True
            failures = collected + origin.stream.errors.pop_all(origin.position or (0, 0))
            elapsed = device.server.elapsed_ns(start, end)
            device.server.release_event(end)
            self._release(profile)
            wall = time.perf_counter_ns() - profile.started_ns
            if failures:
                device.telemetry.profiles_void += 1
                origin.reply_error(surface(failures))
            elif profile.stretch.void:
                device.telemetry.profiles_void += 1
                origin.reply_error(_void(profile).to_status())
            else:
                device.telemetry.profiles += 1
                origin.reply(commands_pb2.Result(profile=commands_pb2.ProfileResult(device_ns=elapsed, wall_ns=wall)))

        device.tracks.on_complete(origin.stream.track, answer)  # keeps the order of the stream's answers
        return True

    def close(self, session: DeviceSession) -> None:
        """Releases the events of the open profiles of a closed session."""
        for profile in session.profiles.items.values():
            self._release(profile)
        session.profiles.items.clear()

    def forget(self, session: DeviceSession, stream: LogicalStream) -> None:
        """Removes the profiles that are open on a stream that is destroyed."""
        for handle in [handle for handle, entry in session.profiles.items.items() if entry.stream is stream]:
            self._release(session.profiles.pop(handle))

    def _release(self, profile: ProfileEntry) -> None:
        stream = profile.stream
        if profile in stream.profiles:
            stream.profiles.remove(profile)
        if profile in stream.starting:
            stream.starting.remove(profile)
        start, profile.start = profile.start, None
        if start is not None:
            self._device.server.release_event(start)


def _void(profile: ProfileEntry) -> Refusal:
    stretch = profile.stretch
    first = stretch.failures[0]
    more = len(stretch.failures) - 1 + stretch.omitted
    return Refusal(
        Reason.PROFILE_INVALID,
        f"profile {profile.handle} has no valid result: {first.command} failed while it was measured, which has "
        f"been reported: "
        f"{first.cause.refusal.message}" + (f" (and {more} more)" if more else ""),
        fix="repair the command that failed, and profile again",
        details={
            "profile": profile.handle,
            "failed": len(stretch.failures) + stretch.omitted,
            "command": first.command,
            "cause": first.cause.refusal.reason,
        },
    )
