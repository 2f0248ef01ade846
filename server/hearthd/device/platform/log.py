"""Log of a device process, in the same format as the front's log."""

from __future__ import annotations

from typing import Any

import structlog

from hearthd.shared.device_spec import DeviceSpec


class ProcessLog:
    """Writes events of one device process; each line carries its device and generation."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._log = structlog.get_logger("hearthd.device").bind(device=spec.ordinal, generation=spec.generation)

    def info(self, event: str, **fields: Any) -> None:
        """Writes a line of level "info"; `fields` become its further keys."""
        self._log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Writes a line of level "warning"; `fields` become its further keys."""
        self._log.warning(event, **fields)
