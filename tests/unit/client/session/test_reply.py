"""Replies: the errors of waits that end early."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hearth.errors import HearthError, combined
from hearth.session.reply import Reply, wait_for_all


class InterruptedWaiters:
    """Waiters whose waits end with KeyboardInterrupt."""

    def wait_for(self, reply: Reply, timeout: float | None) -> bool:
        raise KeyboardInterrupt

    def expect(self) -> None:
        pass

    def listen(self, change: int) -> None:
        pass


def error(message: str) -> HearthError:
    return HearthError(message, reason="LAUNCH_FAILED")


def reporting(late: Callable[[HearthError], None], failure: HearthError | None = None) -> Reply:
    """Returns a reply to a synchronization: failed, or without an answer."""
    reply = Reply(InterruptedWaiters(), reports=True)
    reply.on_late_error = late
    if failure is not None:
        reply.set_error(failure)
    return reply


def test_ctrl_c_in_a_wait_for_several_replies_loses_no_error() -> None:
    late: list[str] = []
    failures = [error("the first failed"), error("the second failed")]
    replies = [reporting(lambda failure: late.append(failure.message), failure) for failure in [*failures, None]]
    replies[0].raise_failures = lambda failure: _raise(combined([error("an earlier copy failed"), failures[0]]))
    with pytest.raises(KeyboardInterrupt):
        wait_for_all(replies)
    assert sorted(late) == ["an earlier copy failed", "the second failed"], "each error once; the first combines two"
    replies[2].set_error(error("the third failed"))
    assert late[-1] == "the third failed"


@pytest.mark.parametrize("callback", ["before_return", "raise_failures"])
@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), RuntimeWarning("kernel output")])
def test_exception_of_a_callback_loses_no_error(callback: str, interruption: BaseException) -> None:
    late: list[HearthError] = []
    failure = error("a launch failed")
    reply = reporting(late.append, failure)
    setattr(reply, callback, lambda *_: _raise(interruption))
    with pytest.raises(type(interruption)):
        reply.wait()
    assert late == [failure]


def _raise(exception: BaseException) -> None:
    raise exception
