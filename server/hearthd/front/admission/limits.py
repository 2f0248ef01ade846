"""Limits of each method's request: the place of its credential, and the maximum size of its first message."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hearthd.front.config.front_limits import AdmissionSettings
from hearthd.front.config.loader import Config

MAX_STRANGER_BYTES = 64 << 10
"""Maximum size, in bytes, of a message from a caller whose headers show no credential. Also the number of bytes that
gRPC reads of a call before its message is requested (`grpc.http2.lookahead_bytes`)."""
_HEADROOM_BYTES = 1 << 20
"""Bytes that a message may have in addition to its bulk data."""
_SMALL_BYTES = 64 << 10

NODE = "hearth.v1.NodeService"
DEVICE = "hearth.v1.DeviceService"


class CredentialSource(enum.Enum):
    """The place where a method expects its credential."""

    HEADERS = enum.auto()
    """The headers of the call, or the certificate of its connection."""
    LOGIN = enum.auto()
    """Like `HEADERS`, but not a session's token, because the call opens a session."""
    SESSION = enum.auto()
    """The headers, or a session's token in the first message, which must then be short."""
    NONE = enum.auto()
    """The method needs no credential."""


@dataclass(frozen=True)
class MethodLimit:
    """The limits of one method."""

    credential: CredentialSource = CredentialSource.HEADERS
    max_bytes: int = _SMALL_BYTES
    """Maximum size, in bytes, of a message from a caller whose credential was accepted."""


_SESSION_IN_MESSAGE = frozenset(
    {"RenewSession", "CloseSession", "CreateGroup", "JoinGroup", "LeaveGroup", "DescribeGroups"}
)  # fmt: skip
_BULK = frozenset({"Execute", "Upload", "Write", "LoadModule", "Dispatch", "Prepare", "UpdateGraph"})
"""Methods of DeviceService whose messages carry data, code or packed launches."""


class AdmissionLimits:
    """The table of limits for one configuration."""

    def __init__(self, settings: AdmissionSettings, largest: int) -> None:
        """Creates the table. `largest`: size, in bytes, of the longest message of any method."""
        self.settings = settings
        self.largest = max(largest, settings.max_request_bytes)

    @classmethod
    def of(cls, config: Config) -> AdmissionLimits:
        """Returns the table of a configuration. Its longest message has the largest bulk limit plus 1 MiB."""
        limits = config.limits
        bulk = max(limits.max_batch_bytes, limits.max_code_bytes, limits.max_chunk_bytes, limits.max_inline_bytes)
        return cls(config.admission, bulk + _HEADROOM_BYTES)

    def find(self, service: str, method: str) -> MethodLimit:
        """Returns the limit of a method; for an unknown method, the strictest limit."""
        if service == DEVICE:
            max_bytes = self.largest if method in _BULK else self.settings.max_request_bytes
            return MethodLimit(CredentialSource.SESSION, max_bytes)
        if service == NODE:
            if method == "OpenSession":
                return MethodLimit(CredentialSource.LOGIN)
            return MethodLimit(CredentialSource.SESSION if method in _SESSION_IN_MESSAGE else CredentialSource.HEADERS)
        return MethodLimit()

    def seconds(self, limit: MethodLimit) -> float:
        """Returns the time limit, in seconds, of an accepted caller's first message."""
        return self.settings.request_timeout + limit.max_bytes / self.settings.request_rate
