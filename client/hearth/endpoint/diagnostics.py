"""Diagnosis of a session that could not be opened: errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import ssl
import stat
import time
from typing import TYPE_CHECKING

from hearth.endpoint.target import is_socket
from hearth.errors import AuthenticationError, ConnectError, HearthError, TimeoutError

if TYPE_CHECKING:
    from hearth.endpoint.credentials import Credentials
    from hearth.endpoint.target import Target

_PROBE_S = 2.0
"""Seconds that a step of a probe (connecting, an answer) may take."""
_LAST_PROBE_S = 0.25
"""Seconds that it may take at least, also after the deadline of the call."""
_AGAIN_S = 0.1
"""Seconds between probes of an unreachable daemon, which may be starting."""

_NAME = "Hostname Verification Check failed"
_DISTRUST = ("CERTIFICATE_VERIFY_FAILED", _NAME)
"""Texts with which gRPC reports that the daemon's certificate was not accepted."""

_CLEAR_CAUSES = ("Connection refused", "Connection reset by peer", "Domain name not found", "No route to host")
"""Causes in gRPC's texts that need no further explanation."""

PLAIN = "plain"
TLS = "tls"
WANTS_CERTIFICATE = "wants certificate"


def explain(error: HearthError, target: Target, credentials: Credentials, deadline: float | None = None) -> HearthError:
    """Converts an error of opening a session into one that explains the cause.

    May probe the address, which blocks for up to a few seconds, and only briefly after the deadline.

    Args:
        error: The error.
        target: Address of the daemon.
        credentials: Credentials that were sent.
        deadline: Monotonic time until which the caller waits; None: no limit.

    Returns:
        The error to raise instead.
    """
    if isinstance(error, AuthenticationError):
        return type(error)(
            f"{error.message} (at {target.address}, from {target.origin}; credentials sent: {credentials.shown})",
            reason=error.reason,
            fix=error.fix,
            details=error.details,
            retry_after=error.retry_after,
        )
    if not isinstance(error, ConnectError | TimeoutError):
        return error
    return _unreached(error, target, credentials, math.inf if deadline is None else deadline)


def _unreached(error: HearthError, target: Target, credentials: Credentials, deadline: float) -> HearthError:
    address = f"{'https://' if target.tls else ''}{target.address} (from {target.origin})"
    if target.tls and any(text in error.message for text in _DISTRUST):
        return AuthenticationError(
            f"the certificate of the daemon at {address} is not trusted: {_verification(error.message)}.",
            fix="pass the authority that issued it as ca= (or HEARTH_CA), and connect by a name that the "
            "certificate contains.",
        )
    if target.unix_path:
        return _no_socket(target, address, deadline) or _unanswered(address, error)
    known = _wrong_protocol(target, address, credentials, deadline)
    return known or (_unanswered(address, error) if _accepts(target, deadline) else _not_listening(address, error))


def _wrong_protocol(target: Target, address: str, credentials: Credentials, deadline: float) -> HearthError | None:
    """Returns the error for a peer that uses another protocol than the client tried.

    Returns None if the peer uses the same protocol or does not answer.
    """
    protocol = _probe(target, deadline)
    if protocol == PLAIN and _speaks_http(target, deadline):
        return ConnectError(
            f"the server at {address} speaks HTTP/1, not gRPC: it is the daemon's status page, or another server.",
            fix="use the gRPC port, 7421 by default; 7422 is the default port of the status page.",
        )
    if target.tls and protocol == WANTS_CERTIFICATE:
        return AuthenticationError(
            f"the daemon at {address} requires a client certificate and did not accept the credentials sent: "
            f"{credentials.shown}.",
            fix="pass certificate= and key= (or set HEARTH_CERTIFICATE and HEARTH_KEY), issued by its client_ca.",
        )
    if target.tls and protocol == PLAIN:
        return ConnectError(
            f"the daemon at {address} does not speak TLS.",
            fix=f'use "{target.address}" without https://, or configure [tls] in the daemon.',
        )
    if not target.tls and protocol in (TLS, WANTS_CERTIFICATE):
        return ConnectError(
            f"the daemon at {address} requires TLS, and the client connected without TLS.",
            fix=f'use "https://{target.address}".',
        )
    return None


def _not_listening(address: str, error: HearthError, reason: str = "") -> ConnectError:
    return ConnectError(
        f"no daemon answers at {address}: {reason or _short(error.message)}",
        fix="start a daemon with `hearthd serve`, or specify its address: hearth.connect('host:7421') or "
        "HEARTH_TARGET.",
        retry_after=error.retry_after or _AGAIN_S,
    )


def _unanswered(address: str, error: HearthError) -> ConnectError:
    """Returns the error for a daemon whose socket accepts connections."""
    if not isinstance(error, TimeoutError):
        return _not_listening(address, error)
    return ConnectError(
        f"the daemon at {address} accepts connections, but did not answer in time; the request may still take effect.",
        fix="look for the cause in the daemon's log, or use a longer timeout.",
        retry_after=error.retry_after or _AGAIN_S,
    )


def _short(text: str) -> str:
    """Returns only the cause, if gRPC's text contains a well-known one; otherwise the whole text."""
    return next((f"{cause.lower()}." for cause in _CLEAR_CAUSES if cause in text), text)


def _no_socket(target: Target, address: str, deadline: float) -> ConnectError | None:
    """Returns the error that explains why a Unix socket refuses connections; None if it accepts one."""
    path = target.unix_path
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_seconds(deadline))
        try:
            probe.connect(path)
        except PermissionError:
            return ConnectError(
                f"user {os.geteuid()} may not use the socket at {address}: permission denied{_owner(path)}.",
                fix="use the daemon's TCP address, run this program as the daemon's user, or list users in the "
                "daemon's [[tenants]], which opens the socket to them.",
            )
        except OSError as error:
            if error.errno == errno.ENOENT:
                return _not_listening(address, HearthError(""), "the socket does not exist.")
            if error.errno == errno.ECONNREFUSED:
                reason = "its daemon has ended." if is_socket(path) else "the file is not a socket."
                return _not_listening(address, HearthError(""), reason)
    return None


def _owner(path: str) -> str:
    """Returns a description of the owner of a Unix socket, as far as permissions allow."""
    try:
        status = os.stat(path)  # noqa: PTH116 - see `hearth.endpoint.target.is_socket`
    except OSError:
        return " by a directory in the path"
    import grp
    import pwd

    user, group = str(status.st_uid), str(status.st_gid)
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(status.st_uid).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(status.st_gid).gr_name
    return f"; the owner is {user}:{group}, the mode {stat.S_IMODE(status.st_mode):04o}"


def _seconds(deadline: float) -> float:
    """Returns the timeout of each step of a probe that begins now."""
    return min(_PROBE_S, max(_LAST_PROBE_S, deadline - time.monotonic()))


def _connect(target: Target, deadline: float) -> socket.socket:
    """Opens a connection to a TCP address. Connecting, and each later call, blocks for at most `_seconds`."""
    return socket.create_connection((_host(target), int(target.address.rpartition(":")[2])), _seconds(deadline))


def _host(target: Target) -> str:
    return target.address.rpartition(":")[0].strip("[]")


def _accepts(target: Target, deadline: float) -> bool:
    try:
        _connect(target, deadline).close()
    except OSError:
        return False
    return True


def _speaks_http(target: Target, deadline: float) -> bool:
    try:
        with _connect(target, deadline) as connection:
            connection.sendall(b"HEAD /healthz HTTP/1.0\r\n\r\n")
            return connection.recv(5, socket.MSG_WAITALL) == b"HTTP/"
    except (TimeoutError, OSError):
        return False


def _verification(text: str) -> str:
    """Extracts the reason from gRPC's text."""
    if _NAME in text:
        return "it is for another name"
    _, separator, remainder = text.partition("CERTIFICATE_VERIFY_FAILED")
    reason = remainder.lstrip(": ").partition("]")[0].partition(";")[0].strip(" .)").removesuffix(": OK")
    return reason[:120] if separator and reason else "its verification failed"


def _probe(target: Target, deadline: float) -> str:
    """Returns the protocol at an address after a failed connection; empty if no peer answers."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # safe, because nothing is sent and no answer is trusted
    context.set_alpn_protocols(["h2"])
    try:
        with (
            _connect(target, deadline) as connection,
            context.wrap_socket(connection, server_hostname=_host(target)) as secured,
        ):
            # A daemon sends its HTTP/2 settings immediately; a daemon that requires a client certificate closes the
            # connection, with or without an alert.
            return TLS if secured.recv(1) else WANTS_CERTIFICATE
    except ssl.SSLError as error:
        if "CERTIFICATE_REQUIRED" in (error.reason or "") or "ALERT" in (error.reason or ""):
            return WANTS_CERTIFICATE
        return PLAIN
    except (TimeoutError, OSError):
        return ""
