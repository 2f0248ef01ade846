"""Admission by tokens, by users of the Unix socket, and over HTTP; and isolation of tenants from each other."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import hearth
from hearth.endpoint.credentials import identity_path
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import node_pb2
from tests.support.daemon.harness import DaemonProcess, StartDaemon, hearthd, toml
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.raw import Raw, refused
from tests.support.daemon.tenants import new_token, tenant, tenants, token_hash
from tests.support.timing import steady

OLD, TODAY, WHOLE = new_token(), new_token(), new_token()


@pytest.fixture(scope="module")
def tokens() -> dict[str, str]:
    return {"old": OLD, "today": TODAY, "whole": WHOLE}


@pytest.fixture(scope="module")
def guarded(cache: Path, tokens: dict[str, str]) -> Iterator[DaemonProcess]:
    """A daemon with three tenants; one of them has several tokens, and is also identified by the user who runs the
    tests."""
    today = datetime.datetime.now(datetime.UTC).date()
    dated = [
        {"hash": token_hash(OLD), "name": "old", "expires": "2020-01-31"},
        {"hash": token_hash(TODAY), "name": "today", "expires": today.isoformat()},
        token_hash(WHOLE),
    ]
    config, more = tenants(
        tenant("alice", tokens=dated), "bob",
        tenant("local", users=[os.getuid()]), tenant("operator", rights=["admin"]),
        devices={"isolation": "shared"}, auth={"max_failures": 3, "failure_delay": "300ms"},
    )  # fmt: skip
    tokens.update(more)
    process = DaemonProcess(cache, config, 1)
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


def by_tcp(daemon: DaemonProcess, token: str | None) -> hearth.Node:
    return hearth.connect(daemon.grpc, token=token)


# ---- tokens ----


@pytest.mark.parametrize("which", ["today", "whole"])
def test_a_token_is_a_tenant(guarded: DaemonProcess, tokens: dict[str, str], which: str) -> None:
    for target in (guarded.grpc, guarded.unix):
        with hearth.connect(target, token=tokens[which]) as node:
            assert node.tenant == "alice" and node.isolation == "shared"
            assert [session.tenant for session in node.sessions()] == ["alice"]
    with by_tcp(guarded, tokens[which]) as node:
        saxpy_works(node.device(0))


def test_invalid_tokens_are_refused(guarded: DaemonProcess) -> None:
    """Wrong, expired, malformed and missing tokens; the error never shows the token."""
    wrong = new_token()
    for token, told in ((wrong, "token is unknown"), (OLD, "expired"), (None, "no credentials")):
        with pytest.raises(hearth.AuthenticationError, match=told) as error:
            by_tcp(guarded, token)
        assert error.value.reason == "UNAUTHENTICATED" and error.value.fix and guarded.grpc in str(error.value)
        assert wrong not in str(error.value) and OLD not in str(error.value)
    channel = grpc.insecure_channel(guarded.grpc)
    call = channel.unary_unary(
        "/hearth.v1.NodeService/OpenSession",
        request_serializer=node_pb2.OpenSessionRequest.SerializeToString,
        response_deserializer=node_pb2.OpenSessionResponse.FromString,
    )
    for shown, told in (
        ((("authorization", f"Basic {WHOLE}"),), "not a bearer token"),
        ((("authorization", WHOLE),), "not a bearer token"),
        ((("authorization", "Bearer "),), "not a bearer token"),
        ((("authorization", f"Bearer {WHOLE}x"),), "token is unknown"),
        ((("authorization", f"Bearer {token_hash(WHOLE)}"),), "token is unknown"),
        ((("authorization", f"Bearer {'x' * 4000}"),), "token is unknown"),
        ((("hearth-ticket", WHOLE),), "ticket is unknown"),
    ):
        refusal = refused(call, node_pb2.OpenSessionRequest(), metadata=shown)
        assert refusal.reason == Reason.UNAUTHENTICATED and told in refusal.message, refusal
        assert refusal.fix and WHOLE not in str(refusal)
    channel.close()


def test_repeated_failures_are_answered_with_a_delay(guarded: DaemonProcess) -> None:
    """A caller from the same address with a valid token is not delayed."""
    for _ in range(4):
        with pytest.raises(hearth.AuthenticationError):
            by_tcp(guarded, "hearth_wrong")
    begin = time.monotonic()
    with pytest.raises(hearth.AuthenticationError) as error:
        by_tcp(guarded, "hearth_wrong")
    assert time.monotonic() - begin >= 0.3 and error.value.retry_after == 0.3

    def comes() -> float:
        begin = time.monotonic()
        by_tcp(guarded, WHOLE).close()
        return time.monotonic() - begin

    # on a busy machine some calls take that long in any case
    assert steady(comes, lambda seconds: seconds < 0.3, times=30) < 0.3


def test_a_session_cannot_open_another(guarded: DaemonProcess, tokens: dict[str, str]) -> None:
    """A session's token is valid only for its session."""
    with Raw(guarded.unix, tokens["bob"]) as raw:
        shown = (("hearth-session", raw.token),)
        refusal = refused(raw.node.OpenSession, node_pb2.OpenSessionRequest(), metadata=shown)
        assert refusal.reason == Reason.UNAUTHENTICATED
        assert raw.node.Describe(node_pb2.DescribeRequest(), metadata=shown).node
    channel = grpc.insecure_channel(guarded.unix)
    describe = channel.unary_unary(
        "/hearth.v1.NodeService/Describe",
        request_serializer=node_pb2.DescribeRequest.SerializeToString,
        response_deserializer=node_pb2.DescribeResponse.FromString,
    )
    ended = refused(describe, node_pb2.DescribeRequest(), metadata=shown)
    unknown = refused(describe, node_pb2.DescribeRequest(), metadata=(("hearth-session", "x" * 32),))
    assert ended.reason == Reason.SESSION_EXPIRED and str(ended) == str(unknown)
    channel.close()


def test_session_of_another_tenant_is_reported_as_absent(guarded: DaemonProcess, tokens: dict[str, str]) -> None:
    with Raw(guarded.unix, tokens["bob"]) as bob, Raw(guarded.unix, WHOLE) as alice:
        public = bob.opened.session_id
        answers = set()
        for token in (public, "0badc0de", bob.token[:-1], ""):
            alice_token, alice.token = alice.token, token
            answers.add(str(refused(alice.call, "MemoryUsage", c.MemoryUsage())))
            request = node_pb2.CloseSessionRequest(session_token=token)
            answers.add(str(refused(alice.node.CloseSession, request)))
            renewal = node_pb2.RenewSessionRequest(session_token=token)
            answers.add(str(refused(alice.node.RenewSession, renewal, metadata=alice.metadata)))
            alice.token = alice_token
        assert len(answers) == 1 and "SESSION_EXPIRED" in answers.pop()


def test_a_session_ends_with_its_credential(start_daemon: StartDaemon) -> None:
    for seconds in (4, 20, 60):  # longer times for machines on which a daemon starts slowly
        token = new_token()
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
        brief = {"hash": token_hash(token), "name": "ci", "expires": soon.isoformat()}
        daemon = start_daemon(**tenants(tenant("brief", tokens=[brief]))[0])
        try:
            node = daemon.connect(token=token)
            x = node.device(0).ones(3)
            assert x.get().sum() == 3
            break
        except (hearth.AuthenticationError, hearth.SessionExpiredError):
            assert datetime.datetime.now(datetime.UTC) >= soon
    while datetime.datetime.now(datetime.UTC) < soon:
        time.sleep(0.05)
    with pytest.raises(hearth.SessionExpiredError, match=r"credential \(token ci\) has expired.*a valid credential"):
        for _ in range(600):
            x.get()
            time.sleep(0.05)
    with pytest.raises(hearth.AuthenticationError, match="expired"):
        daemon.connect(token=token)
    node.close()


# ---- users of the Unix socket ----


def test_a_user_is_a_tenant(guarded: DaemonProcess) -> None:
    path = Path(guarded.unix.removeprefix("unix:"))
    beside = Path(identity_path(str(path)))
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode) == 0o666
    with guarded.connect() as node:
        assert node.tenant == "local"
        assert node.device(0).ones(3).get().sum() == 3
    with pytest.raises(hearth.AuthenticationError):  # users are identified on the Unix socket only
        by_tcp(guarded, None)


def ticket(daemon: DaemonProcess) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(identity_path(daemon.unix.removeprefix("unix:")))
        return connection.makefile().read().strip()


def test_ticket_is_valid_once(guarded: DaemonProcess) -> None:
    channel = grpc.insecure_channel(guarded.unix)
    call = channel.unary_unary(
        "/hearth.v1.NodeService/ListSessions",
        request_serializer=node_pb2.ListSessionsRequest.SerializeToString,
        response_deserializer=node_pb2.ListSessionsResponse.FromString,
    )
    shown = (("hearth-ticket", ticket(guarded)),)
    assert call(node_pb2.ListSessionsRequest(), metadata=shown) is not None
    assert refused(call, node_pb2.ListSessionsRequest(), metadata=shown).reason == Reason.UNAUTHENTICATED
    channel.close()


def test_idle_connections_to_identity_socket_block_no_user(guarded: DaemonProcess) -> None:
    path = identity_path(guarded.unix.removeprefix("unix:"))
    idle = [socket.socket(socket.AF_UNIX) for _ in range(50)]
    try:
        for connection in idle:
            connection.connect(path)
            with contextlib.suppress(BrokenPipeError):  # the daemon has answered, and closed the connection
                connection.send(b"\0" * 1000)
        assert ticket(guarded)
    finally:
        for connection in idle:
            connection.close()
    with guarded.connect() as node:
        assert node.tenant == "local"


def as_another_user(path: str, request: bytes) -> bytes:
    """Returns the answer that user 65534 gets on a Unix socket, until the other end closes."""
    Path(path).parent.chmod(0o755)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # in the child: only system calls, and a single exit
        try:
            os.chdir(Path(path).parent)  # the user may not be permitted to traverse its parent directories
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(Path(path).name)
                connection.sendall(request)
                while data := connection.recv(4096):
                    os.write(write, data)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        found = answer.read()
    os.waitpid(child, 0)
    return found


def page(path: str) -> bytes:
    """Returns the request for one page, after which the connection is closed."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_http_on_the_unix_socket_identifies_users(start_daemon: StartDaemon) -> None:
    named = tenant("mine", users=[os.getuid()]), tenant("other", users=[65534])
    daemon = start_daemon(**tenants(*named, listen={"http_unix": "auto"})[0])
    path = str(daemon.socket.with_name("hearth-http.sock"))
    with daemon.connect() as node:
        assert node.tenant == "mine"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(page("/status"))
            mine = b"".join(iter(lambda: connection.recv(4096), b""))
        theirs = as_another_user(path, page("/status"))
        for answer in (mine, theirs):
            assert answer.startswith(b"HTTP/1.1 200 ")
        assert node.session_id.encode() in mine and node.session_id.encode() not in theirs
        assert as_another_user(path, page("/metrics")).startswith(b"HTTP/1.1 200 ")
    daemon.stop()
    assert not Path(path).exists()


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_user_of_no_tenant_is_refused(guarded: DaemonProcess) -> None:
    channel = grpc.insecure_channel(guarded.unix)
    call = channel.unary_unary(
        "/hearth.v1.NodeService/OpenSession",
        request_serializer=node_pb2.OpenSessionRequest.SerializeToString,
        response_deserializer=node_pb2.OpenSessionResponse.FromString,
    )
    for _ in range(20):  # a ticket is valid for some seconds, which may be too short on a busy machine
        told = as_another_user(identity_path(guarded.unix.removeprefix("unix:")), b"")
        refusal = refused(call, node_pb2.OpenSessionRequest(), metadata=(("hearth-ticket", told.decode().strip()),))
        if "has expired" not in refusal.message:
            break
    assert refusal.reason == Reason.UNAUTHENTICATED and "65534" in refusal.message and "users" in refusal.fix
    channel.close()


def test_socket_is_its_owners_where_no_tenant_is_known_by_user(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(**tenants("alice")[0])
    path = Path(daemon.unix.removeprefix("unix:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not Path(identity_path(str(path))).exists()


def test_configured_user_missing_on_the_host(tmp_path: Path) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text(toml(tenants(tenant("a", users=["no-user-of-this-name"]))[0]))
    for command in ("check-config", "serve"):
        done = hearthd(command, "--config", str(path))
        assert done.returncode == 2 and "no-user-of-this-name" in done.stderr and "Traceback" not in done.stderr


# ---- visibility between tenants ----


def test_tenants_do_not_see_each_other(guarded: DaemonProcess, tokens: dict[str, str]) -> None:
    with guarded.connect(token=WHOLE) as alice, guarded.connect(token=tokens["bob"], name="secret plan") as bob:
        assert {session.session_id for session in alice.sessions()} == {alice.session_id}
        assert {session.session_id for session in bob.sessions()} == {bob.session_id}
        assert "secret plan" not in str(alice.sessions()) and "secret plan" not in str(alice.describe())
        bob.device(0).zeros(8)
        info = alice.describe().devices[0]
        assert info.properties.name and "bob" not in repr(info)
        with guarded.connect(token=tokens["operator"]) as operator:
            seen = {session.session_id: session.tenant for session in operator.sessions()}
            assert seen[bob.session_id] == "bob" and seen[alice.session_id] == "alice"


def test_pages_require_a_token(guarded: DaemonProcess, tokens: dict[str, str]) -> None:
    for path in ("/healthz", "/readyz"):
        assert guarded.get(path).status == 200
    assert "<noscript>" in guarded.get("/").body, "there is no data in it"
    for path in ("/metrics", "/status", "/traces/x.json", "/nothing"):
        page = guarded.get(path)
        assert page.status == 401 and "error" in page.body and "token" in page.body, (path, page)
        assert guarded.get(path, token="hearth_wrong").status == 401
    with guarded.connect(token=tokens["bob"], name="secret plan") as bob:
        bob.device(0).zeros(8)
        for path in ("/status", "/metrics"):
            mine, others = guarded.get(path, token=tokens["bob"]), guarded.get(path, token=WHOLE)
            operators = guarded.get(path, token=tokens["operator"])
            assert mine.status == others.status == operators.status == 200
            assert "bob" in mine.body and "bob" in operators.body and "bob" not in others.body
            assert "secret plan" not in others.body
    assert "hearth_authentication_failures_total" in guarded.get("/metrics", token=tokens["operator"]).body
    assert "hearth_authentication_failures" not in guarded.get("/metrics", token=WHOLE).body, "that is of all tenants"


# ---- the command line ----


def test_tokens_are_generated_and_stored_as_hashes(start_daemon: StartDaemon) -> None:
    done = hearthd("token", "--name", "ci", "--expires", "2099-12-31")
    _, token, _, entry = done.stdout.strip().splitlines()
    assert token.startswith("hearth_") and len(token) >= 43 and token not in entry
    assert token_hash(token) in entry and 'name = "ci"' in entry
    assert hearthd("token").stdout != hearthd("token").stdout
    wrong = hearthd("token", "--expires", "soon")
    assert wrong.returncode == 2 and "2027-06-30" in wrong.stderr and "Traceback" not in wrong.stderr


@pytest.mark.parametrize(("expires", "told"), [("2020-01-01", "is in the past"), ("", "is not a date")])
def test_expiry_in_the_past_and_empty_expiry_are_refused(expires: str, told: str) -> None:
    done = hearthd("token", "--expires", expires)
    assert done.returncode == 2 and not done.stdout and told in done.stderr, done.stderr


def test_token_that_expires_today_is_valid() -> None:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    assert hearthd("token", "--expires", today).returncode == 0


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"name": "a"}, "no caller can be tenant 'a'"),
        ({"name": "a b", "users": [1]}, "not a valid name"),
        ({"name": "a", "users": [1], "wieght": 2}, "the nearest is weight"),
        ({"name": "a", "users": [1], "quotas": {"device_byte": 2}}, "the nearest is device_bytes"),
        ({"name": "a", "users": [1], "rights": ["fly"]}, "'collective'"),
        ({"name": "a", "users": [1], "devices": [-1]}, "ordinals"),
        ({"name": "a", "users": [1], "weight": 0}, "greater than 0"),
        ({"name": "a", "tokens": ["hearth_plain"]}, "by its hash"),
        ({"name": "a", "tokens": [{"hash": token_hash("good enough"), "expires": "later"}]}, "not a date"),
        ({"name": "a", "certificates": ["x"]}, "tls.client_ca"),
        ({"name": "b", "users": [1]}, "given twice"),
        ({"name": "a", "tokens": [token_hash("b's token")]}, "'b' as well"),
    ],
)
def test_a_wrong_tenant_is_explained(tmp_path: Path, table: dict[str, object], told: str) -> None:
    from hearthd.front.config.loader import ConfigError, load

    path = tmp_path / "hearth.toml"
    path.write_text(toml({"tenants": [{"name": "b", "tokens": [token_hash("b's token")]}, table]}))
    with pytest.raises(ConfigError) as error:
        load(path, {})
    assert told in str(error.value) and "hearth_plain" not in str(error.value)


def test_addresses_that_others_reach_need_tls_and_tenants(tmp_path: Path) -> None:
    from hearthd.front.config.loader import ConfigError, load

    path = tmp_path / "hearth.toml"
    exposed = {"listen": {"grpc": "0.0.0.0:7421", "http": "0.0.0.0:7422"}}
    tls = {"tls": {"certificate": "/c.pem", "key": "/c.key"}}
    guarded = tenants("alice")[0]
    for config, told in (
        (exposed, "no TLS and no tenants"),
        ({**exposed, **tls}, "there is no tenants"),
        ({**exposed, **guarded}, "there is no TLS"),
    ):
        path.write_text(toml(config))
        with pytest.raises(ConfigError, match=told):
            load(path, {})
    for config in ({**exposed, **tls, **guarded}, {**exposed, "insecure": True}):
        path.write_text(toml(config))
        load(path, {})
    path.write_text(toml({**exposed, **tls, **guarded, "devices": {"backend": "cpu"}}))
    with pytest.raises(ConfigError, match="cpu_on_network"):
        load(path, {})
