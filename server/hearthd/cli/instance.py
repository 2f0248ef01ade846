"""Instances: several daemons with one configuration on one machine (`hearthd serve --instance NAME`). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearthd.front.addresses import parse_address

if TYPE_CHECKING:
    from hearthd.front.config.loader import Config

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_HTTP = "-http"
"""Suffix of the name of the HTTP socket, which is in the directory of the gRPC socket (`Config.http_path`)."""


def overrides(config: Config, name: str, flags: Mapping[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """Returns the settings that give an instance free ports and its own sockets.

    Hosts remain as configured, and a listener that is off remains off.

    Args:
        config: The configuration without these settings.
        name: Name of the instance.
        flags: The flags of the command line, by path; a flag whose value is not None has precedence.

    Raises:
        ValueError: The name is invalid.
    """
    if _NAME.fullmatch(name) is None or name.endswith(_HTTP):
        raise ValueError(
            f"--instance {name!r} is not a valid name. Fix: use at most 32 lower-case letters, digits and "
            f'hyphens, without "{_HTTP}" at the end'
        )
    listen = config.listen
    settings: dict[tuple[str, ...], Any] = {("lanes", "path"): "auto"}
    for key in ("grpc", "http", "lanes"):
        value = getattr(listen, key)
        if value:
            settings["listen", key] = str(parse_address(value)._replace(port=0))
    if config.unix_path:
        path = Path(config.unix_path)
        settings["listen", "unix"] = str(path.with_name(f"{path.stem}.{name}{path.suffix}"))
        if listen.http_unix:
            settings["listen", "http_unix"] = "auto"
    peers = config.collectives.listen
    if peers and parse_address(peers).port:
        settings["collectives", "listen"] = str(parse_address(peers)._replace(port=0))
        settings["collectives", "advertise"] = ()  # contains the fixed port
    return {key: value for key, value in settings.items() if flags.get(key) is None}


def announcement(config: Config, name: str) -> str:
    """Returns the line that `hearthd serve` prints at the start of an instance: the target for its clients."""
    if config.unix_path:
        return f"hearthd instance {name}: HEARTH_TARGET=unix:{config.unix_path}"
    return f'hearthd instance {name}: its addresses are in the line "hearthd ready"'
