"""Cancel commands, as the client queues them and puts them into effect."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.errors import UnsupportedError
from hearth.session.cancelling import Cancelling, all_work
from hearth.session.reply import Reply
from hearth_proto.v1 import commands_pb2
from tests.support.client.replies import lone_reply


class FakeExecute:
    def __init__(self) -> None:
        self.calls: list[commands_pb2.Command] = []
        self.error: Exception | None = None

    def put_into_effect(self, command: commands_pb2.Command) -> None:
        self.calls.append(command)
        if self.error is not None:
            raise self.error


class FakeAttachment:
    alive = True

    def __init__(self) -> None:
        self.queued: list[commands_pb2.Command] = []
        self.execute = FakeExecute()

    def ask_in_order(self, command: commands_pb2.Command) -> Reply:
        command.request = 7
        self.queued.append(command)
        return lone_reply()


def test_the_same_command_is_queued_and_put_into_effect() -> None:
    attachment: Any = FakeAttachment()
    cancelling = Cancelling(attachment, commands_pb2.Cancel(), stream=3)
    cancelling.put_into_effect()
    (command,) = attachment.queued
    assert attachment.execute.calls == [command]
    assert (command.request, command.stream, command.WhichOneof("kind")) == (7, 3, "cancel")
    cancelling.dropped.reply.set_result(commands_pb2.Result(cancel=commands_pb2.CancelResult(dropped=5)))
    assert cancelling.dropped.wait() == 5


def test_an_earlier_daemon_refuses_and_no_answer_is_awaited() -> None:
    attachment: Any = FakeAttachment()
    attachment.execute.error = UnsupportedError("no such method", reason="UNSUPPORTED")
    cancelling = Cancelling(attachment, commands_pb2.Cancel(all_streams=True))
    with pytest.raises(UnsupportedError):
        cancelling.put_into_effect()
    assert cancelling.dropped.reply.abandoned


def test_without_an_attachment_there_is_nothing_to_cancel() -> None:
    attachment: Any = FakeAttachment()
    attachment.alive = False
    assert all_work(None) is None and all_work(attachment) is None
    assert not attachment.queued
