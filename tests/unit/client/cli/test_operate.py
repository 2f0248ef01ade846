"""`hearth drain --wait` and `hearth restart-device --wait` at a daemon that stops answering."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from hearth.cli import main
from hearth.endpoint.admin import AdminClient
from hearth.types import NodeInfo
from hearth_proto.v1 import node_pb2


def test_wait_for_the_last_session_ends_at_a_daemon_that_does_not_answer(
    stopped: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AdminClient, "drain", lambda admin: 1)
    assert main.main(["drain", stopped, "--wait", "0.1", "--timeout", "3600"]) == 1
    assert "did not answer" in capsys.readouterr().err


def test_wait_for_a_device_ends_at_a_daemon_that_does_not_answer(
    stopped: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    describe = AdminClient.describe
    answers = [NodeInfo.of(node_pb2.DescribeResponse())]  # before the restart
    monkeypatch.setattr(AdminClient, "describe", lambda admin: answers.pop() if answers else describe(admin))
    monkeypatch.setattr(AdminClient, "restart_device", Mock())
    assert main.main(["restart-device", "0", stopped, "--wait", "0.1", "--timeout", "3600"]) == 1
    assert "did not answer" in capsys.readouterr().err
