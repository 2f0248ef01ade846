"""The addresses of a daemon under attack, as an unauthenticated client knows them."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """Addresses of listeners: ``host:port`` for TCP, and paths for Unix sockets."""

    grpc: str
    http: str
    stripes: str
    unix: str
    """Address of gRPC on the Unix socket."""
    calls: str
    """Address of framed calls."""
    lanes: str
    identity: str
    pid: int
    """Process id of the front."""

    @classmethod
    def from_json(cls, text: str) -> Target:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def listeners(self) -> dict[str, str]:
        """Returns every address that accepts connections, by name."""
        return {
            name: address for name, address in asdict(self).items() if name != "pid" and address and _is_there(address)
        }


def _is_there(address: str) -> bool:
    return not address.startswith("/") or Path(address).exists()


def connect(address: str, timeout: float = 5.0) -> socket.socket:
    """Returns a connected stream socket. Raises `OSError`."""
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout)


class Until:
    """Counts down the seconds of an attack: ``while until: ...``."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return max(0.0, self._end - time.monotonic())

    def __bool__(self) -> bool:
        return time.monotonic() < self._end

    def wait(self) -> None:
        """Sleeps until the end, for attacks that only hold their connections."""
        time.sleep(self.left)
