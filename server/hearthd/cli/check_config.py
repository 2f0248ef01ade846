"""`hearthd check-config`: checks if the daemon would start, and warns about settings that may be unintended."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hearthd.cli import flags
from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail
from hearthd.cli.parser import add_command, add_json


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser = add_command(
        commands,
        "check-config",
        "check whether the daemon would start",
        "Checks whether the daemon would start. Reads the file, the environment and the options, and warns about "
        "settings that may be unintended.",
        statuses={1: "there are warnings, with --strict", 2: "usage error, or the daemon would not start"},
        examples=("hearthd check-config hearth.toml", "hearthd check-config --strict --json"),
    )
    flags.add_file(parser)
    add_json(parser)
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if there are warnings")
    flags.add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the error or the warnings, and returns the exit status."""
    from hearthd.cli.config_lint import advise
    from hearthd.front.config.loader import ConfigError, config_path, load, tenants
    from hearthd.shared import log

    path = flags.file(arguments)
    log.configure("error", "console")
    error, advice = "", []
    try:
        config, _ = load(path, flags=flags.settings(arguments))
        tenants(config)
        advice = advise(config, config_path(path))
    except ConfigError as config_error:
        error = str(config_error)
    if arguments.json:
        warnings = [{"setting": item.setting, "warning": item.text} for item in advice]
        print(json.dumps({"ok": not error, "error": error or None, "warnings": warnings}, indent=2))
    for item in () if arguments.json else advice:
        print(f"warning: {item}")
    if error:
        if arguments.json:
            return USAGE_ERROR
        fail(error, USAGE_ERROR)
    if not arguments.json:
        print("ok" + (f", {len(advice)} warning{'s' * (len(advice) > 1)}" if advice else ""))
    return RUNTIME_ERROR if arguments.strict and advice else 0
