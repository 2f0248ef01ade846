"""Opening of a session: the request is sent before the imports, and the session of an abandoned answer is closed."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.endpoint import open_session
from hearth_proto.v1 import node_pb2


class Answer:
    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.cancelled = False

    def result(self) -> Any:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def cancel(self) -> None:
        self.cancelled = True


def test_an_answer_is_taken() -> None:
    answer = Answer(node_pb2.OpenSessionResponse(session_id="it"))
    assert open_session.wait_for_answer(answer, lambda: None).session_id == "it" and not answer.cancelled


def test_an_answer_that_an_interrupt_keeps_from_being_taken_is_cancelled() -> None:
    answer = Answer(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        open_session.wait_for_answer(answer, lambda: None)
    assert answer.cancelled


def test_an_import_that_fails_cancels_the_call() -> None:
    answer = Answer(node_pb2.OpenSessionResponse())

    def fail() -> None:
        raise ImportError("hearth.blocking.device")

    with pytest.raises(ImportError):
        open_session.wait_for_answer(answer, fail)
    assert answer.cancelled


@pytest.mark.parametrize(
    ("argv", "program"), [(["/some/where/train.py"], "train.py"), ([""], "python"), ([], "python"), (["-c"], "-c")]
)
def test_a_client_without_a_name_is_called_by_its_program(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], program: str
) -> None:
    monkeypatch.setattr("sys.argv", argv)
    host, _, rest = open_session.default_name().partition(":")
    assert host and rest.split(" ", 1)[1] == program
