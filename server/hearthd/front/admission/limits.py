"""Limits of each method's request: where its credential is, and how many bytes its first message may have."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hearthd.front.config.front_limits import AdmissionSettings
from hearthd.front.config.loader import Config

MAX_STRANGER_BYTES = 64 << 10
"""Bytes of a message from a caller whose headers show no credential; also the bytes that gRPC takes of a call before it
is asked for its message (`grpc.http2.lookahead_bytes`)."""
_HEADROOM = 1 << 20
"""Bytes of a message beside its bulk data."""
_SMALL = 64 << 10

NODE = "hearth.v1.NodeService"
DEVICE = "hearth.v1.DeviceService"


class CredentialSource(enum.Enum):
    """The place of a method's credential."""

    HEADERS = enum.auto()
    """The headers of the call, or its connection's certificate."""
    LOGIN = enum.auto()
    """The headers as for `HEADERS`, a session's token excepted: the call opens one."""
    SESSION = enum.auto()
    """The headers, or a session's token in the first message, which is short then."""
    NONE = enum.auto()
    """The method needs no credential."""


@dataclass(frozen=True)
class MethodLimit:
    """The limits of one method."""

    credential: CredentialSource = CredentialSource.HEADERS
    max_bytes: int = _SMALL
    """The size limit of a message of a caller whose credential was accepted."""


_IN_BODY = frozenset(
    {"RenewSession", "CloseSession", "CreateGroup", "JoinGroup", "LeaveGroup", "DescribeGroups"}
)  # fmt: skip
_BULK = frozenset({"Execute", "Upload", "Write", "LoadModule", "Dispatch", "Prepare", "UpdateGraph"})
"""Methods of DeviceService whose messages carry data, code or packed launches."""


class AdmissionLimits:
    """The table, for one configuration."""

    def __init__(self, settings: AdmissionSettings, largest: int) -> None:
        """`largest`: bytes of the longest message that any method takes."""
        self.settings = settings
        self.largest = max(largest, settings.max_request_bytes)

    @classmethod
    def of(cls, config: Config) -> AdmissionLimits:
        limits = config.limits
        bulk = max(limits.max_batch_bytes, limits.max_code_bytes, limits.max_chunk_bytes, limits.max_inline_bytes)
        return cls(config.admission, bulk + _HEADROOM)

    def find(self, service: str, method: str) -> MethodLimit:
        """The limit of a method; of one that is not in the table, the strictest."""
        if service == DEVICE:
            most = self.largest if method in _BULK else self.settings.max_request_bytes
            return MethodLimit(CredentialSource.SESSION, most)
        if service == NODE:
            if method == "OpenSession":
                return MethodLimit(CredentialSource.LOGIN)
            return MethodLimit(CredentialSource.SESSION if method in _IN_BODY else CredentialSource.HEADERS)
        return MethodLimit()

    def seconds(self, limit: MethodLimit) -> float:
        """Returns the time limit of an accepted caller's first message."""
        return self.settings.request_timeout + limit.max_bytes / self.settings.request_rate
