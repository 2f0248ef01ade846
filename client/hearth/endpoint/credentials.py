"""Client credentials, and the requirements on the daemon's certificate.

A token is sent over Unix sockets, loopback and TLS. It is sent over a plain connection to another host only on request,
because every host on the path could read and use it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from hearth.endpoint.target import is_socket
from hearth.errors import ArgumentError, AuthenticationError

if TYPE_CHECKING:
    from pathlib import Path

    import grpc

    from hearth.endpoint.target import Target

TOKEN = "HEARTH_TOKEN"
TOKEN_FILE = "HEARTH_TOKEN_FILE"
_VARIABLES = {"ca": "HEARTH_CA", "certificate": "HEARTH_CERTIFICATE", "key": "HEARTH_KEY"}
"""Environment variable of each PEM file, by the argument that it replaces."""

Metadata = tuple[tuple[str, str], ...]
TICKET_S = 5.0
"""Time limit in seconds for the daemon's ticket."""
_MAX_TICKET_BYTES = 4096


class Credentials(NamedTuple):
    """Credentials of a client, determined once, when `connect` is called."""

    token: str = ""
    ca: bytes | None = None
    """Authorities in PEM format; None: those that gRPC includes, or the file that GRPC_DEFAULT_SSL_ROOTS_FILE_PATH
    names."""
    certificate: bytes | None = None
    key: bytes | None = None
    shown: str = "none"
    """Description of the credentials, for error messages."""

    def __repr__(self) -> str:
        return f"Credentials({self.shown})"  # token and key must not appear in logs

    def channel(self) -> grpc.ChannelCredentials:
        """Returns gRPC credentials for a TLS connection."""
        import grpc

        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


def find(
    target: Target,
    token: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    *,
    insecure: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Credentials:
    """Determines the credentials from the arguments or, for those that are missing, from the environment.

    Args:
        target: Address of the daemon.
        token: Token of the caller; None: from the environment.
        ca: PEM file with the authority of the daemon's certificate; None: from the environment.
        certificate: PEM file with the caller's certificate; None: from the environment.
        key: PEM file with the key of `certificate`; None: from the environment.
        insecure: Allows a token to be sent to another host without TLS.
        environ: Environment variables; None: those of this process.

    Returns:
        The credentials.

    Raises:
        ArgumentError: A file cannot be read, or an argument cannot be used with the target.
        AuthenticationError: The token would be sent unencrypted to another host.
    """
    environ = os.environ if environ is None else environ
    arguments = {"ca": ca, "certificate": certificate, "key": key}
    tls_arguments = [name for name, value in arguments.items() if value]
    if tls_arguments and not target.tls:
        raise ArgumentError(
            f"{' and '.join(tls_arguments)} can be used only with TLS, and {target.address} is used without TLS.",
            fix=f'use TLS: "https://{target.address}".'
            if not target.unix_path
            else "omit them: a Unix socket needs no TLS.",
        )
    secret, origin = _token(token, environ)
    if secret and not (target.tls or target.loopback or insecure):
        raise AuthenticationError(
            f"a token (from {origin}) would be sent unencrypted to {target.address} (from {target.origin}).",
            fix=f'use TLS: "https://{target.address}"; or pass insecure=True on a network that you trust.',
        )
    if not target.tls:
        return Credentials(secret, shown=f"a token from {origin}" if secret else "none")
    paths = {name: path or environ.get(_VARIABLES[name]) for name, path in arguments.items()}
    pem = {
        name: _pem(path, f"the argument {name}" if arguments[name] else _VARIABLES[name])
        for name, path in paths.items()
    }
    if (pem["certificate"] is None) != (pem["key"] is None):
        present = "certificate" if pem["certificate"] is not None else "key"
        raise ArgumentError(
            f"a client certificate and its key must be given together; only the {present} is given.",
            fix="pass both certificate= and key=, or set HEARTH_CERTIFICATE and HEARTH_KEY.",
        )
    parts = [f"a token from {origin}"] if secret else []
    parts += [f"the certificate {paths['certificate']}"] if pem["certificate"] is not None else []
    return Credentials(secret, pem["ca"], pem["certificate"], pem["key"], shown=" and ".join(parts) or "none")


def bearer(credentials: Credentials) -> Metadata:
    """Returns the metadata of the call that opens a session: the token, if there is one."""
    return (("authorization", f"Bearer {credentials.token}"),) if credentials.token else ()


def opening(credentials: Credentials, target: Target, seconds: float = TICKET_S) -> Metadata:
    """Returns the metadata of a call without a session.

    Args:
        credentials: Credentials of the caller.
        target: Address of the daemon.
        seconds: Time in which the daemon must give a ticket.

    Returns:
        The token; without a token, a ticket if the connection over a Unix socket does not identify the client by
        itself.
    """
    if credentials.token:
        return bearer(credentials)
    if not target.unix_path:
        return ()
    ticket = _ticket(identity_path(target.unix_path), seconds)
    return (("hearth-ticket", ticket),) if ticket else ()


def of_session(session_token: str) -> Metadata:
    """Returns the metadata of a session's later calls."""
    return (("hearth-session", session_token),)


def identity_path(path: str) -> str:
    """Returns the path of the socket that identifies its clients: ``hearth-identity.sock`` next to ``hearth.sock``."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 - see `is_socket`
    return os.path.join(folder, f"{stem}-identity{suffix}")  # noqa: PTH118


def _ticket(path: str, seconds: float) -> str:
    """Returns a ticket that identifies this process's user; empty if the daemon gives none."""
    if not is_socket(path):
        return ""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(seconds)
            connection.connect(path)
            answer = b""
            while len(answer) < _MAX_TICKET_BYTES and (data := connection.recv(_MAX_TICKET_BYTES)):
                answer += data
    except OSError:
        return ""  # the daemon then reports the missing credentials
    return answer.decode("ascii", "replace").strip()


def _token(argument: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns the token and its source; empty if there is none."""
    if argument is not None:
        return _checked(argument, "the argument token"), "the argument token"
    if environ.get(TOKEN):
        return _checked(environ[TOKEN], TOKEN), TOKEN
    path = environ.get(TOKEN_FILE)
    if not path:
        return "", ""
    origin = f"the file {path} ({TOKEN_FILE})"
    try:
        text = _path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"{origin} cannot be read: {getattr(error, 'strerror', None) or 'it is not a text file'}.",
            fix="use a readable file that contains only the token.",
        ) from None
    return _checked(text, origin), origin


def _checked(token: str, origin: str) -> str:
    """Returns the token without surrounding white space, e.g. the newline of a file.

    The token itself never appears in an error.
    """
    token = token.strip()
    if not token or not token.isascii() or any(character.isspace() or ord(character) < 32 for character in token):
        problem = (
            "empty"
            if not token
            else "not a valid token: it contains spaces, line breaks or characters that are not ASCII"
        )
        raise ArgumentError(f"{origin} is {problem}.", fix="pass the token as printed by `hearthd token`.")
    return token


def _path(path: str | os.PathLike[str]) -> Path:
    from pathlib import Path  # imported here, because most clients read no file

    return Path(path)


def _pem(path: str | os.PathLike[str] | None, origin: str) -> bytes | None:
    if not path:
        return None
    try:
        data = _path(path).read_bytes()
    except OSError as error:
        raise ArgumentError(
            f"{path} (from {origin}) cannot be read: {error.strerror}.",
            fix="use a readable PEM file.",
        ) from None
    if b"-----BEGIN " not in data:
        raise ArgumentError(
            f"{path} (from {origin}) is not a PEM file.",
            fix='convert the file, e.g. with "openssl".',
        )
    return data
