"""`hearthd check-config`: checks the configuration, and warns about settings that may be unintended."""

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
        run,
        "check-config",
        "check the configuration of the daemon",
        "Checks whether the configuration is valid. Reads the file, the environment and the options, and warns about "
        "settings that may be unintended, or with which the daemon would not start on this host.",
        statuses={
            0: "the configuration is valid, although the daemon may not start on this host",
            1: "there are warnings, with --strict",
            2: "usage error, or the configuration is invalid",
        },
        examples=("hearthd check-config hearth.toml", "hearthd check-config --strict --json"),
    )
    flags.add_file(parser)
    add_json(parser)
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if there are warnings")
    flags.add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the error or the warnings, and returns the exit status."""
    from hearthd.cli.config_lint import LintAdvice, advise
    from hearthd.front.config.loader import ConfigError, config_path, load, tenants
    from hearthd.shared import log

    path = flags.file(arguments)
    log.configure("error", "console")
    error = ""
    advice: list[LintAdvice] = []
    try:
        config, _ = load(path, flags=flags.settings(arguments))
        tenants(config)
        advice = advise(config, config_path(path))
    except ConfigError as config_error:
        error = str(config_error)
    starts = not error and not any(item.blocks_start for item in advice)
    if arguments.json:
        warnings = [{"setting": item.setting, "warning": item.text} for item in advice]
        document = {"ok": not error, "starts_here": starts, "error": error or None, "warnings": warnings}
        print(json.dumps(document, indent=2))
        if error:
            return USAGE_ERROR
    else:
        for item in advice:
            print(f"warning: {item}")
        if error:
            fail(error, USAGE_ERROR)
        conclusion = "ok" if starts else "this host: would not start"
        print(conclusion + (f", {len(advice)} warning{'s' * (len(advice) > 1)}" if advice else ""))
    return RUNTIME_ERROR if arguments.strict and advice else 0
