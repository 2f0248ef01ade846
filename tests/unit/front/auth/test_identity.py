"""Failed authentications of a peer, tickets of a user, and the socket that issues tickets."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.addresses import identity_path
from hearthd.front.audit.recorder import Audit
from hearthd.front.auth.authenticator import Authenticator, AuthFailures, certificate_names, host_of
from hearthd.front.auth.unix_identity import IdentitySocket, IdentityTickets, user_of
from hearthd.front.config.front_limits import ConnectionSettings
from hearthd.front.connections.limits import ConnectionLimits
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.sockets import ListenError
from hearthd.front.tenancy.revocations import CertificateIdentity, Revocations
from hearthd.front.tenancy.tenants import Caller, Credential, Directory, Tenant, User, token_key
from tests.support.front.fixture import run


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_failures_of_a_peer_within_a_minute() -> None:
    failures = AuthFailures(3)
    assert [failures.add("a", second) for second in (0, 1, 59.9, 60, 61)] == [1, 2, 3, 1, 2]
    assert failures.add("b", 61) == 1


@given(st.lists(st.tuples(st.integers(0, 3000), st.floats(0, 10)), max_size=200))
def test_failures_are_bounded_in_number(peers: list[tuple[int, float]]) -> None:
    failures, now = AuthFailures(3), 0.0
    for peer, later in peers:
        now += later
        assert failures.add(str(peer), now) >= 1
    assert len(failures) <= 1024


def test_peers_are_identified_without_their_port() -> None:
    assert host_of("ipv4:10.0.0.1:5000") == host_of("ipv4:10.0.0.1:5001") == "ipv4:10.0.0.1"
    assert host_of("ipv6:%5B::1%5D:5") == "ipv6:%5B::1%5D"
    assert host_of("unix:") == host_of("unix:/a/path/of/its/own") == "unix:"
    assert host_of("http:10.0.0.1") == "http:10.0.0.1"


def test_names_of_a_certificate() -> None:
    both = {"x509_subject_alternative_name": [b"a", b"b"], "x509_common_name": [b"c"]}
    assert certificate_names(both) == ["a", "b"]
    assert certificate_names({"x509_common_name": [b"c"]}) == ["c"]
    assert certificate_names({"transport_security_type": [b"ssl"]}) == []


def test_tickets_are_valid_once_and_expire() -> None:
    clock = Clock()
    tickets = IdentityTickets(10, clock)
    user = User(7, frozenset({1}))
    first, second = tickets.issue(user), tickets.issue(user)
    assert first != second and tickets.redeem(first) == user and tickets.redeem(first) is None
    clock.now += 10
    assert tickets.redeem(second) is None
    assert all(tickets.redeem(wrong) is None for wrong in ("", "x", first[:-1], "\ud800"))


def test_flood_of_tickets_evicts_only_those_of_its_user() -> None:
    clock = Clock()
    tickets = IdentityTickets(10, clock)
    mine = tickets.issue(User(1))
    flood = [tickets.issue(User(2)) for _ in range(1000)]
    assert len(tickets) == 257 and tickets.redeem(flood[0]) is None
    assert tickets.redeem(flood[-1]) == User(2) and tickets.redeem(mine) == User(1)
    clock.now += 11
    tickets.issue(User(3))
    assert len(tickets) == 1, "expired tickets are forgotten"


class Lists(Revocations):
    """Revocation lists without a file."""

    def __init__(self) -> None:
        super().__init__("", "")
        self.all: set[CertificateIdentity] = set()

    def revokes(self, certificate: CertificateIdentity | None) -> bool:
        return certificate in self.all


def test_caller_is_identified_again_with_the_present_tenants_and_revocations() -> None:
    tenant, other = Tenant("a"), Tenant("b")
    credential = Credential(token_key("x"), "ci")
    observer: Any = None
    auth = Authenticator(Directory([tenant], {credential: tenant}, {"host": tenant}), SessionTable(), Audit(), observer)
    auth.certificates.revocations = lists = Lists()
    by_token = Caller(tenant, "token ci", proof=credential.key)
    certificate = CertificateIdentity(b"issuer", 1)
    by_certificate = Caller(tenant, "certificate host", proof=("host",), certificate=certificate)
    assert auth.reidentify(by_token) == by_token and auth.reidentify(by_certificate) == by_certificate
    lists.all.add(certificate)
    with pytest.raises(Refusal, match="certificate host was revoked") as revoked:
        auth.reidentify(by_certificate)
    assert revoked.value.reason == Reason.UNAUTHENTICATED
    auth.directory = Directory([other], {credential: other})
    assert auth.reidentify(by_token).tenant is other
    auth.directory = Directory([other])
    with pytest.raises(Refusal, match="token is unknown"):
        auth.reidentify(by_token)


def test_path_of_identity_socket() -> None:
    assert identity_path("/run/hearth/hearth.sock") == "/run/hearth/hearth-identity.sock"
    assert identity_path("/run/x") == "/run/x-identity"


def test_peer_credentials_are_read_from_the_kernel() -> None:
    left, right = socket.socketpair()
    with left, right:
        user = user_of(left)
    assert (user.uid, user.pid) == (os.getuid(), os.getpid()) and user.gids >= {os.getgid(), *os.getgroups()}


def left(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def test_the_socket_gives_a_ticket_and_hangs_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "h-identity.sock"
        tickets = IdentityTickets(10)
        limiter = ConnectionLimits(ConnectionSettings()).limiter("identity")
        first = IdentitySocket(str(path), tickets, limiter)
        await first.start()
        assert path.stat().st_mode & 0o777 == 0o666
        reader, writer = await asyncio.open_unix_connection(path)
        ticket = (await reader.read()).decode()
        writer.close()
        user = tickets.redeem(ticket.strip())
        assert user is not None and user.uid == os.getuid()
        with pytest.raises(ListenError, match="already serves"):
            await IdentitySocket(str(path), tickets, limiter).start()
        await first.stop()
        assert not left(tmp_path)
        # The files of a killed daemon are replaced.
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        second = IdentitySocket(str(path), tickets, limiter)
        await second.start()
        await second.stop()
        assert not left(tmp_path)
        with pytest.raises(ListenError, match="107"):
            await IdentitySocket(f"/tmp/{'x' * 110}", tickets, limiter).start()

    run(scenario())
