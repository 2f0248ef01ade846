"""Closing a session."""

from __future__ import annotations

from typing import NoReturn

import pytest

import hearth
from hearth.session.attachment import Attachment
from tests.support.client.fake_daemon import FakeDaemon
from tests.support.client.internals import connection_of
from tests.support.client.waits import wait_for


@pytest.mark.parametrize("interrupted", ["settle", "deliver"])
def test_ctrl_c_in_close_leaves_nothing_open(interrupted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device is detached, and the daemon is notified of the end of the session, wherever the interrupt occurs."""
    daemon = FakeDaemon(devices=2)
    node = hearth.connect(daemon.target)
    connections = [connection_of(node.device(ordinal)) for ordinal in (0, 1)]
    attachments = [connection.attachment() for connection in connections]

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    if interrupted == "settle":
        monkeypatch.setattr(Attachment, "settle", interrupt)
    else:
        for connection in connections:
            connection.kernel_output.call_later(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            node.close()
        assert node.closed and daemon.closed_tokens == ["t"]
        assert all(isinstance(attachment.session.error, hearth.ClosedError) for attachment in attachments)
        assert wait_for(lambda: not any(connection.attached for connection in connections))
        node.close()
        assert daemon.closed_tokens == ["t"]
    finally:
        daemon.stop()
