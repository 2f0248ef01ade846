"""The sockets: sessions, health, metrics and the supervision of device processes; knows no CUDA."""

from hearthd.shared import plain_logs  # noqa: F401 - before anything imports structlog
