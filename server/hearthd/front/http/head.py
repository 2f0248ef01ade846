"""Request heads: parsed and checked before an HTTP library receives any byte of them.

Covers the request line, the header fields and the limits on both; not the caller or the resource. Stricter than RFC
9112 where leniency is known to cause misinterpretation: no bare line feeds, no folded lines, no spaces before a colon,
no body. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

MAX_HEAD = 16 << 10
"""Maximum size, in bytes, of the request line and the header fields together."""
MAX_LINE = 4 << 10
"""Maximum size, in bytes, of the request line."""
MAX_FIELDS = 64
END = b"\r\n\r\n"
PROBES = ("/healthz", "/readyz")
"""Paths that every health checker may request, with any host name and without credentials."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.([01])")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_START = re.compile(_TOKEN + rb"(?: |\Z)")
_UNIQUE = (b"host", b"content-length", b"authorization", b"origin")
_IGNORED = (b"upgrade", b"expect", b"http2-settings")
"""Fields that request another protocol or an interim response. They are ignored, as RFC 9110 allows."""


class HeadError(Exception):
    """Raised for a request that is refused because of its head."""

    def __init__(self, status: int, reason: str, error: str, fix: str) -> None:
        super().__init__(error)
        self.status = status
        """The HTTP status code."""
        self.reason = reason
        """A single word for metrics and the log."""
        self.error = error
        self.fix = fix


@dataclass(frozen=True)
class Head:
    """The head of a request without a body."""

    method: str
    target: str
    """Path and query, as sent."""
    fields: Mapping[bytes, bytes]
    """Values by name in lower case. Of a repeated field, the last value."""
    data: bytes
    """The head for the HTTP library, without the fields that are ignored."""

    @property
    def probe(self) -> bool:
        """True if the request is a health probe."""
        return self.target.partition("?")[0] in PROBES


def check_beginning(data: bytes | bytearray) -> None:
    """Raises `HeadError` if an incomplete head can no longer become a valid one."""
    line_end = data.find(b"\r\n", 0, MAX_LINE + 2)
    if line_end < 0 and len(data) > MAX_LINE:
        _line_too_long()
    if len(data) > MAX_HEAD:
        _too_large()
    if not _START.match(data[:64]) and len(data) >= 1:
        _not_http()


def parse(data: bytes) -> Head:
    """Parses a head, including the empty line at its end. Raises `HeadError`."""
    if len(data) > MAX_HEAD:
        _too_large()
    request_line, *lines = data[: -len(END)].split(b"\r\n")
    if len(request_line) > MAX_LINE:
        _line_too_long()
    request = _LINE.fullmatch(request_line)
    if request is None:
        _not_http()
    if len(lines) > MAX_FIELDS:
        raise HeadError(431, "head_too_large", f"The request has more than {MAX_FIELDS} headers.", "Send fewer.")
    fields: dict[bytes, bytes] = {}
    forwarded = [request_line]
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise HeadError(400, "bad_request", "A header is malformed.", "Send `Name: value` in visible characters.")
        name, value = field[1].lower(), field[2].rstrip(b" \t")
        if name in fields and name in _UNIQUE:
            raise HeadError(400, "bad_request", f"The header {name.decode().title()} is given twice.", "Send it once.")
        fields[name] = value
        if name not in _IGNORED:
            forwarded.append(line)
    _check_method(request[1], fields)
    if not request[2].startswith(b"/"):
        raise HeadError(
            400, "bad_request", "The request names no path of this daemon.", "Request a path, for example GET /status."
        )
    if b"host" not in fields and request[3] == b"1":
        raise HeadError(400, "bad_request", "The request has no Host header.", "Send the name and port connected to.")
    return Head(request[1].decode(), request[2].decode(), fields, b"\r\n".join(forwarded) + END)


def _check_method(method: bytes, fields: Mapping[bytes, bytes]) -> None:
    """Raises `HeadError` for methods other than GET and HEAD, and for bodies, because nothing is changed over HTTP."""
    if method not in (b"GET", b"HEAD"):
        raise HeadError(
            405, "method", f"{method[:20].decode()} is not served here.", "Use GET, HEAD: nothing changes over HTTP."
        )
    if b"transfer-encoding" in fields:
        raise HeadError(400, "body", "The request has a body of unknown length.", "Send GET without a body.")
    length = fields.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18:
        raise HeadError(400, "bad_request", "Content-Length is not a number of bytes.", "Send GET without a body.")
    if int(length):
        raise HeadError(413, "body", "The request has a body.", "Send GET without a body.")


def _line_too_long() -> NoReturn:
    raise HeadError(
        414, "line_too_long", f"The request line has more than {MAX_LINE} bytes.", "Request a shorter path."
    )


def _too_large() -> NoReturn:
    raise HeadError(
        431, "head_too_large", f"The request line and headers have more than {MAX_HEAD} bytes.", "Send fewer headers."
    )


def _not_http() -> NoReturn:
    raise HeadError(
        400,
        "bad_request",
        "The bytes received are not an HTTP/1.1 request.",
        "Use HTTP/1.1 on this port; gRPC has a separate port.",
    )
