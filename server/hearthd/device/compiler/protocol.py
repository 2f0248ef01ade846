"""Messages between a device process and its compile workers, over a separate socket.

A message is a list of byte strings: their number, the length of each, then the bytes. The first string is a small JSON
object; the others are source text or code, for which JSON would be slow. Nothing in a message is ever executed or
unpickled, because a worker has read untrusted input and is not trusted itself.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Image, Job, LinkJob, Source
from hearthd.shared import disk

MAX_PARTS = 1 << 16
"""Largest number of byte strings of a message, including the head."""
MAX_HEAD = 16 << 20
"""Largest size of a head in bytes."""
MAX_BYTES = 1 << 30
"""Largest size of a message in bytes, unless its receiver has a smaller limit."""
MAX_REQUEST = 64 << 20
"""Largest size of a request to a broker in bytes. A client's message has at most 32 MiB, of which a job contains each
code and header once; a head has at most `MAX_HEAD`."""

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20

MAX_LOG = 256 << 10
"""Number of characters of a compiler's log that are kept: the beginning, which has the cause, and the end."""


_Settings: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""Options and headers of a source."""


class WorkerConnectionClosed(Exception):
    """The peer has closed the connection, or has sent a malformed message."""


def send(link: socket.socket, head: dict[str, Any], parts: Sequence[bytes] = (), *, max_bytes: int = MAX_BYTES) -> None:
    """Sends a message.

    Raises Refusal(COMPILE_LIMIT), without having sent anything, for a message that its receiver would not accept:
    `max_bytes` is the receiver's. Raises WorkerConnectionClosed, and TimeoutError if the socket has a timeout.
    """
    strings = (json.dumps(head).encode(), *parts)
    lengths = [len(part) for part in strings]
    _check_size("sources, names of headers and texts of headers", len(parts), MAX_PARTS - 1)
    _check_size("bytes of options and names", lengths[0], MAX_HEAD)
    _check_size("bytes", sum(lengths), max_bytes)
    sizes = _COUNT.pack(len(lengths)) + b"".join(map(_LENGTH.pack, lengths))
    try:
        link.sendall(sizes)
        for part in strings:
            link.sendall(part)
    except TimeoutError:
        raise
    except OSError as error:
        raise WorkerConnectionClosed(str(error)) from error


def _check_size(unit: str, size: int, allowed: int) -> None:
    if size > allowed:
        raise Refusal(
            Reason.COMPILE_LIMIT,
            f"A compile with {size} {unit} was requested; the maximum is {allowed}.",
            fix="compile the code as several modules, with fewer headers, options and name expressions each",
            details={"limit": "size", "requested": size, "allowed": allowed, "log": ""},
        )


def receive(
    link: socket.socket, *, max_bytes: int = MAX_BYTES, deadline: float | None = None
) -> tuple[dict[str, Any], list[bytes]]:
    """Returns the head and the other parts of the next message.

    `deadline` is a time of `time.monotonic`. Raises TimeoutError, and WorkerConnectionClosed also for a message larger
    than `max_bytes`.
    """
    (count,) = _COUNT.unpack(_receive_exactly(link, _COUNT.size, deadline))
    if not 1 <= count <= MAX_PARTS:
        raise WorkerConnectionClosed(f"a message of {count} parts")
    lengths = [length for (length,) in _LENGTH.iter_unpack(_receive_exactly(link, count * _LENGTH.size, deadline))]
    if lengths[0] > MAX_HEAD or sum(lengths) > max_bytes:
        raise WorkerConnectionClosed(f"a message of {sum(lengths)} bytes")
    try:
        head = json.loads(_receive_exactly(link, lengths[0], deadline))
    except ValueError as error:
        raise WorkerConnectionClosed("a head that is not JSON") from error
    if not isinstance(head, dict):
        raise WorkerConnectionClosed("a head that is not an object")
    return head, [_receive_exactly(link, length, deadline) for length in lengths[1:]]


def _receive_exactly(link: socket.socket, size: int, deadline: float | None) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    at = 0
    while at < size:
        if deadline is not None:
            link.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            received = link.recv_into(view[at : at + _CHUNK])
        except TimeoutError:
            raise
        except OSError as error:
            raise WorkerConnectionClosed(str(error)) from error
        if not received:
            raise WorkerConnectionClosed("the end of the stream")
        at += received
    return bytes(data)


# ---- jobs ----


def pack_job(job: Job) -> tuple[dict[str, Any], list[bytes]]:
    """Returns a job as the head and the parts of a message; `unpack_job` is the inverse.

    Options and headers that several sources of a link share are packed once.
    """
    if isinstance(job, Assembly):
        return {"job": "assemble"}, [job.code]
    settings: list[_Settings] = []
    inputs: list[dict[str, Any]] = []
    codes: list[bytes] = []
    for item in job.inputs if isinstance(job, LinkJob) else (job,):
        if isinstance(item, Assembly):
            inputs.append({})
            codes.append(item.code)
            continue
        own = item.options, item.headers
        if own not in settings:
            settings.append(own)
        inputs.append({"name_expressions": list(item.name_expressions), "settings": settings.index(own)})
        codes.append(item.code.encode())
    head = {
        "job": "compile",
        "inputs": inputs,
        "settings": [{"options": list(options), "headers": len(headers)} for options, headers in settings],
    }
    if isinstance(job, LinkJob):
        head = {**head, "job": "link", "options": list(job.options)}
    return head, codes + [text.encode() for _, headers in settings for header in headers for text in header]


def unpack_job(head: dict[str, Any], parts: Sequence[bytes]) -> Job:
    """Returns the job of a message that `pack_job` made."""
    if head["job"] == "assemble":
        return Assembly(parts[0])
    at = len(head["inputs"])
    settings: list[_Settings] = []
    for item in head["settings"]:
        texts = [part.decode() for part in parts[at : at + 2 * item["headers"]]]
        at += len(texts)
        settings.append((tuple(item["options"]), tuple(zip(texts[::2], texts[1::2], strict=True))))
    inputs: list[Source | Assembly] = []
    for item, code in zip(head["inputs"], parts, strict=False):
        if "settings" not in item:
            inputs.append(Assembly(code))
            continue
        options, headers = settings[item["settings"]]
        inputs.append(Source(code.decode(), options, tuple(item["name_expressions"]), headers))
    if head["job"] == "link":
        return LinkJob(tuple(inputs), tuple(head["options"]))
    (job,) = inputs
    return job


# ---- answers ----


def pack_image(image: Image) -> tuple[dict[str, Any], list[bytes]]:
    """Returns an image as the head and the parts of a message. The log is shortened to `MAX_LOG` characters."""
    return {"names": dict(image.names), "log": shorten_log(image.log), "kinds": dict(image.kinds)}, [image.code]


def pack_refusal(refusal: Refusal) -> dict[str, Any]:
    """Returns a refusal as the head of a message. Each text is shortened to `MAX_LOG` characters."""
    details = {key: shorten_log(value) for key, value in refusal.details.items()}
    return {
        "reason": str(refusal.reason),
        "message": shorten_log(refusal.message),
        "fix": refusal.fix,
        "details": details,
        "fields": list(refusal.fields),
    }


def unpack_image(head: dict[str, Any], parts: Sequence[bytes]) -> Image:
    """Decodes an image. Raises WorkerConnectionClosed if the answer contains none."""
    names, log, kinds = head.get("names"), head.get("log"), head.get("kinds")
    if not isinstance(names, dict) or not isinstance(log, str) or not isinstance(kinds, dict) or len(parts) != 1:
        raise WorkerConnectionClosed("an answer without an image")
    return Image(
        code=parts[0],
        names={str(key): str(value) for key, value in names.items()},
        log=log,
        kinds={str(key): str(value) for key, value in kinds.items()},
    )


def unpack_refusal(head: dict[str, Any]) -> Refusal:
    """Decodes a refusal. The reason becomes INTERNAL unless it is one that a compile can have.

    Only fields of `LoadModule` are kept.
    """
    reason = Reason.INTERNAL
    if head.get("reason") in _REASONS:
        reason = Reason[head["reason"]]
    details, fields = head.get("details"), head.get("fields")
    return Refusal(
        reason,
        str(head.get("message", "")),
        fix=str(head.get("fix", "")),
        details=details if isinstance(details, dict) else {},
        retry_after_s=disk.RETRY_S if reason is Reason.DISK_FULL else None,
        fields=[field for field in _FIELDS if field in fields] if isinstance(fields, list) else (),
    )


_REASONS = frozenset(
    {
        Reason.COMPILE_FAILED,
        Reason.COMPILE_LIMIT,
        Reason.DISK_FULL,
        Reason.NO_COMPILER,
        Reason.MODULE_INVALID,
        Reason.UNSUPPORTED,
    }
)

_FIELDS = ("code", "options", "name_expressions", "headers")


def shorten_log(text: str) -> str:
    """Returns a log shortened to `MAX_LOG` characters."""
    if len(text) <= MAX_LOG:
        return text
    tail = MAX_LOG // 4
    return f"{text[: MAX_LOG - tail]}\n... {len(text) - MAX_LOG} characters left out ...\n{text[-tail:]}"
