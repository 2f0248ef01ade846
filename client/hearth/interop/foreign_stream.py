"""CUDA streams of other libraries in this process, by the protocol ``__cuda_stream__`` of NVIDIA's cuda.core.

An object with the method ``__cuda_stream__``, which returns ``(0, handle)``, is a stream: CuPy's, PyTorch's and
cuda.core's are. Hearth's own streams do not have the method: their work runs in the daemon, and this process has no
CUDA stream for that work.
"""

from __future__ import annotations

from typing import Any, Protocol

from hearth.errors import ArgumentError, UnsupportedError

VERSION = 0
"""Supported version of the protocol."""
_HANDLE_END = 1 << 64


class ForeignStream(Protocol):
    """A CUDA stream of another library in this process."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Returns the protocol's version, 0, and the stream's handle."""
        ...


def handle_of(stream: Any) -> int:
    """Returns the CUDA handle of a stream of another library.

    Args:
        stream: An object with ``__cuda_stream__``.

    Returns:
        The handle: a `CUstream` of this process; 0 is the legacy default stream.

    Raises:
        ArgumentError: `stream` is no stream.
        UnsupportedError: The object has another version of the protocol.
    """
    method = getattr(type(stream), "__cuda_stream__", None)
    if method is None:
        raise ArgumentError(
            f"{type(stream).__name__} is neither a hearth.Stream nor a CUDA stream of this process.",
            fix="pass gpu.stream(), or an object with __cuda_stream__: a stream of CuPy, PyTorch or cuda.core.",
        )
    described = method(stream) if callable(method) else stream.__cuda_stream__
    try:
        version, handle = (int(number) for number in described)
    except (TypeError, ValueError):
        version, handle = VERSION, -1
    if version != VERSION:
        raise UnsupportedError(
            f"{type(stream).__name__} has version {version} of __cuda_stream__; version {VERSION} is supported.",
            fix="synchronize that stream, and leave out stream=.",
            details={"requested": str(version), "allowed": str(VERSION)},
        )
    if not 0 <= handle < _HANDLE_END:
        raise ArgumentError(
            f"__cuda_stream__ of {type(stream).__name__} returns {described!r}, not (0, handle).",
            fix="synchronize that stream, and leave out stream=.",
        )
    return handle
