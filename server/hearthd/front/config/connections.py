"""The `[connections]` section: how many connections may be open, and what one may do before it shows a credential."""

from __future__ import annotations

from pydantic import Field

from hearthd.front.config.section import Bytes, Seconds, Section


class ConnectionSettings(Section):
    """A stranger is a connection that has shown no accepted credential yet. All numbers are cut to what the process's
    limit on open files allows (`ulimit -n`, `LimitNOFILE`)."""

    max: int = Field(default=4096, ge=8)  # of each listener
    max_strangers: int = Field(default=512, ge=2)  # of each listener; a further one takes the place of an older one
    max_strangers_per_address: int = Field(default=128, ge=1)  # or per user on Unix sockets; IPv6: per /64
    handshake_timeout: Seconds = Field(default=10.0, ge=1, le=600)  # in which a stranger has to show a credential
    stranger_bytes: Bytes = Field(default=256 << 10, ge=64 << 10)  # that a stranger may send by gRPC over TCP

    @property
    def asked(self) -> int:
        """Connections of a listener that the configuration asks for by number; 0: as many as fit. Strangers get half
        of a listener's."""
        given = self.model_fields_set
        most = self.max if "max" in given else 0
        return max(most, min(self.max, 2 * self.max_strangers) if "max_strangers" in given else 0)
