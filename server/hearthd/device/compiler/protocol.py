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
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Image, Job, LinkJob, Source
from hearthd.shared import disk

MAX_PARTS = 1 << 16
MAX_HEAD = 16 << 20
_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20

MAX_LOG = 256 << 10
"""Number of characters of a compiler's log that are kept: the beginning, which has the cause, and the end."""


class WorkerConnectionClosed(Exception):
    """The peer has closed the connection, or has sent a malformed message."""


def send(link: socket.socket, head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Sends a message. Raises WorkerConnectionClosed, and TimeoutError if the socket has a timeout."""
    head_bytes = json.dumps(head).encode()
    strings = (head_bytes, *parts)
    sizes = _COUNT.pack(len(strings)) + b"".join(_LENGTH.pack(len(part)) for part in strings)
    try:
        link.sendall(sizes)
        for part in strings:
            link.sendall(part)
    except TimeoutError:
        raise
    except OSError as error:
        raise WorkerConnectionClosed(str(error)) from error


def receive(
    link: socket.socket, *, max_bytes: int = 1 << 30, deadline: float | None = None
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
    """Returns a job as the head and the parts of a message; `unpack_job` is the inverse."""
    if isinstance(job, Assembly):
        return {"job": "assemble"}, [job.code]
    if isinstance(job, LinkJob):
        packed = [pack_job(item) for item in job.inputs]
        heads = [{**head, "parts": len(parts)} for head, parts in packed]
        return (
            {"job": "link", "inputs": heads, "options": list(job.options)},
            [part for _, parts in packed for part in parts],
        )
    head = {"job": "compile", "options": list(job.options), "name_expressions": list(job.name_expressions)}
    return head, [job.code.encode(), *(text.encode() for header in job.headers for text in header)]


def unpack_job(head: dict[str, Any], parts: Sequence[bytes]) -> Job:
    """Returns the job of a message that `pack_job` made."""
    if head["job"] == "assemble":
        return Assembly(parts[0])
    if head["job"] == "link":
        inputs: list[Source | Assembly] = []
        at = 0
        for item in head["inputs"]:
            job = unpack_job(item, parts[at : at + item["parts"]])
            assert not isinstance(job, LinkJob)
            inputs.append(job)
            at += item["parts"]
        return LinkJob(tuple(inputs), tuple(head["options"]))
    code, *texts = (part.decode() for part in parts)
    return Source(
        code=code,
        options=tuple(head["options"]),
        name_expressions=tuple(head["name_expressions"]),
        headers=tuple(zip(texts[::2], texts[1::2], strict=True)),
    )


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
        reason = Reason(head["reason"])
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
