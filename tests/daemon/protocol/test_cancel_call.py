"""The Cancel command and the call that makes it take effect at once, message by message."""

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
        stream.batch(cancel)
        while (response := stream.receive()).WhichOneof("kind") != "result":
            pass
        assert (response.result.request, response.result.cancel.dropped) == (50, 2)
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


def test_what_is_not_a_cancel_command_is_refused(raw: Raw) -> None:
    buffer = raw.buffer(bytes(4))
    with raw.execute() as stream:
        for command in (c.Command(), fill(buffer), c.Command(cancel=c.Cancel())):
            refusal = refused(raw.device.Cancel, request(raw, stream, command), timeout=TIMEOUT)
            assert refusal.reason is Reason.INVALID_ARGUMENT
            assert refusal.fields == ("command.cancel", "command.request")
        stream.batch(c.Command(cancel=c.Cancel()))
        (failure,) = stream.failures()
        assert reasons.from_status(failure.status).reason is Reason.INVALID_ARGUMENT
