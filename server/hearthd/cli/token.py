"""`hearthd token`: creates a token of 256 random bits, and its entry for the configuration."""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Any

from hearthd.cli.failure import USAGE_ERROR, fail
from hearthd.cli.parser import add_command


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser = add_command(
        commands,
        run,
        "token",
        "create a token, and its hash for the configuration",
        "Creates a token, and its hash for the configuration. The token is shown only once, and is not stored.",
        examples=("hearthd token --name alice-laptop --expires 2027-06-30",),
    )
    parser.add_argument("--name", default="", help="name of the token in the audit log")
    parser.add_argument("--expires", metavar="DATE", help="the last day on which it is valid, YYYY-MM-DD")


def run(arguments: argparse.Namespace) -> int:
    """Prints the token, and its entry of `tokens`."""
    from pydantic import ValidationError

    from hearthd.cli.print_config import inline
    from hearthd.front.config.tenants import TokenSettings
    from hearthd.front.tenancy import tokens

    token = tokens.make()
    entry = {"hash": f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"}
    entry |= {"name": arguments.name} if arguments.name else {}
    entry |= {"expires": arguments.expires} if arguments.expires is not None else {}
    try:
        settings = TokenSettings.model_validate(entry)
    except ValidationError as error:
        fail(error.errors()[0]["msg"].removeprefix("Value error, "), USAGE_ERROR)
    if settings.credential().expires <= time.time():
        fail(
            f"--expires {arguments.expires} is in the past (in UTC), so no client could use the token; give the last "
            "day on which it is valid, today or later, or omit --expires for a token that does not expire",
            USAGE_ERROR,
        )
    print("# The token, for the client (HEARTH_TOKEN); it is shown only once and is not stored:")
    print(token)
    print("# Its entry in the `tokens` of a tenant, for the daemon's configuration:")
    print(inline(entry))
    return 0
