"""`hearthd print-config`: prints the configuration that would be used, with the origin of each value."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hearthd.cli import flags
from hearthd.cli.parser import add_command, add_json

if TYPE_CHECKING:
    from hearthd.front.config.loader import Config

DEFAULT = "default"
Origins = Mapping[tuple[str, ...], str]


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser = add_command(
        commands,
        run,
        "print-config",
        "print each setting, its value and its origin",
        "Prints each setting, its value and its origin. Reads the file, the environment and the options, as `serve` "
        "does. The output is TOML that can be used as a configuration.",
        examples=("hearthd print-config hearth.toml", "HEARTH_SESSIONS_LEASE=10s hearthd print-config --json"),
    )
    flags.add_file(parser)
    add_json(parser)
    flags.add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the configuration. Raises `SystemExit` if it cannot be used."""
    config, origins = flags.load(flags.file(arguments), flags.settings(arguments))
    text = as_json(config, origins) if arguments.json else as_toml(config, origins)
    print(text, end="\n" if arguments.json else "")
    return 0


def as_toml(config: Config, origins: Origins) -> str:
    """Returns TOML that can be read again; the origin of each value is in a comment after it."""
    lines: list[str] = []
    section = ""
    tenants: list[dict[str, Any]] = []
    for path, value in sorted(_values(config), key=lambda setting: len(setting[0])):
        if path == ("tenants",):
            tenants = value
            continue
        if len(path) == 2 and path[0] != section:
            section = path[0]
            lines.append(f"\n[{section}]")
        resolved_path = resolved(config, path)
        note = f", which is {resolved_path}" if resolved_path else ""
        lines.append(f"{path[-1]} = {json.dumps(value)}  # {origins.get(path, DEFAULT)}{note}")
    for tenant in tenants:
        lines.append(f"\n[[tenants]]  # {origins['tenants',]}")
        lines += [f"{key} = {inline(value)}" for key, value in tenant.items()]
    return "\n".join(lines) + "\n"


def as_json(config: Config, origins: Origins) -> str:
    """Returns a JSON list with an object for each setting: setting, value, origin, path that "auto" means."""
    entries: list[dict[str, Any]] = []
    for path, value in _values(config):
        entry = {"setting": ".".join(path), "value": value, "origin": origins.get(path, DEFAULT)}
        resolved_path = resolved(config, path)
        entries.append({**entry, "resolved": resolved_path} if resolved_path else entry)
    return json.dumps(entries, indent=2)


def _values(config: Config) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the path and the value of each setting."""
    from hearthd.front.config.loader import settings

    values = config.model_dump(mode="json")
    for path in settings():
        yield path, values[path[0]] if len(path) == 1 else values[path[0]][path[1]]


def resolved(config: Config, path: tuple[str, ...]) -> str:
    """Returns the path that the value "auto" of a setting means; empty for other values."""
    paths: dict[tuple[str, ...], tuple[str, str]] = {
        ("listen", "unix"): (config.listen.unix, config.unix_path),
        ("cache", "dir"): (config.cache.dir, config.cache_dir),
        ("lanes", "path"): (config.lanes.path, config.lane_path),
        ("audit", "key"): (config.audit.key, config.audit.key_path),
        ("audit", "anchor"): (config.audit.anchor, config.audit.anchor_path if config.audit.path else ""),
    }
    value, resolved_path = paths.get(path, ("", ""))
    return resolved_path if value == "auto" else ""


def inline(value: Any) -> str:
    """Returns a value as TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)
