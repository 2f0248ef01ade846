"""TLS and client certificates, with authorities made for the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hearth
from tests.support.daemon.authority import Authority
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, hearthd, toml
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.tenants import tenant, tenants


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority that neither side trusts."""
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.fixture(scope="module")
def start(cache: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Starts daemons that run until the end of the module."""
    started: list[DaemonProcess] = []

    def begin(**config: object) -> DaemonProcess:
        started.append(DaemonProcess(cache, config, 1))
        return started[-1]

    yield begin
    left = []
    for process in started:
        process.stop()
        left += process.left_behind()
        process.remove()
    assert not left


@pytest.fixture(scope="module")
def secured(start: Callable[..., DaemonProcess], authority: Authority) -> tuple[DaemonProcess, str]:
    """A daemon with TLS, and a tenant's token."""
    certificate, key = authority.issue("localhost", "127.0.0.1")
    config, tokens = tenants("alice", tls={"certificate": str(certificate), "key": str(key)})
    return start(**config), tokens["alice"]


@pytest.fixture(scope="module")
def mutual(start: Callable[..., DaemonProcess], authority: Authority) -> DaemonProcess:
    """A daemon that requires client certificates."""
    certificate, key = authority.issue("localhost", "127.0.0.1")
    tls = {"certificate": str(certificate), "key": str(key)}
    tls |= {"client_ca": str(authority.pem), "require_client_certificate": True}
    config, _ = tenants(tenant("ci", certificates=["ci.example.org"]), tenant("lab", certificates=["lab.example.org"]),
                        tls=tls)  # fmt: skip
    return start(**config)


# ---- the daemon's certificate ----


def test_a_token_over_tls(secured: tuple[DaemonProcess, str], authority: Authority) -> None:
    daemon, token = secured
    with hearth.connect(f"https://{daemon.grpc}", token=token, ca=authority.pem) as node:
        assert node.tenant == "alice"
        saxpy_works(node.device(0))
        assert [session.session_id for session in node.sessions()] == [node.session_id]


def test_tls_settings_from_the_environment(
    secured: tuple[DaemonProcess, str], authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, token = secured
    file = tmp_path / "token"
    file.write_text(token + "\n")
    monkeypatch.setenv("HEARTH_TARGET", f"https://{daemon.grpc}")
    monkeypatch.setenv("HEARTH_CA", str(authority.pem))
    monkeypatch.setenv("HEARTH_TOKEN_FILE", str(file))
    with hearth.connect() as node:
        assert node.tenant == "alice"


def test_the_unix_socket_stays_plain(secured: tuple[DaemonProcess, str]) -> None:
    daemon, token = secured
    with daemon.connect(token=token) as node:
        assert node.tenant == "alice"


def test_another_authority_is_not_trusted(secured: tuple[DaemonProcess, str], stranger: Authority) -> None:
    daemon, token = secured
    with pytest.raises(hearth.AuthenticationError, match="not trusted") as error:
        hearth.connect(f"https://{daemon.grpc}", token=token, ca=stranger.pem)
    assert "HEARTH_CA" in error.value.fix and token not in str(error.value)


def test_tls_spoken_to_without(secured: tuple[DaemonProcess, str]) -> None:
    daemon, token = secured
    with pytest.raises(hearth.ConnectError, match="requires TLS") as error:
        hearth.connect(daemon.grpc, token=token)
    assert f"https://{daemon.grpc}" in error.value.fix


def test_tls_spoken_to_a_daemon_without(daemon: DaemonProcess, authority: Authority) -> None:
    with pytest.raises(hearth.ConnectError, match="does not speak TLS") as error:
        hearth.connect(f"https://{daemon.grpc}", ca=authority.pem)
    assert f'"{daemon.grpc}"' in error.value.fix


def test_a_certificate_for_another_name(start_daemon: StartDaemon, authority: Authority) -> None:
    certificate, key = authority.issue("gpu-box.example.org")
    config, tokens = tenants("alice", tls={"certificate": str(certificate), "key": str(key)})
    daemon = start_daemon(**config)
    with pytest.raises(hearth.HearthError) as error:
        hearth.connect(f"https://{daemon.grpc}", token=tokens["alice"], ca=authority.pem)
    assert isinstance(error.value, hearth.AuthenticationError), error.value


# ---- client certificates ----


@pytest.mark.parametrize("name", ["ci", "lab"])
def test_a_client_certificate_is_a_tenant(mutual: DaemonProcess, authority: Authority, name: str) -> None:
    certificate, key = authority.issue(f"{name}.example.org")
    with hearth.connect(f"https://{mutual.grpc}", ca=authority.pem, certificate=certificate, key=key) as node:
        assert node.tenant == name
        assert node.device(0).ones(3).get().sum() == 3
        assert {session.tenant for session in node.sessions()} == {name}


@pytest.mark.parametrize("kind", ["none", "stranger's", "expired"])
def test_clients_that_are_not_let_in(
    mutual: DaemonProcess, authority: Authority, stranger: Authority, kind: str
) -> None:
    shown: dict[str, Path] = {}
    if kind != "none":
        issuer = stranger if kind == "stranger's" else authority
        shown["certificate"], shown["key"] = issuer.issue("ci.example.org", expired=kind == "expired")
    with pytest.raises(hearth.AuthenticationError, match="requires a client certificate") as error:
        hearth.connect(f"https://{mutual.grpc}", ca=authority.pem, **shown)
    assert "HEARTH_CERTIFICATE" in error.value.fix
    assert (str(shown["certificate"]) if shown else "none") in str(error.value)


def test_certificate_of_no_tenant_is_refused(mutual: DaemonProcess, authority: Authority) -> None:
    certificate, key = authority.issue("stranger.example.org")
    with pytest.raises(hearth.AuthenticationError, match=r"stranger\.example\.org") as error:
        hearth.connect(f"https://{mutual.grpc}", ca=authority.pem, certificate=certificate, key=key)
    assert "certificates" in error.value.fix
    both, key = authority.issue("ci.example.org", "lab.example.org")
    with pytest.raises(hearth.AuthenticationError, match="several tenants"):
        hearth.connect(f"https://{mutual.grpc}", ca=authority.pem, certificate=both, key=key)


def test_a_certificate_does_not_help_a_wrong_token(mutual: DaemonProcess, authority: Authority) -> None:
    certificate, key = authority.issue("ci.example.org")
    with pytest.raises(hearth.AuthenticationError, match="token is unknown"):
        hearth.connect(
            f"https://{mutual.grpc}", token="hearth_wrong", ca=authority.pem, certificate=certificate, key=key
        )


# ---- refused starts of a daemon ----


def refused_start(folder: Path, **tls: object) -> str:
    path = folder / "hearth.toml"
    path.write_text(toml({"tls": tls}))
    arguments = ["--backend", BACKEND, "--grpc", "127.0.0.1:0", "--http", "", "--lanes", "", "--unix", ""]
    arguments += ["--log-level", "error"]
    done = hearthd("serve", "--config", str(path), *arguments)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done
    return done.stderr.strip().splitlines()[-1]


def test_files_that_cannot_be_used(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.issue("localhost")
    readable = tmp_path / "readable.key"
    readable.write_bytes(key.read_bytes())
    readable.chmod(0o644)
    old, old_key = authority.issue("localhost", expired=True)
    for tls, told in (
        ({"certificate": str(certificate), "key": str(readable)}, "every user may read"),
        ({"certificate": str(old), "key": str(old_key)}, "expired"),
        ({"certificate": str(certificate), "key": str(key), "client_ca": str(authority.pem)}, "belong together"),
    ):
        message = refused_start(tmp_path, **tls)
        assert message.startswith("hearthd: ") and told in message, message


# ---- targets that the client refuses before it connects ----


def test_a_token_does_not_travel_in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ("gpu-box.example.org:7421", "10.0.0.1"):
        with pytest.raises(hearth.AuthenticationError, match="sent unencrypted") as error:
            hearth.connect(target, token="hearth_secret")
        assert "https://" in error.value.fix and "hearth_secret" not in str(error.value)
    monkeypatch.setenv("HEARTH_TOKEN", "hearth_secret")
    with pytest.raises(hearth.AuthenticationError, match="HEARTH_TOKEN") as error:
        hearth.connect("gpu-box.example.org")
    assert "hearth_secret" not in str(error.value)
