"""The old way to these names; it goes when nobody takes it any more."""

from __future__ import annotations

from hearthd.device.buffer import Buffer
from hearthd.device.handle_table import Table
from hearthd.device.session import BatchEntry, Session
from hearthd.device.stream import LogicalStream

__all__ = ["BatchEntry", "Buffer", "LogicalStream", "Session", "Table"]
