"""The token that cancels a compile."""

from __future__ import annotations

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.compiler.cancel_token import CancelToken


def test_token_calls_the_stop_function_only_in_its_context() -> None:
    token, stopped = CancelToken(), list[str]()
    with token.on_cancel(lambda: stopped.append("before")):
        token.check()
    with token.on_cancel(lambda: stopped.append("during")):
        token.cancel()
        assert stopped == ["during"]
    with token.on_cancel(lambda: stopped.append("after")):
        assert stopped == ["during", "after"], "work that starts after the cancellation is stopped immediately"
    with pytest.raises(Refusal) as caught:
        token.check()
    assert caught.value.reason is Reason.CANCELLED
    token.cancel()
    assert stopped == ["during", "after"]
