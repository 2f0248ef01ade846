"""`hearthd serve`: runs the daemon."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hearthd.cli import flags
from hearthd.cli.failure import USAGE_ERROR, fail
from hearthd.cli.parser import add_command


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser = add_command(
        commands,
        run,
        "serve",
        "serve this node's devices",
        "Serves this node's devices until SIGTERM or Ctrl-C. Settings come from the file, the environment and the "
        "options below. SIGHUP reloads the file.",
        statuses={1: "the daemon could not start or has failed"},
        examples=(
            "hearthd serve",
            "hearthd serve --config /etc/hearth/hearth.toml",
            "hearthd serve --backend cpu --instance test",
        ),
    )
    flags.add_config(parser)
    parser.add_argument(
        "--instance",
        default="",
        metavar="NAME",
        help="name of a further daemon on this machine: free ports, and sockets with this name",
    )
    flags.add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serves, and returns the exit status. `arguments.hangup` is the state of SIGHUP since the start of the process."""
    path: Path | None = arguments.config
    flag_values = flags.settings(arguments)
    config, _ = flags.load(path, flag_values)
    if arguments.instance:
        config, flag_values = _as_instance(config, path, flag_values, arguments.instance)
    from hearthd.front.config.loader import load
    from hearthd.shared import log

    log.configure(config.log.level, config.log.format)
    from hearthd.front.daemon.main import serve

    return serve(config, read=lambda: load(path, flags=flag_values)[0], hangup=arguments.hangup)


def _as_instance(
    config: Any, path: Path | None, flag_values: dict[tuple[str, ...], Any], name: str
) -> tuple[Any, dict[tuple[str, ...], Any]]:
    """Returns the configuration and the flags with the ports and sockets of an instance, and prints its target."""
    from hearthd.cli import instance

    try:
        flag_values = {**flag_values, **instance.overrides(config, name, flag_values)}
    except ValueError as error:
        fail(str(error), USAGE_ERROR)
    config, _ = flags.load(path, flag_values)
    print(instance.announcement(config, name), flush=True)
    return config, flag_values
