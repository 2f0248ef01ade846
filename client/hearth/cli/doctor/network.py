"""Checks of the path to the daemon: name, port, protocol and certificate, or a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.cli.doctor.check import Check
from hearth.endpoint.credentials import Credentials
from hearth.endpoint.target import Target
from hearth_proto.calls import socket_path

if TYPE_CHECKING:
    import ssl

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""First bytes of an HTTP/2 client: the preface and empty settings."""
_SETTINGS = 4
_START = "start a daemon with `hearthd serve`, or specify its address: hearth doctor host:7421, or HEARTH_TARGET"
GRPC, HTTP, TLS = "gRPC", "HTTP/1", "TLS"


# ---- Unix ----


def unix_socket(path: str) -> list[Check]:
    """Checks that the socket exists, its owner, and that a process listens on it."""
    name = "socket"
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return [Check(name, "failed", f"{path} does not exist", _START)]
    except PermissionError:
        return [
            Check(
                name,
                "failed",
                f"you have no permission to access {str(Path(path).parent)!r}",
                _membership_advice(Path(path).parent),
            )
        ]
    except (OSError, ValueError) as error:
        return [Check(name, "failed", f"{path}: {getattr(error, 'strerror', None) or error}", _START)]
    if not stat.S_ISSOCK(status.st_mode):
        return [Check(name, "failed", f"{path} is not a socket", "specify the path of the daemon's hearth.sock")]
    user, group = _account(pwd.getpwuid, status.st_uid), _account(grp.getgrgid, status.st_gid)
    owner = f"owner {user}:{group}, mode {stat.S_IMODE(status.st_mode):04o}"
    failure = _connection_failure(path, owner)
    if failure is not None:
        return [failure]
    checks = [Check(name, "ok", f"{path}, {owner}")]
    call_socket = socket_path(path)
    if not Path(call_socket).exists():
        detail = (
            f"{Path(call_socket).name} does not exist in the same directory: calls go through gRPC, which takes "
            "longer to import"
        )
        checks.append(Check(name, "warning", detail, "mount the whole directory of the socket into the container"))
    return checks


def _connection_failure(path: str, owner: str) -> Check | None:
    """Connects to the socket. Returns the failed check, or None if a process listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            detail = f"{path} ({owner}) is stale: the daemon that created it has ended"
            return Check(
                "socket", "failed", detail, "start the daemon again: hearthd serve, or systemctl start hearthd"
            )
        except PermissionError:
            return Check(
                "socket", "failed", f"you have no permission to use {path} ({owner})", _membership_advice(Path(path))
            )
        except OSError as error:
            return Check("socket", "failed", f"{path} ({owner}): {error.strerror or error}", _START)
    return None


def _membership_advice(path: Path) -> str:
    try:
        group = _account(grp.getgrgid, path.stat().st_gid)
    except OSError:
        group = "hearth"
    user = _account(pwd.getpwuid, os.getuid())
    return f"request membership of the group {group!r} (usermod -aG {group} {user}), then log in again"


def _account(entry: Callable[[int], Sequence[Any]], number: int) -> str:
    """Returns the name of a user (`pwd.getpwuid`) or group (`grp.getgrgid`), or its number if it has none."""
    try:
        return str(entry(number)[0])
    except KeyError:
        return str(number)


# ---- TCP ----


def host_and_port(target: Target) -> tuple[str, int]:
    """Returns host and port of a TCP address; an IPv6 address without brackets."""
    host, _, port = target.address.rpartition(":")
    return host.strip("[]"), int(port)


def resolved(target: Target) -> Check:
    """Checks that the host name resolves."""
    host, port = host_and_port(target)
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        return Check(
            "name",
            "failed",
            f"{host!r} does not resolve: {reason}",
            "check the spelling, and the DNS settings of this host",
        )
    return Check("name", "ok", host if addresses == [host] else f"{host} resolves to {', '.join(addresses)}")


def reachable(target: Target, seconds: float) -> Check:
    """Checks that the port accepts connections within `seconds`."""
    host, port = host_and_port(target)
    started = time.perf_counter()
    try:
        socket.create_connection((host, port), seconds).close()
    except ConnectionRefusedError:
        return Check("port", "failed", f"no process listens at {target.address} (connection refused)", _START)
    except TimeoutError:
        detail = f"{target.address} did not answer within {seconds:g} s"
        return Check("port", "failed", detail, "a firewall may block the connection, or the host may be down: try ping")
    except OSError as error:
        hint = "check the network" if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH) else _START
        return Check("port", "failed", f"{target.address}: {error.strerror or error}", hint)
    return Check(
        "port", "ok", f"{target.address} accepts connections, after {1e3 * (time.perf_counter() - started):.1f} ms"
    )


def protocol(target: Target, seconds: float) -> Check:
    """Checks that the protocol at the port, gRPC or TLS, is the requested one."""
    actual = _protocol(target, seconds)
    name, port = "protocol", host_and_port(target)[1]
    if target.tls and actual == TLS:
        return Check(name, "ok", "TLS")
    if not target.tls and actual == GRPC:
        return Check(name, "ok", "HTTP/2 without TLS")
    if target.tls and actual == GRPC:
        return Check(name, "failed", "the daemon does not speak TLS", f"use {target.address}, without https://")
    if actual == TLS:
        return Check(name, "failed", "the daemon requires TLS", f"use https://{target.address}")
    if actual == HTTP:
        detail = f"the server at port {port} speaks plain HTTP, not gRPC: it may be the daemon's status page"
        return Check(name, "failed", detail, "use the port of [listen] grpc, 7421 by default")
    return Check(name, "failed", f"the server is not a Hearth daemon: {actual}", "check the host and the port")


def _protocol(target: Target, seconds: float) -> str:
    import ssl

    try:
        with socket.create_connection(host_and_port(target), seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(_PREFACE)
            answer = connection.recv(64)
    except TimeoutError:
        return "it accepts connections and does not answer"
    except OSError:
        answer = b""
    if answer.startswith(b"HTTP/1"):
        return HTTP
    if len(answer) >= 9 and answer[3] == _SETTINGS:
        return GRPC
    try:
        with _handshake(target, seconds, _unverified()):
            return TLS
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or "") or "CERTIFICATE" in (error.reason or ""):
            return TLS
    except OSError:
        pass
    return f"its answer begins with {answer[:16]!r}" if answer else "it closes connections immediately"


def certificate(target: Target, credentials: Credentials, files: tuple[str, str] | None, seconds: float) -> Check:
    """Checks that the daemon's certificate is trusted for this name, and how long it remains valid.

    `files`: the client's certificate and key.
    """
    import ssl

    context = ssl.create_default_context(cadata=credentials.ca.decode() if credentials.ca else None)
    context.set_alpn_protocols(["h2"])
    if files is not None:
        context.load_cert_chain(*files)
    try:
        with _handshake(target, seconds, context) as secured:
            return certificate_expiry(secured.getpeercert() or {}, time.time())
    except ssl.SSLCertVerificationError as error:
        names, expiry = _rejected_certificate(target, seconds)
        description = (
            f" (it is for {names or 'no name'}, valid until {expiry or 'an unknown time'})" if names or expiry else ""
        )
        detail = f"not accepted: {error.verify_message.rstrip('.')}{description}"
        return Check("certificate", "failed", detail, _remedy(error.verify_code, credentials))
    except ssl.SSLError as error:
        detail = f"the handshake failed: {error.reason or error}"
        fix = "the daemon may require a client certificate: pass --certificate and --key, issued by its client_ca"
        return Check("certificate", "failed", detail, fix)


_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
_SOON_S = 14 * 86400


def certificate_expiry(peer: Mapping[str, object], now: float) -> Check:
    """Returns a check of a trusted certificate: a warning if it expires within 14 days after `now`."""
    import ssl

    expiry = str(peer.get("notAfter", ""))
    seconds_left = ssl.cert_time_to_seconds(expiry) - now if expiry else _SOON_S
    detail = f"for {_names(peer) or 'no name'}, valid until {expiry or 'an unknown time'}"
    if seconds_left < _SOON_S:
        days = max(0, int(seconds_left // 86400))
        return Check(
            "certificate",
            "warning",
            f"{detail}: {days} days from now",
            "renew the daemon's certificate before it expires",
        )
    return Check("certificate", "ok", detail)


def _remedy(code: int, credentials: Credentials) -> str:
    if code == _EXPIRED:
        return "renew the daemon's certificate ([tls] certificate), and check this host's clock"
    if code == _NOT_YET:
        return "check this host's clock: the certificate is not valid yet"
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        return "connect by a name that the certificate contains"
    if credentials.ca is None:
        return "pass the authority that issued the certificate: --ca ca.pem, or HEARTH_CA"
    return "the authority given by --ca or HEARTH_CA did not issue the certificate: ask for the one that did"


def _rejected_certificate(target: Target, seconds: float) -> tuple[str, str]:
    """Returns the names and the expiry of a certificate that was not accepted, by treating it as its own authority."""
    import ssl

    try:
        with _handshake(target, seconds, _unverified()) as secured:
            der = secured.getpeercert(binary_form=True)
        context = ssl.create_default_context(cadata=der)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        with _handshake(target, seconds, context) as secured:
            peer = secured.getpeercert() or {}
    except (OSError, ValueError):
        return "", ""
    return _names(peer), str(peer.get("notAfter", ""))


def _names(peer: Mapping[str, object]) -> str:
    names = peer.get("subjectAltName", ())
    return ", ".join(str(name) for _, name in names) if isinstance(names, tuple) else ""


@contextlib.contextmanager
def _handshake(target: Target, seconds: float, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    """Yields a connection to the target after a TLS handshake, for which the server's name is the target's host."""
    host, port = host_and_port(target)
    with (
        socket.create_connection((host, port), seconds) as connection,
        context.wrap_socket(connection, server_hostname=host) as secured,
    ):
        yield secured


def _unverified() -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # no data is sent or trusted over this connection
    context.set_alpn_protocols(["h2"])
    return context
