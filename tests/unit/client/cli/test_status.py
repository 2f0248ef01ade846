"""`hearth status --wait` at a daemon that does not answer. tests/daemon/cli/test_status.py covers those that do."""

from __future__ import annotations

import pytest

from hearth.cli import main


def test_wait_for_a_daemon_that_does_not_answer_ends(stopped: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["status", stopped, "--wait", "0.1", "--timeout", "3600"]) == 1
    assert "did not answer" in capsys.readouterr().err
