"""Errors of sessions that could not be opened, and of calls without a session."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

import hearth
from hearth import errors
from hearth.endpoint.credentials import Credentials
from hearth.endpoint.diagnostics import explain
from hearth.endpoint.target import Target
from tests.support.timing import LATE


@pytest.fixture(autouse=True)
def _short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hearth.endpoint.diagnostics._PROBE_S", 0.2)


def explained(address: str) -> errors.HearthError:
    late = errors.TimeoutError("the daemon did not answer in time.", reason="DEADLINE_EXCEEDED")
    return explain(late, Target(address, True, "a test"), Credentials())


def test_daemon_that_accepts_connections_and_does_not_answer_is_not_absent(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stopped, socket.create_server(("127.0.0.1", 0)) as stopped_tcp:
        stopped.bind(str(tmp_path / "s"))
        stopped.listen()
        for address in (f"unix:{tmp_path / 's'}", f"127.0.0.1:{stopped_tcp.getsockname()[1]}"):
            error = explained(address)
            assert isinstance(error, errors.ConnectError), address
            assert "accepts connections, but did not answer" in error.message and address in error.message
            assert "may still take effect" in error.message
            assert "log" in error.fix and "serve" not in error.fix


def test_probes_end_soon_after_the_deadline_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hearth.endpoint.diagnostics._PROBE_S", 2 * LATE)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        began = time.monotonic()
        with pytest.raises(errors.ConnectError, match="accepts connections, but did not answer"):
            hearth.connect(f"127.0.0.1:{stopped.getsockname()[1]}", timeout=0.5)
        assert time.monotonic() - began < LATE


def test_address_without_a_listener_has_no_daemon(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for address in (f"unix:{tmp_path / 's'}", f"127.0.0.1:{port}"):
        error = explained(address)
        assert error.message.startswith("no daemon answers at") and "hearthd serve" in error.fix
