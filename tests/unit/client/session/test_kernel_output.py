"""Kernel output between its arrival and the thread that writes it."""

from __future__ import annotations

import sys
import threading

import pytest

from hearth.errors import HearthError
from hearth.session.kernel_output import KernelOutput
from hearth.session.protocol import Limits, Session
from hearth_proto.v1 import commands_pb2, device_pb2
from tests.support.client.replies import lone_reply


def test_output_is_written_once_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    output = KernelOutput()
    for text in ("a", "b\n", "c"):
        output.add(text)
    output.deliver()
    output.deliver()
    assert capsys.readouterr().out == "ab\nc"


def test_output_goes_to_the_callback(capsys: pytest.CaptureFixture[str]) -> None:
    output, texts = KernelOutput(), []
    output.callback = texts.append
    output.add("x")
    output.deliver()
    output.callback = None
    output.add("y")
    output.deliver()
    assert texts == ["x"] and capsys.readouterr().out == "y"


def test_failing_callback_is_warned_of_and_still_called_for_the_next_text() -> None:
    output, texts = KernelOutput(), []

    def callback(text: str) -> None:
        texts.append(text)
        if text == "bad":
            raise ValueError("broken")

    output.callback = callback
    output.add("bad")
    output.add("good")
    with pytest.warns(RuntimeWarning, match="broken"):
        output.deliver()
    assert texts == ["bad", "good"]


@pytest.mark.parametrize("stdout", [None, "closed"])
def test_missing_stdout_is_ignored(monkeypatch: pytest.MonkeyPatch, stdout: str | None) -> None:
    stream = None if stdout is None else open(__file__)  # noqa: PTH123, SIM115
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    output = KernelOutput()
    output.add("x")
    output.deliver()


def test_unawaited_output_is_bounded() -> None:
    output, texts = KernelOutput(max_characters=100), []
    output.callback = texts.append
    for index in range(50):
        output.add(f"{index:010d}")
    output.deliver()
    assert texts[0].startswith("[400 characters of output were discarded") and texts[0].endswith("0000000040")
    assert texts[1:] == [f"{index:010d}" for index in range(41, 50)]
    output.add("x" * 1000)
    output.deliver()
    assert texts[-1] == "x" * 1000, "one text is never cut: the daemon bounds it"


def test_many_threads_write_everything_once() -> None:
    output, texts = KernelOutput(), []
    output.callback = texts.append
    for index in range(2000):
        output.add(str(index))
    threads = [threading.Thread(target=output.deliver) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, texts)) == list(range(2000))


def test_output_event_reaches_the_handler_without_ending_the_session() -> None:
    session, texts = Session(Limits()), []
    session.receive(device_pb2.ExecuteResponse(attached=device_pb2.Attached(generation=1)))
    session.on_output = texts.append
    session.receive(device_pb2.ExecuteResponse(event=device_pb2.Event(output=device_pb2.Output(text="hello"))))
    assert texts == ["hello"] and session.error is None and session.fail_later is None


@pytest.mark.parametrize("fails", [False, True])
def test_waiting_thread_delivers_output_before_it_returns(fails: bool) -> None:
    output, texts = KernelOutput(), []
    output.callback = texts.append
    reply = lone_reply()
    reply.before_return = output.deliver
    output.add("text")
    if fails:
        reply.set_error(HearthError("no"))
        with pytest.raises(HearthError):
            reply.wait()
    else:
        reply.set_result(commands_pb2.Result())
        reply.wait()
    assert texts == ["text"]
