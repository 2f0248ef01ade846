"""The device process; imports nothing of `front/`."""

from hearthd.shared import plain_logs  # noqa: F401 - before anything imports structlog
