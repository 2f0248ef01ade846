"""Arguments of the commands that use a daemon: its address and the credentials, as of `hearth.connect`; ``--json``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.cli.format.complaint import invalid_argument

if TYPE_CHECKING:
    from hearth.blocking.node import Node
    from hearth.endpoint.admin import AdminClient
    from hearth.endpoint.credentials import Credentials
    from hearth.endpoint.target import Target

_LONGEST_S = 3600.0
_DEVICES = 4096


def add_arguments(
    parser: argparse.ArgumentParser, json_help: str = 'print one JSON document ("schema": 1; base units)'
) -> None:
    """Adds ``--json``, TARGET and the options of `connect`."""
    parser.add_argument("--json", action="store_true", help=json_help)
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help='"host:7421", "https://host:7421" or "unix:/run/hearth/hearth.sock"; default: HEARTH_TARGET, otherwise '
        "the default socket if it exists, otherwise 127.0.0.1:7421",
    )
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds only the options of `connect`, for commands that have other positional arguments."""
    options = parser.add_argument_group("connection")
    token = options.add_mutually_exclusive_group()
    token.add_argument(
        "--token", help="default: HEARTH_TOKEN; note that other users of this host can read command lines"
    )
    token.add_argument("--token-file", metavar="FILE", help="file that contains the token; default: HEARTH_TOKEN_FILE")
    options.add_argument(
        "--ca", metavar="FILE", help="PEM file: authority that issued the daemon's certificate; default: HEARTH_CA"
    )
    options.add_argument(
        "--certificate", metavar="FILE", help="PEM file: client certificate for mutual TLS; default: HEARTH_CERTIFICATE"
    )
    options.add_argument("--key", metavar="FILE", help="PEM file: key of the client certificate; default: HEARTH_KEY")
    options.add_argument("--insecure", action="store_true", help="allow sending a token to another host without TLS")
    options.add_argument(
        "--timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="maximum time to wait for an answer of the daemon (%(default)g)",
    )


def connect(arguments: argparse.Namespace, **options: Any) -> Node:
    """Opens a session on the daemon that the arguments name.

    `options` are further keywords of `hearth.connect`, whose errors are raised.
    """
    from hearth.blocking.node import connect as connect_to

    return connect_to(
        arguments.target,
        timeout=arguments.timeout,
        **_credentials(arguments),
        **options,
    )


def open_admin(arguments: argparse.Namespace) -> AdminClient:
    """Returns an `AdminClient` for calls to the target daemon without a session.

    Raises `ArgumentError`, or `AuthenticationError` for a token that would be sent unencrypted.
    """
    from hearth.endpoint import target as targets
    from hearth.endpoint.admin import AdminClient

    target = targets.resolve(arguments.target, "the command line")
    return AdminClient(target, find_credentials(arguments, target), arguments.timeout)


def find_credentials(arguments: argparse.Namespace, target: Target) -> Credentials:
    """Returns the credentials for `target`, from the arguments and the environment. Raises like `open_admin`."""
    from hearth.endpoint import credentials

    return credentials.find(target, **_credentials(arguments))


def target_text(target: Target) -> str:
    """Returns the target as a user writes it."""
    return f"{'https://' if target.tls else ''}{target.address}"


def _credentials(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the credentials of the command line, as keywords of `hearth.connect`."""
    return {
        "token": _token(arguments),
        "ca": arguments.ca,
        "certificate": arguments.certificate,
        "key": arguments.key,
        "insecure": arguments.insecure,
    }


def _token(arguments: argparse.Namespace) -> str | None:
    token: str | None = arguments.token
    if arguments.token_file is None:
        return token
    try:
        return Path(arguments.token_file).read_text()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise invalid_argument(
            f"the token file {arguments.token_file!r} cannot be read: {reason}",
            "use a readable file that contains only the token",
        ) from None


def seconds(text: str) -> float:
    """Parses an argument that is a time in seconds. Raises `ArgumentTypeError`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to {_LONGEST_S:g}")
    return value


def ordinal(text: str) -> int:
    """Parses an argument that is a device number. Raises `ArgumentTypeError`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) < _DEVICES):
        raise argparse.ArgumentTypeError(f"{text!r} is not a device number: 0, 1, ...")
    return int(text)
