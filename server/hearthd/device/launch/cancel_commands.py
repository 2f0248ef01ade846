"""Cancel: drops commands of a session that have not begun."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from hearth_proto.frames import Frame
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.cancellations import Cancellation
from hearthd.device.session.session import DeviceSession


class CancelCommands:
    """Executes the Cancel commands of all sessions. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device

    def take_effect_early(self, session: DeviceSession, frame: Frame) -> None:
        """Puts a Cancel command into effect that has not been executed yet; a frame without payload ends all effects.

        Drops the waiting commands that it covers. Those that are executed until its own execution are dropped by
        `hearthd.device.operation.submit`.
        """
        if not frame.payload:
            session.cancellations.clear()
            session.dropping = False
            return
        try:
            command = commands_pb2.Command.FromString(frame.payload)
        except DecodeError:
            return  # the front has decoded it before
        cancellation = _scope(command.stream, command.cancel)
        if session.cancellations.begin(command.request, cancellation):
            session.dropping = True
            self._drop_waiting(session, cancellation)

    def cancel(self, origin: Origin, command: commands_pb2.Cancel) -> Operation | None:
        """Ends the effect of the command, after dropping the waiting commands that it covers; answers their number.

        Raises Refusal(INVALID_ARGUMENT) outside of a batch or without a request number.
        """
        session, number = origin.session, origin.request
        if origin.batch is None or not number:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                "a Cancel is a command of a batch with a request number",
                fix="send it on Execute with Command.request; a single call is cancelled by its own gRPC call",
            )
        cancellation = self.end(session, number)
        if cancellation is None:
            cancellation = _scope(origin.stream.handle, command)
            self._drop_waiting(session, cancellation)
        self._device.telemetry.cancelled += cancellation.dropped
        origin.reply(commands_pb2.Result(cancel=commands_pb2.CancelResult(dropped=cancellation.dropped)))
        return None

    @staticmethod
    def end(session: DeviceSession, number: int) -> Cancellation | None:
        """Ends the effect of a Cancel command that is executed or refused; see `Cancellations.end`."""
        cancellation = session.cancellations.end(number)
        session.dropping = bool(session.cancellations)
        return cancellation

    def _drop_waiting(self, session: DeviceSession, cancellation: Cancellation) -> None:
        """Drops the deferred commands that the cancellation covers and that have not begun."""
        for operation in session.deferred:
            if operation.droppable(cancellation):
                operation.drop(cancellation)
        self._device.kick(session)


def _scope(stream: int, command: commands_pb2.Cancel) -> Cancellation:
    return Cancellation(stream, command.all_streams, command.of_request)
