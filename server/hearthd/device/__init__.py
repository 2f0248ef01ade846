"""The device process and its helper processes. Imports nothing of `hearthd.front`."""

from hearthd.shared import plain_logs  # noqa: F401 - before anything imports structlog
