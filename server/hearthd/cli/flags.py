"""Options for settings and for the configuration file, shared by several commands of `hearthd`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hearthd.cli.failure import USAGE_ERROR, fail

FLAGS: dict[str, tuple[tuple[str, ...], type, str]] = {
    "grpc": (("listen", "grpc"), str, 'address for gRPC, "host:port"; empty: none; default: 127.0.0.1:7421'),
    "http": (("listen", "http"), str, 'address for HTTP, "host:port"; empty: none; default: 127.0.0.1:7422'),
    "unix": (("listen", "unix"), str, "path of the Unix socket; empty: none; default: auto"),
    "lanes": (("listen", "lanes"), str, 'address for bulk data, "host:port"; empty: none; default: 127.0.0.1:7423'),
    "backend": (("devices", "backend"), str, "auto, cuda or cpu; default: auto"),
    "cpu_count": (("devices", "cpu_count"), int, "virtual devices of the CPU backend; default: 2"),
    "log_level": (("log", "level"), str, "debug, info, warning or error; default: info"),
    "log_format": (("log", "format"), str, "json, console or auto; default: auto"),
    "insecure": (("insecure",), bool, "serve other hosts without TLS and tenants; default: --secure"),
}
"""Settings that have a flag on the command line: path, type, help."""
_METAVARS = {"unix": "PATH", "backend": "NAME", "cpu_count": "N", "log_level": "LEVEL", "log_format": "FORMAT"}
"""Names of the flags' values in the help, except addresses."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds `FLAGS`. Their values override the file and the environment."""
    group = parser.add_argument_group("settings", "Each overrides the file and the environment (HEARTH_SECTION_NAME).")
    for name, (_, kind, text) in FLAGS.items():
        if kind is bool:
            group.add_argument("--insecure", dest=name, action="store_const", const=True, help=text)
            group.add_argument("--secure", dest=name, action="store_const", const=False, help="the opposite")
        else:
            option = f"--{name.replace('_', '-')}"
            group.add_argument(
                option, type=_integer if kind is int else kind, metavar=_METAVARS.get(name, "ADDRESS"), help=text
            )


def add_config(parser: argparse.ArgumentParser, text: str = "TOML file; default: HEARTH_CONFIG") -> None:
    """Adds the option for the configuration file."""
    parser.add_argument("--config", "-c", type=Path, metavar="FILE", help=text)


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds the configuration file as a positional argument and as an option; `file` returns its path."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the same as --config")
    add_config(parser)


def file(arguments: argparse.Namespace) -> Path | None:
    """Returns the configuration file, or None. Raises `SystemExit` if the two arguments name different files."""
    named: Path | None = arguments.file
    option: Path | None = arguments.config
    if named is not None and option is not None and named != option:
        fail(f"two files are named, {named} and {option}; name one", USAGE_ERROR)
    return named if named is not None else option


def settings(arguments: argparse.Namespace) -> dict[tuple[str, ...], Any]:
    """Returns the values of `FLAGS` by the path of the setting; None for a flag that is not given."""
    return {path: getattr(arguments, name) for name, (path, _, _) in FLAGS.items()}


def load(path: Path | None, flags: dict[tuple[str, ...], Any]) -> tuple[Any, dict[tuple[str, ...], str]]:
    """Returns the configuration, and the origin of each setting. Raises `SystemExit` if it cannot be used."""
    from hearthd.front.config.loader import ConfigError, load

    try:
        return load(path, flags=flags)
    except ConfigError as error:
        fail(str(error), USAGE_ERROR)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
