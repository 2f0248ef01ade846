"""Requests and commands over a lane whose answers a test holds back."""

from __future__ import annotations

from hearth.session.attachment import Attachment
from hearth.session.receiver_role import ReceiverRole
from hearth_proto.v1 import commands_pb2
from tests.support.client.fake_daemon import Response
from tests.support.client.lane_daemon import LaneDaemon


def held_request() -> commands_pb2.Command:
    """Returns a request whose answer the fake daemon holds back on demand."""
    return commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage())


def note(number: int) -> commands_pb2.Command:
    """Returns a one-way command that carries a number."""
    return commands_pb2.Command(create_stream=commands_pb2.CreateStream(), stream=number)


def notes(daemon: LaneDaemon) -> list[int]:
    """Returns the numbers of the `note` commands that the daemon has received."""
    return [command.stream for command in daemon.commands if command.WhichOneof("kind") == "create_stream"]


def role(work: Attachment) -> ReceiverRole:
    """Returns the receiver role of the attachment's lane."""
    assert work.channel is not None
    return work.channel.role


def answer(daemon: LaneDaemon, index: int = -1) -> None:
    """Sends the held-back answer to a `memory_usage` request."""
    with daemon.working:
        requests = [command for command in daemon.commands if command.WhichOneof("kind") == "memory_usage"]
        result = commands_pb2.Result(request=requests[index].request)
        result.done.SetInParent()
        daemon.say(Response(result=result))
