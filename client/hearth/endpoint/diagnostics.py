"""Why a session could not be opened, in words that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from typing import TYPE_CHECKING

from hearth.endpoint.target import is_socket
from hearth.errors import AuthenticationError, ConnectError, HearthError, TimeoutError

if TYPE_CHECKING:
    from hearth.endpoint.credentials import Credentials
    from hearth.endpoint.target import Target

_PROBE_S = 2.0
_AGAIN_S = 0.1
"""Seconds between probes of a daemon that is not there: it may be starting."""

_NAME = "Hostname Verification Check failed"
_DISTRUST = ("CERTIFICATE_VERIFY_FAILED", _NAME)
"""gRPC's texts for a daemon's certificate that was not accepted."""

_KNOWN = ("Connection refused", "Connection reset by peer", "Domain name not found", "No route to host")
"""Causes in gRPC's texts that need no more words."""

PLAIN = "plain"
TLS = "tls"
WANTS_CERTIFICATE = "wants certificate"


def explain(error: HearthError, target: Target, credentials: Credentials) -> HearthError:
    """The error to raise in the place of what opening a session raised."""
    if isinstance(error, AuthenticationError):
        return type(error)(
            f"{error.message} (At {target.address}, from {target.origin}; shown: {credentials.shown}.)",
            reason=error.reason,
            fix=error.fix,
            details=error.details,
            retry_after=error.retry_after,
        )
    return _unreached(error, target, credentials) if isinstance(error, ConnectError | TimeoutError) else error


def _unreached(error: HearthError, target: Target, credentials: Credentials) -> HearthError:
    where = f"{'https://' if target.tls else ''}{target.address} (from {target.origin})"
    if target.tls and any(text in error.message for text in _DISTRUST):
        return AuthenticationError(
            f"the certificate of the daemon at {where} is not trusted: {_verification(error.message)}.",
            reason="UNAUTHENTICATED",
            fix="pass ca= (or HEARTH_CA) with the authority that issued it, and connect by a name that stands in it.",
        )
    if target.address[:5] == "unix:":
        return _no_socket(target, where) or _nobody(where, error)
    return _misunderstood(target, where, credentials) or _nobody(where, error)


def _misunderstood(target: Target, where: str, credentials: Credentials) -> HearthError | None:
    """Returns the error for a peer that speaks another protocol than the client tried."""
    spoken = _probe(target)
    if spoken == PLAIN and _speaks_http(target):
        return ConnectError(
            f"what listens at {where} speaks HTTP/1, not gRPC: the daemon's page, or another server.",
            reason="DEVICE_UNAVAILABLE",
            fix="name the port of gRPC, 7421 by default; 7422 is the page's.",
        )
    if target.tls and spoken == WANTS_CERTIFICATE:
        return AuthenticationError(
            f"the daemon at {where} asks for a client's certificate and did not accept what was shown: "
            f"{credentials.shown}.",
            reason="UNAUTHENTICATED",
            fix="pass certificate= and key= (or HEARTH_CERTIFICATE and HEARTH_KEY), issued by its client_ca.",
        )
    if target.tls and spoken == PLAIN:
        return ConnectError(
            f"the daemon at {where} does not speak TLS.",
            reason="DEVICE_UNAVAILABLE",
            fix=f'write "{target.address}" without https://, or configure [tls] there.',
        )
    if not target.tls and spoken in (TLS, WANTS_CERTIFICATE):
        return ConnectError(
            f"the daemon at {where} speaks TLS, and was reached without.",
            reason="DEVICE_UNAVAILABLE",
            fix=f'write "https://{target.address}".',
        )
    return None


def _nobody(where: str, error: HearthError, why: str = "", fix: str = "") -> ConnectError:
    return ConnectError(
        f"no daemon answers at {where}: {why or _short(error.message)}",
        reason="DEVICE_UNAVAILABLE",
        fix=fix or "start one with `hearthd serve`, or say where it is: hearth.connect('host:7421') or HEARTH_TARGET.",
        retry_after=error.retry_after or _AGAIN_S,
    )


def _short(text: str) -> str:
    """Returns the cause alone, where gRPC's text has a well-known one."""
    return next((f"{known.lower()}." for known in _KNOWN if known in text), text)


def _no_socket(target: Target, where: str) -> ConnectError | None:
    """Explains a Unix socket that refuses connections; returns None where it accepts one."""
    path = target.address.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except PermissionError:
            return ConnectError(
                f"the socket at {where} may not be used by user {os.geteuid()}: permission denied{_owner(path)}.",
                reason="DEVICE_UNAVAILABLE",
                fix="use the daemon's TCP address, run this as the daemon's user, or have its [[tenants]] name "
                "users, which opens the socket to them.",
            )
        except OSError as error:
            if error.errno == errno.ENOENT:
                return _nobody(where, HearthError(""), "there is no such socket.")
            if error.errno == errno.ECONNREFUSED:
                why = "its daemon has ended." if is_socket(path) else "this is no socket."
                return _nobody(where, HearthError(""), why)
    return None


def _owner(path: str) -> str:
    """Describes the owner of a Unix socket, as far as permissions show it."""
    try:
        found = os.stat(path)  # noqa: PTH116 - see `hearth.endpoint.target.is_socket`
    except OSError:
        return " by a folder on the way"
    import grp
    import pwd

    user, group = str(found.st_uid), str(found.st_gid)
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(found.st_uid).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(found.st_gid).gr_name
    return f"; it is {user}:{group}'s with mode {stat.S_IMODE(found.st_mode):04o}"


def _speaks_http(target: Target) -> bool:
    host, _, port = target.address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_S) as connection:
            connection.settimeout(_PROBE_S)
            connection.sendall(b"HEAD /healthz HTTP/1.0\r\n\r\n")
            return connection.recv(5, socket.MSG_WAITALL) == b"HTTP/"
    except (TimeoutError, OSError):
        return False


def _verification(text: str) -> str:
    """The reason in gRPC's text."""
    if _NAME in text:
        return "it is for another name"
    _, found, rest = text.partition("CERTIFICATE_VERIFY_FAILED")
    reason = rest.lstrip(": ").partition("]")[0].partition(";")[0].strip(" .)").removesuffix(": OK")
    return reason[:120] if found and reason else "its verification failed"


def _probe(target: Target) -> str:
    """Detects the protocol at an address after a failed connection; empty if no peer answers."""
    host, _, port = target.address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, and nothing believed
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_S) as plain:
            plain.settimeout(_PROBE_S)
            with context.wrap_socket(plain, server_hostname=host.strip("[]")) as secured:
                # A daemon greets at once (HTTP/2's settings); one that misses a certificate hangs up, with or without
                # an alert.
                return TLS if secured.recv(1) else WANTS_CERTIFICATE
    except ssl.SSLError as error:
        if "CERTIFICATE_REQUIRED" in (error.reason or "") or "ALERT" in (error.reason or ""):
            return WANTS_CERTIFICATE
        return PLAIN
    except (TimeoutError, OSError):
        return ""
