"""The Cancel command and the call that makes it take effect immediately, message by message."""

from __future__ import annotations

from hearth_proto import reasons
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.raw import TIMEOUT, Execute, Raw, refused


def fill(buffer: int, stream: int = 0) -> c.Command:
    return c.Command(stream=stream, fill=c.Fill(buffer=buffer, size=4, pattern=b"\1"))


def request(raw: Raw, stream: Execute, command: c.Command) -> device_pb2.CancelRequest:
    return device_pb2.CancelRequest(
        session_token=raw.token, device=0, generation=stream.attached.generation, command=command
    )


def reason(result: c.Result) -> Reason:
    return reasons.from_status(result.error).reason


def test_the_effect_lasts_until_the_command_is_executed(raw: Raw) -> None:
    buffer = raw.buffer(bytes(4))
    other = raw.mint()
    with raw.execute() as stream:
        assert stream.ask(c.Command(create_stream=c.CreateStream(stream=other))).HasField("done")
        cancel = c.Command(request=50, cancel=c.Cancel())
        raw.device.Cancel(request(raw, stream, cancel), timeout=TIMEOUT)
        assert reason(stream.ask(fill(buffer))) is Reason.CANCELLED
        assert stream.ask(fill(buffer, other)).HasField("done")
        assert stream.ask(c.Command(allocate=c.Allocate(buffer=raw.mint(), size=4))).HasField("done")
        stream.batch(fill(buffer))  # one way: the next sync reports it
        assert dropped(stream, cancel) == 2
        assert stream.ask(fill(buffer)).HasField("done")
        assert [reasons.from_status(each.status).reason for each in stream.failures()] == [Reason.CANCELLED]
        raw.device.Cancel(request(raw, stream, cancel), timeout=TIMEOUT)  # too late
        assert stream.ask(fill(buffer)).HasField("done")


def test_another_attachment_begins_without_cancelled_commands(raw: Raw) -> None:
    buffer = raw.buffer(bytes(4))
    with raw.execute() as stream:
        cancel = c.Command(request=50, cancel=c.Cancel(all_streams=True))
        raw.device.Cancel(request(raw, stream, cancel), timeout=TIMEOUT)
        assert reason(stream.ask(fill(buffer))) is Reason.CANCELLED
        stream.close()
    with raw.execute() as stream:
        assert stream.ask(fill(buffer)).HasField("done")


def test_a_single_command_is_cancelled_by_its_request_number(raw: Raw) -> None:
    buffer = raw.buffer(bytes(4))
    with raw.execute() as stream:
        cancel = c.Command(request=50, cancel=c.Cancel(of_request=2))
        raw.device.Cancel(request(raw, stream, cancel), timeout=TIMEOUT)
        assert stream.ask(fill(buffer)).HasField("done")  # request 1
        assert reason(stream.ask(fill(buffer))) is Reason.CANCELLED
        assert stream.ask(fill(buffer)).HasField("done")


def piece(buffer: int, index: int, split: int, stream: int = 0) -> c.Command:
    """Returns the write of two of the eight bytes of a split copy."""
    write = c.Write(
        buffer=buffer, offset=2 * index, data=bytes((split, split)), split=c.SplitCopy(number=split, size=8)
    )
    return c.Command(stream=stream, write=write)


def dropped(stream: Execute, cancel: c.Command) -> int:
    """Has a Cancel command executed that is in effect; returns the number of commands that it dropped."""
    stream.batch(cancel)
    while (response := stream.receive()).WhichOneof("kind") != "result":
        pass
    assert response.result.request == cancel.request
    return response.result.cancel.dropped


def test_pieces_of_a_copy_are_cancelled_together(raw: Raw) -> None:
    """Pieces that arrive after the cancellation's end are dropped as well; all of them count as one command."""
    buffer = raw.buffer(bytes(8))
    with raw.execute() as stream:
        cancel = c.Command(request=50, cancel=c.Cancel())
        raw.device.Cancel(request(raw, stream, cancel), timeout=TIMEOUT)
        for command in (piece(buffer, 0, 5), fill(buffer), piece(buffer, 1, 5)):
            assert reason(stream.ask(command)) is Reason.CANCELLED
        assert dropped(stream, cancel) == 2
        assert reason(stream.ask(piece(buffer, 2, 5))) is Reason.CANCELLED
        assert stream.ask(piece(buffer, 3, 6)).HasField("done")  # of another copy
        assert raw.read(buffer, 8) == bytes((0, 0, 0, 0, 0, 0, 6, 6))


def test_no_piece_of_a_copy_that_has_begun_is_cancelled(raw: Raw) -> None:
    buffer = raw.buffer(bytes(8))
    with raw.execute() as stream:
        assert stream.ask(piece(buffer, 0, 5)).HasField("done")
        read = c.Command(read=c.Read(buffer=buffer, size=4, split=c.SplitCopy(number=7, size=8)))
        assert stream.ask(read).read.data == b"\5\5\0\0"
        cancel = c.Command(request=50, cancel=c.Cancel())
        raw.device.Cancel(request(raw, stream, cancel), timeout=TIMEOUT)
        for index in (1, 2, 3):
            assert stream.ask(piece(buffer, index, 5)).HasField("done")
        assert stream.ask(read).read.data == b"\5\5\5\5"
        assert reason(stream.ask(piece(buffer, 0, 5))) is Reason.CANCELLED  # all pieces of number 5 have been executed
        assert reason(stream.ask(fill(buffer))) is Reason.CANCELLED
        assert dropped(stream, cancel) == 2
    assert raw.read(buffer, 8) == b"\5" * 8


def test_other_commands_are_refused(raw: Raw) -> None:
    buffer = raw.buffer(bytes(4))
    with raw.execute() as stream:
        for command in (c.Command(), fill(buffer), c.Command(cancel=c.Cancel())):
            refusal = refused(raw.device.Cancel, request(raw, stream, command), timeout=TIMEOUT)
            assert refusal.reason is Reason.INVALID_ARGUMENT
            assert refusal.fields == ("command.cancel", "command.request")
        stream.batch(c.Command(cancel=c.Cancel()))
        (failure,) = stream.failures()
        assert reasons.from_status(failure.status).reason is Reason.INVALID_ARGUMENT
