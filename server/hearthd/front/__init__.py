"""The front process: sessions, sockets, health, metrics, and supervision of device processes. It does not use CUDA."""

from hearthd.shared import plain_logs  # noqa: F401 - before anything imports structlog
