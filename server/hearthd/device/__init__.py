"""One device process; imports nothing of `front/`."""

from hearthd import plain_logs  # noqa: F401 - before anything imports structlog
