"""A daemon whose configuration is changed while it runs.

>>> reloaded = daemon_of(cache, tenants=[...])
>>> reloaded.change(tenants=[...])["changed"]
'tenants'
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.support.daemon.harness import DaemonProcess, toml, wait_until

OUTCOMES = ("reloaded", "reload_refused", "reload_failed")


class Reloaded:
    """A daemon whose configuration is changed while it runs. `config` holds the current sections."""

    def __init__(self, cache: Path, cpu_count: int = 1, **config: Any) -> None:
        self._cache = cache
        self.config = config
        self.daemon = DaemonProcess(cache, config, cpu_count)

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Returns the log entries of these events."""
        return [entry for entry in self.daemon.log_entries() if entry["event"] in names]

    def hang_up(self) -> dict[str, Any]:
        """Makes the daemon reload its configuration by SIGHUP; returns the log entry of the outcome."""
        count_before = len(self.events(*OUTCOMES))
        self.daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(self.events(*OUTCOMES)) > count_before, "the reload")
        return self.events(*OUTCOMES)[-1]

    def write(self, **config: Any) -> None:
        """Writes the configuration file; the given sections replace the previous ones."""
        self.config = {**self.config, **config}
        new_file = self.daemon.config_path.with_suffix(".new")
        new_file.write_text(toml(self.daemon.settings(self._cache, self.config)))
        new_file.replace(self.daemon.config_path)

    def change(self, **config: Any) -> dict[str, Any]:
        self.write(**config)
        return self.hang_up()

    def end(self) -> None:
        self.daemon.stop()
        leftovers = self.daemon.left_behind()
        self.daemon.remove()
        assert not leftovers
