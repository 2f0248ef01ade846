"""Arguments of every command that select the daemon and the credentials, like those of `hearth.connect`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.errors import ArgumentError

if TYPE_CHECKING:
    from hearth.blocking.node import Node
    from hearth.endpoint.admin import Asker
    from hearth.endpoint.target import Target

_LONGEST_S = 3600.0
_DEVICES = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds TARGET and the options of `connect`."""
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help='"host:7421", "https://host:7421", "unix:/run/hearth/hearth.sock"; else HEARTH_TARGET, else the usual '
        "socket, else 127.0.0.1:7421",
    )
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds only the options of `connect`, for commands that have other positional arguments."""
    options = parser.add_argument_group("connection")
    token = options.add_mutually_exclusive_group()
    token.add_argument("--token", help="else HEARTH_TOKEN; others on this host can read a command line")
    token.add_argument("--token-file", metavar="FILE", help="the token stands in it; else HEARTH_TOKEN_FILE")
    options.add_argument("--ca", metavar="FILE", help="PEM: who issued the daemon's certificate; else HEARTH_CA")
    options.add_argument("--certificate", metavar="FILE", help="PEM, for mutual TLS; else HEARTH_CERTIFICATE")
    options.add_argument("--key", metavar="FILE", help="PEM; else HEARTH_KEY")
    options.add_argument("--insecure", action="store_true", help="send a token to another host without TLS")
    options.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="SECONDS", help="for the daemon to answer (%(default)g)"
    )


def connect(arguments: argparse.Namespace, **options: Any) -> Node:
    """Opens a session on the daemon that the arguments name. `options` are further keywords of `hearth.connect`, whose
    errors are raised."""
    from hearth.blocking.node import connect as connect_to

    return connect_to(
        arguments.target,
        timeout=arguments.timeout,
        token=_token(arguments),
        ca=arguments.ca,
        certificate=arguments.certificate,
        key=arguments.key,
        insecure=arguments.insecure,
        **options,
    )


def ask(arguments: argparse.Namespace, timeout: float | None = None) -> Asker:
    """Returns an `Asker` for calls to the target daemon without a session. `timeout`, in seconds per call, defaults to
    that of the arguments. Raises `ArgumentError`, or `AuthenticationError` for a token that would be sent
    unencrypted."""
    from hearth.endpoint import credentials
    from hearth.endpoint import target as targets
    from hearth.endpoint.admin import Asker

    found = targets.resolve(arguments.target, "the command line")
    shown = credentials.find(
        found, _token(arguments), arguments.ca, arguments.certificate, arguments.key, insecure=arguments.insecure
    )
    return Asker(found, shown, arguments.timeout if timeout is None else timeout)


def where(target: Target) -> str:
    """Returns the target as a user writes it."""
    return f"{'https://' if target.tls else ''}{target.address}"


def _token(arguments: argparse.Namespace) -> str | None:
    given: str | None = arguments.token
    if arguments.token_file is None:
        return given
    try:
        return Path(arguments.token_file).read_text()
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"the token file {arguments.token_file!r} cannot be read: "
            f"{getattr(error, 'strerror', None) or 'it is no text'}.",
            reason="INVALID_ARGUMENT",
            fix="put the token alone into a file that you may read.",
        ) from None


def seconds(text: str) -> float:
    """Parses an argument that is a time in seconds. Raises `ArgumentTypeError`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0 and up to {_LONGEST_S:g}")
    return value


def ordinal(text: str) -> int:
    """Parses an argument that is a device number. Raises `ArgumentTypeError`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) < _DEVICES):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of a device: 0, 1, ...")
    return int(text)
