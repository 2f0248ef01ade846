"""Credentials of a client: their sources, and the credentials that it refuses to send."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from hearth.endpoint import target
from hearth.endpoint.credentials import Credentials, find, identity_path, opening
from hearth.errors import ArgumentError, AuthenticationError

PLAIN, LOOPBACK = target.resolve("gpu-box:7421"), target.resolve("127.0.0.1:7421")
TLS, UNIX = target.resolve("https://gpu-box"), target.resolve("unix:/run/hearth/hearth.sock")


def pem(directory: Path, name: str) -> Path:
    path = directory / name
    path.write_text(f"-----BEGIN CERTIFICATE-----\n{name}\n")
    return path


def test_targets_with_tls() -> None:
    assert (TLS.address, TLS.tls, TLS.loopback) == ("gpu-box:7421", True, False)
    assert target.resolve("https://[::1]:5/") == target.Target("[::1]:5", True, "the argument of connect()", True)
    assert target.resolve("HTTPS://localhost").loopback and not PLAIN.tls
    for wrong in ("https://", "https://a/b", "http://a:1", "https://a:b", "https://unix:/x"):
        with pytest.raises(ArgumentError, match="not an address") as error:
            target.resolve(wrong)
        assert repr(wrong) in str(error.value) and "https://host:7421" in error.value.fix


def test_the_order_of_tokens(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    environ = {"HEARTH_TOKEN": "from-variable", "HEARTH_TOKEN_FILE": str(file)}
    assert find(TLS, "argument", environ=environ).token == "argument"
    assert find(TLS, environ=environ).token == "from-variable"
    found = find(UNIX, environ={"HEARTH_TOKEN_FILE": str(file)})
    assert found.token == "from-file" and str(file) in found.shown
    assert find(TLS, environ={}).token == "" and find(TLS, environ={}).shown == "none"
    assert "from-file" not in repr(found) and "from-file" not in found.shown


@pytest.mark.parametrize("token", ["", " ", "two words", "line\nends", "snö", "tab\there", "\x00"])
def test_invalid_tokens_are_refused(token: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    for arguments in ({"token": token}, {"environ": {"HEARTH_TOKEN_FILE": str(file)}}):
        with pytest.raises(ArgumentError) as error:
            find(TLS, **arguments)  # type: ignore[arg-type]
        assert "hearthd token" in error.value.fix and (not token.strip() or token not in str(error.value))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    good = pem(tmp_path, "good.pem")
    for arguments, told in (
        ({"environ": {"HEARTH_TOKEN_FILE": "/nonexistent"}}, "HEARTH_TOKEN_FILE"),
        ({"environ": {"HEARTH_TOKEN_FILE": str(binary)}}, "not a text file"),
        ({"environ": {}, "ca": tmp_path / "missing"}, "the argument ca"),
        ({"environ": {"HEARTH_CA": str(binary)}}, "HEARTH_CA"),
        ({"environ": {}, "certificate": good}, "only the certificate"),
        ({"environ": {"HEARTH_KEY": str(good)}}, "only the key"),
    ):
        with pytest.raises(ArgumentError, match=told):
            find(TLS, **arguments)  # type: ignore[arg-type]


def test_a_token_in_clear_is_for_this_host(tmp_path: Path) -> None:
    for near in (LOOPBACK, UNIX, TLS, target.resolve("localhost"), target.resolve("[::1]")):
        assert find(near, "secret", environ={}).token == "secret"
    for given in ({"token": "secret"}, {"environ": {"HEARTH_TOKEN": "secret"}}):
        with pytest.raises(AuthenticationError, match="sent unencrypted") as error:
            find(PLAIN, **given)  # type: ignore[arg-type]
        assert "secret" not in str(error.value) and 'https://gpu-box:7421"' in error.value.fix
    assert find(PLAIN, "secret", insecure=True, environ={}).token == "secret"
    assert find(PLAIN, environ={}).token == ""


def test_certificates_belong_to_tls(tmp_path: Path) -> None:
    ca, certificate, key = (pem(tmp_path, name) for name in ("ca", "certificate", "key"))
    found = find(TLS, None, ca, certificate, key, environ={})
    assert (found.ca, found.certificate, found.key) == tuple(path.read_bytes() for path in (ca, certificate, key))
    assert str(certificate) in found.shown and "-----BEGIN" not in repr(Credentials(key=found.key))
    for plain in (PLAIN, LOOPBACK, UNIX):
        with pytest.raises(ArgumentError, match="only with TLS"):
            find(plain, ca=ca, environ={})
        # The environment's files apply only to connections that use TLS.
        assert find(plain, environ={"HEARTH_CA": str(ca)}).ca is None
    assert find(TLS, environ={"HEARTH_CA": str(ca)}).ca == ca.read_bytes()


def test_credentials_sent_when_a_session_opens(tmp_path: Path) -> None:
    assert opening(Credentials("t"), UNIX) == opening(Credentials("t"), TLS) == (("authorization", "Bearer t"),)
    assert opening(Credentials(), TLS) == opening(Credentials(), UNIX) == ()
    near = target.resolve(f"unix:{tmp_path}/h.sock")
    path = identity_path(f"{tmp_path}/h.sock")
    answers: list[bytes] = [b"tick", b"", b"et\n"]

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            for answer in answers:
                connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        assert opening(Credentials(), near) == (("hearth-ticket", "ticket"),)
        thread.join()
    assert opening(Credentials(), near) == (), "no listener: no credential is sent"


def test_silent_identity_socket_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(identity_path(f"{tmp_path}/h.sock"))
        listener.listen()
        nothing: Any = opening(Credentials(), target.resolve(f"unix:{tmp_path}/h.sock"), seconds=0.05)
    assert nothing == ()
