"""Credentials that are revoked, or that accompany another tenant's session; names that a tenant may not see."""

from __future__ import annotations

import datetime
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import node_pb2, node_pb2_grpc
from hearthd.front.tenancy import revocations
from hearthd.front.tenancy.revocations import RevocationError, Revocations
from tests.support.client.internals import session_of
from tests.support.daemon.harness import StartDaemon, wait_until
from tests.support.daemon.raw import Raw, refused
from tests.support.daemon.tenants import tenant, tenants

DAY = datetime.timedelta(days=1)


class ClientAuthority:
    """A client certificate authority, and its list of revoked certificates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.ca = folder, trustme.CA()
        self.pem, self.crl = folder / "ca.pem", folder / "ca.crl"
        self.ca.cert_pem.write_to_path(self.pem)
        self.revoke()

    def issue(self, *names: str) -> tuple[Path, Path]:
        issued = self.ca.issue_cert(*names)
        certificate, key = self.folder / f"{names[0]}.pem", self.folder / f"{names[0]}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        return certificate, key

    def revoke(self, *certificates: Path, key: trustme.CA | None = None, der: bool = False) -> None:
        """Writes a new revocation list."""
        now = datetime.datetime.now(datetime.UTC)
        issuer = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes()).subject
        builder = x509.CertificateRevocationListBuilder().issuer_name(issuer).last_update(now).next_update(now + DAY)
        for each in certificates:
            serial = x509.load_pem_x509_certificate(each.read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        signer = serialization.load_pem_private_key((key or self.ca).private_key_pem.bytes(), None)
        made = builder.sign(signer, hashes.SHA256())  # type: ignore[arg-type]
        form = serialization.Encoding.DER if der else serialization.Encoding.PEM
        beside = self.crl.with_suffix(".new")
        beside.write_bytes(made.public_bytes(form))
        beside.rename(self.crl)


@pytest.fixture
def authority(tmp_path: Path) -> ClientAuthority:
    return ClientAuthority(tmp_path / "authority")


def tls(authority: ClientAuthority, **more: str) -> dict[str, object]:
    certificate, key = authority.issue("localhost", "127.0.0.1")
    return {
        "certificate": str(certificate), "key": str(key), "client_ca": str(authority.pem),
        "require_client_certificate": True, **more,
    }  # fmt: skip


def test_a_certificate_that_is_revoked_ends_its_sessions(start_daemon: StartDaemon, authority: ClientAuthority) -> None:
    config, _ = tenants(
        tenant("a", certificates=["a.example"]), tenant("b", certificates=["b.example"]),
        tls=tls(authority, crl=str(authority.crl)),
    )  # fmt: skip
    daemon = start_daemon(**config)
    target = f"https://{daemon.grpc}"
    shown = {
        name: dict(zip(("certificate", "key"), authority.issue(f"{name}.example"), strict=True)) for name in ("a", "b")
    }
    with (
        hearth.connect(target, ca=authority.pem, **shown["a"]) as a,
        hearth.connect(target, ca=authority.pem, **shown["b"]) as b,
    ):
        for node in (a, b):
            np.testing.assert_array_equal(node.device(0).ones(3).get(), [1, 1, 1])
        authority.revoke(shown["a"]["certificate"])
        wait_until(lambda: len(daemon.status()["sessions"]) == 1, "the end of its session")
        with pytest.raises(hearth.HearthError):
            a.device(0).ones(3).get()
        with pytest.raises(hearth.AuthenticationError, match="was revoked"):
            hearth.connect(target, ca=authority.pem, **shown["a"])
        np.testing.assert_array_equal(b.device(0).ones(3).get(), [1, 1, 1])
        authority.revoke(key=trustme.CA())  # a list signed by another key revokes nothing
        wait_until(lambda: "crl_not_renewed" in daemon.log(), "the line of the log")
        with pytest.raises(hearth.AuthenticationError, match="was revoked"):
            hearth.connect(target, ca=authority.pem, **shown["a"])


def test_lists_that_can_and_cannot_be_used(authority: ClientAuthority, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, _ = authority.issue("a.example")
    known = revocations.identity(certificate.read_bytes())
    now = [0.0]
    lists = Revocations(str(authority.crl), str(authority.pem), clock=lambda: now[0])
    assert not lists.revokes(known) and not lists.revokes(None) and len(lists) == 0
    authority.revoke(certificate, der=True)
    lists.refresh()
    assert not lists.revokes(known), "the file is checked every two seconds"
    now[0] += 10
    lists.refresh()
    assert lists.revokes(known) and lists.changes == 1
    authority.crl.write_text("nothing")
    now[0] += 10
    lists.refresh()
    assert lists.revokes(known) and lists.changes == 1, "an unusable list does not end a revocation"
    with pytest.raises(RevocationError, match="not a list of revoked"):
        Revocations(str(authority.crl), str(authority.pem))
    authority.revoke(key=trustme.CA())
    with pytest.raises(RevocationError, match="not signed by any authority"):
        Revocations(str(authority.crl), str(authority.pem))
    authority.crl.unlink()
    with pytest.raises(RevocationError, match="cannot be read"):
        Revocations(str(authority.crl), str(authority.pem))


@pytest.mark.parametrize("bind", [False, True])
def test_session_token_with_a_token_of_another_tenant(start_daemon: StartDaemon, bind: bool) -> None:
    """A session token together with a bearer token of another tenant, or of the same tenant."""
    config, tokens = tenants("alice", "bob", sessions={"bind": bind})
    daemon = start_daemon(**config)
    with Raw(daemon.unix, tokens["alice"]) as raw:
        request = node_pb2.RenewSessionRequest(session_token=raw.token)
        own = (("authorization", f"Bearer {tokens['alice']}"),)
        raw.node.RenewSession(request, metadata=own)
        raw.node.RenewSession(request)  # with the session token only
        other = (("authorization", f"Bearer {tokens['bob']}"),)
        if bind:
            refusal = refused(raw.node.RenewSession, request, metadata=other)
            assert refusal.reason == Reason.UNAUTHENTICATED and "is bound" in refusal.message
        else:
            raw.node.RenewSession(request, metadata=other)
    with daemon.connect(token=tokens["alice"]) as node:
        assert node.device(0).ones(2).get().tolist() == [1, 1]


@pytest.mark.parametrize("bind", [False, True])
def test_session_token_with_another_certificate(
    start_daemon: StartDaemon, authority: ClientAuthority, bind: bool
) -> None:
    config, _ = tenants(
        tenant("a", certificates=["a.example"]), tenant("b", certificates=["b.example"]), tls=tls(authority),
        sessions={"bind": bind},
    )  # fmt: skip
    daemon = start_daemon(**config)
    (certificate, key), (other, other_key) = authority.issue("a.example"), authority.issue("b.example")
    root = authority.pem.read_bytes()
    thief = grpc.ssl_channel_credentials(root, other_key.read_bytes(), other.read_bytes())
    with hearth.connect(f"https://{daemon.grpc}", ca=authority.pem, certificate=certificate, key=key) as node:
        assert node.device(0).ones(2).get().tolist() == [1, 1]

        stolen = session_of(node).token
        with grpc.secure_channel(daemon.grpc, thief) as channel:
            stub = node_pb2_grpc.NodeServiceStub(channel)
            request = node_pb2.RenewSessionRequest(session_token=stolen)
            for metadata in ((), (("hearth-session", stolen),)):
                if bind:
                    refusal = refused(stub.RenewSession, request, metadata=metadata)
                    assert refusal.reason == Reason.UNAUTHENTICATED and "is bound" in refusal.message
                else:
                    stub.RenewSession(request, metadata=metadata)
        assert node.device(0).ones(2).get().tolist() == [1, 1]


def test_forbidden_names_are_reported_as_absent(start_daemon: StartDaemon) -> None:
    """An absent name and a forbidden one give the same answer: the same words, reason and details except for the
    name."""
    config, tokens = tenants(
        "owner", "other", tenant("blind", rights=["allocate", "read", "write", "publish"]),
        devices={"isolation": "shared"},
    )  # fmt: skip
    daemon = start_daemon(**config)
    with (
        daemon.connect(token=tokens["owner"]) as owner,
        daemon.connect(token=tokens["other"]) as other,
        daemon.connect(token=tokens["blind"]) as blind,
    ):
        owner.device(0).ones(2).publish("secret")
        owner.device(0).ones(2).publish("open", tenants=["*"])
        told = []
        for name in ("secret", "absent"):
            with pytest.raises(hearth.HearthError) as caught:
                other.device(0).attach(name, tenant="owner")
            error = caught.value
            told.append(str((error.reason, error.message, error.fix, error.details)).replace(name, "NAME"))
        assert told[0] == told[1]
        assert [each.name for each in other.device(0).published()] == ["open"]
        attached = other.device(0).attach("open", tenant="owner")
        assert [each.attached for each in other.device(0).published()] == [1]
        # A tenant that may not attach sees its own publications, and nothing about attachments of others.
        blind.device(0).ones(1).publish("mine")
        assert [each.name for each in blind.device(0).published()] == ["mine"]
        assert {each.name: each.attached for each in owner.device(0).published()} == {"secret": 0, "open": 1}
        del attached
