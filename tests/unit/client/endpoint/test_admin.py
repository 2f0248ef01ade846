"""Calls without a session: the credentials that they send, the calls that are repeated, and daemons of another
version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from hearth import errors
from hearth.endpoint.admin import AdminClient
from hearth.endpoint.credentials import Credentials
from hearth.endpoint.target import resolve
from hearth_proto.v1 import node_pb2
from tests.support.client.fake_daemon import FakeDaemon


def open_admin(daemon: FakeDaemon, **options: Any) -> AdminClient:
    return AdminClient(resolve(daemon.target), Credentials(**options), 5.0)


@contextlib.contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, **methods: Any) -> Iterator[FakeDaemon]:
    """Runs a fake daemon whose built-in methods are replaced by the given functions of request and context."""
    for name, answer in methods.items():
        monkeypatch.setattr(FakeDaemon, name, staticmethod(answer))
    daemon = FakeDaemon()
    try:
        yield daemon
    finally:
        daemon.stop()


def test_no_session_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    with answering(monkeypatch, OpenSession=lambda request, context: opened.append(request)) as daemon:
        with open_admin(daemon) as admin:
            assert admin.describe().name == "fake" and admin.sessions()[0].client_name == "c"
        assert not opened


def test_every_call_shows_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def describe(request: Any, context: Any) -> node_pb2.DescribeResponse:
        seen.append(dict(context.invocation_metadata()).get("authorization"))
        return node_pb2.DescribeResponse()

    with answering(monkeypatch, Describe=describe) as daemon, open_admin(daemon, token="secret") as admin:
        admin.describe()
        admin.describe()
    assert seen == ["Bearer secret"] * 2


def test_a_daemon_that_is_too_old(daemon: FakeDaemon) -> None:
    """The daemon has no GetStatus."""
    with (
        open_admin(daemon) as admin,
        pytest.raises(errors.UnsupportedError, match="is hearthd 0, which does not support GetStatus"),
    ):
        admin.status()


def test_server_that_is_not_hearthd_is_reported() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with (
            AdminClient(resolve(f"127.0.0.1:{port}"), Credentials(), 5.0) as admin,
            pytest.raises(errors.UnsupportedError, match=r"does not speak hearth\.v1"),
        ):
            admin.status()
    finally:
        server.stop(None)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_invalid_status_document_is_reported(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with (
        answering(monkeypatch, GetStatus=lambda request, context: node_pb2.GetStatusResponse(json=text)) as daemon,
        open_admin(daemon) as admin,
        pytest.raises(errors.HearthError, match="did not return a status document"),
    ):
        admin.status()


def test_only_read_only_calls_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def breaking(name: str) -> Any:
        def answer(request: Any, context: Any) -> None:
            asked.append(name)
            context.abort(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")

        return answer

    methods = {name: breaking(name) for name in ("GetStatus", "RestartDevice")}
    with answering(monkeypatch, **methods) as daemon, open_admin(daemon) as admin:
        with pytest.raises(errors.ConnectError, match=r"no daemon answers .* connection reset by peer"):
            admin.status()
        with pytest.raises(errors.ConnectError):
            admin.restart_device(0)
    assert asked == ["GetStatus", "GetStatus", "RestartDevice"]


def test_closed_admin_sends_no_request(daemon: FakeDaemon) -> None:
    admin = open_admin(daemon)
    admin.describe()
    admin.close()
    with pytest.raises(errors.ClosedError):
        admin.describe()
    unused = open_admin(daemon)
    unused.close()
    with pytest.raises(errors.ClosedError):
        unused.describe()
