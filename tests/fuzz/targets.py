"""Targets of fuzzing: every method of every service, found by its descriptors, and the sockets below gRPC."""

from __future__ import annotations

import contextlib
import queue
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from hearth_proto import calls, frames
from hearth_proto.chunks import varint
from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, node_pb2
from tests.fuzz.messages import Maker

CALL_S = 1.0
"""Seconds after which the client cancels a waiting call."""
OVERSIZED = 33 << 20
"""Bytes: larger than gRPC accepts."""
LARGE = 3 << 20
"""Bytes: larger than a message may contain inline, and than a chunk of a transfer."""


@dataclass(frozen=True)
class Answer:
    """The answer to one call."""

    code: grpc.StatusCode
    text: bytes
    """Everything that was received: messages, status, metadata."""


@dataclass(frozen=True)
class Rpc:
    """A method of a service."""

    service: str
    method: MethodDescriptor

    @property
    def name(self) -> str:
        return f"{self.service.rpartition('.')[2]}/{self.method.name}"

    @property
    def streams(self) -> bool:
        """True if the method takes any number of messages."""
        return bool(self.method.client_streaming)

    def message(self) -> Message:
        made: Message = message_factory.GetMessageClass(self.method.input_type)()
        return made


def rpcs() -> list[Rpc]:
    """Returns every method of the daemon's own services."""
    return [
        Rpc(service.full_name, method)
        for file in (node_pb2.DESCRIPTOR, device_pb2.DESCRIPTOR)
        for service in file.services_by_name.values()
        for method in service.methods
    ]


def call(channel: grpc.Channel, rpc: Rpc, payloads: list[bytes], metadata: Any) -> Answer:
    """Sends raw messages, however many the method takes. A stream of the client may be a single message for the daemon,
    because the wire format is the same."""
    made: Any = channel.stream_stream(f"/{rpc.service}/{rpc.method.name}", None, None)
    answers = made(iter(payloads), timeout=CALL_S, metadata=metadata)
    parts: list[bytes] = []
    with contextlib.suppress(grpc.RpcError):
        parts.extend(answers)
    return _answer(answers, parts)


def _answer(answers: Any, parts: list[bytes]) -> Answer:
    parts.append((answers.details() or "").encode())
    for key, value in answers.trailing_metadata() or ():
        parts += [key.encode(), value if isinstance(value, bytes) else value.encode()]
    return Answer(answers.code(), b"\n".join(parts))


def payloads(rpc: Rpc, maker: Maker) -> list[bytes]:
    """Returns the messages of one call."""
    rng = maker.rng
    count = rng.choice((0, 1, 1, 2, 4)) if rpc.streams else rng.choice((1,) * 198 + (0, 2))
    return [_payload(rpc, maker) for _ in range(count)]


def _payload(rpc: Rpc, maker: Maker) -> bytes:
    rng = maker.rng
    dice = rng.random()
    if dice < 0.08:
        return maker.junk()
    if dice < 0.60:
        return bytes(maker.fill(rpc.message()).SerializeToString())
    if dice < 0.93:
        with maker.harmless():
            return maker.broken(maker.fill(rpc.message()).SerializeToString())
    if dice < 0.98:
        other = rng.choice(rpcs())
        with maker.harmless():
            return bytes(maker.fill(other.message()).SerializeToString())
    return _large(rpc.message(), maker, rng)


def _large(message: Message, maker: Maker, rng: random.Random) -> bytes:
    """Returns a message that is too large for the daemon; rarely one that is too large for gRPC."""
    with maker.harmless():
        maker.fill(message)
    size = OVERSIZED if rng.random() < 0.05 else LARGE
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_BYTES and not field.is_repeated:
            setattr(message, field.name, bytes(size))
            return bytes(message.SerializeToString())
        if field.name == "command":
            for inner in field.message_type.fields if field.message_type else ():
                if inner.type == inner.TYPE_BYTES and not inner.is_repeated:
                    setattr(getattr(message, "command"), inner.name, bytes(size))  # noqa: B009
                    return bytes(message.SerializeToString())
    return bytes(message.SerializeToString()) + b"\x7a" + varint(size) + bytes(size)  # field 15, which no message has


def attach(maker: Maker) -> bytes:
    """Returns the first message of Execute, which usually is an Attach."""
    rng = maker.rng
    if rng.random() < 0.1:
        return (
            maker.junk() if rng.random() < 0.5 else bytes(maker.fill(device_pb2.ExecuteRequest()).SerializeToString())
        )
    message = device_pb2.Attach(session_token=maker.token(), device=rng.choice((0, 0, 0, 1, 77)))
    if rng.random() < 0.2:
        maker.fill(message, 0.4)
    first = device_pb2.ExecuteRequest(attach=message).SerializeToString()
    return bytes(first) if rng.random() < 0.9 else maker.broken(first)


def batches(maker: Maker, seq: int) -> Iterator[bytes]:
    """Yields the messages after the attach; `seq` is the last batch that was executed."""
    rng = maker.rng
    for _ in range(rng.choice((0, 1, 2, 5))):
        dice = rng.random()
        if dice < 0.10:
            yield maker.junk()
            continue
        if dice < 0.15:
            received = maker.fill(device_pb2.Received())
            yield device_pb2.ExecuteRequest(received=received).SerializeToString()
            continue
        breaks = dice > 0.6
        with maker.harmless() if breaks else contextlib.nullcontext():
            commands = [maker.command() for _ in range(rng.choice((1, 3, 10)))]
        seq = (seq + 1) % 2**64 if rng.random() < 0.97 else rng.choice((0, 1, 2**64 - 1))
        whole = device_pb2.ExecuteRequest(batch=c.Batch(seq=seq, commands=commands)).SerializeToString()
        yield maker.broken(whole) if breaks else bytes(whole)


def execute(channel: grpc.Channel, rpc: Rpc, maker: Maker, metadata: Any) -> tuple[Answer, bytes]:
    """Runs an Execute stream: waits for the answer to the attach, whose position the batches continue. Returns the
    answer, and the bytes sent."""
    sent: list[bytes] = []
    attached: queue.SimpleQueue[int] = queue.SimpleQueue()

    def requests() -> Iterator[bytes]:
        sent.append(attach(maker))
        yield sent[-1]
        with contextlib.suppress(queue.Empty):  # if the attach was refused
            for message in batches(maker, attached.get(timeout=CALL_S)):
                sent.append(message)
                yield message

    made: Any = channel.stream_stream(f"/{rpc.service}/{rpc.method.name}", None, None)
    answers = made(requests(), timeout=CALL_S, metadata=metadata)
    parts: list[bytes] = []
    with contextlib.suppress(grpc.RpcError):
        for part in answers:
            if not parts:
                attached.put(device_pb2.ExecuteResponse.FromString(part).attached.last_seq)
            parts.append(part)
    return _answer(answers, parts), b"".join(sent)


# ---- below RPCs ----

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PATHS = (
    "/", "/healthz", "/readyz", "/metrics", "/status", "/../etc/passwd", "/status?x=%00", "/%", "*", "",
    "/page/page.js", "/page/../x", "/status?max_age=1", "/status?max_age=%ff", "/traces/x.json", "/traces/%00.json",
)  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PRI", "\0")


def http(maker: Maker, bearer: str) -> bytes:
    """Returns a request, or bytes that resemble one."""
    rng = maker.rng
    if rng.random() < 0.2:
        return maker.junk(2000)
    lines = [f"{rng.choice(METHODS)} {rng.choice(PATHS)} HTTP/1.{rng.choice('0119')}", "Host: x"]
    if rng.random() < 0.5:
        lines.append(f"Authorization: {rng.choice(('Bearer', 'Basic', ''))} {rng.choice((bearer, 'x', '=' * 200))}")
    if rng.random() < 0.3:
        name = rng.choice(("Content-Length", "X-" + "y" * 9000, "Transfer-Encoding"))
        lines.append(f"{name}: {rng.choice(('9', '-1', 'chunked', 'x' * 9000))}")
    lines.append("Connection: close")
    whole = "\r\n".join(lines).encode() + b"\r\n\r\n" + maker.junk(40)
    return maker.broken(whole) if rng.random() < 0.3 else whole


def wire(maker: Maker) -> bytes:
    """Returns bytes that are not gRPC, or damaged gRPC."""
    rng = maker.rng
    frame = bytearray()
    for _ in range(rng.randrange(5)):
        body = rng.randbytes(rng.randrange(60))
        frame += len(body).to_bytes(3, "big") + bytes((rng.randrange(12), rng.randrange(256)))
        frame += rng.randrange(5).to_bytes(4, "big") + body
    whole = PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) + bytes(frame)
    return maker.junk(3000) if rng.random() < 0.3 else maker.broken(whole) if rng.random() < 0.5 else whole


def framed(maker: Maker, metadata: Any) -> bytes:
    """Returns a call as frames, possibly damaged."""
    rng, rpc = maker.rng, maker.rng.choice(rpcs())
    head = calls.pack_head(f"/{rpc.service}/{rpc.method.name}", [each for each in metadata if rng.random() < 0.9])
    parts = [(Kind.METHOD, head), *((Kind.MESSAGE, payload) for payload in payloads(rpc, maker)), (Kind.END, b"")]
    if rng.random() < 0.2:
        parts.insert(rng.randrange(len(parts)), (rng.choice(list(Kind)), maker.junk()))
    whole = b"".join(frames.encode(kind, payload) for kind, payload in parts)
    dice = rng.random()
    return maker.junk(3000) if dice < 0.1 else maker.broken(whole) if dice < 0.5 else whole


def exchange(connect: Callable[[], socket.socket], data: bytes, timeout: float = 0.2) -> bytes:
    """Sends bytes to a socket, and returns what arrives within `timeout` seconds."""
    answer = b""
    with contextlib.suppress(OSError), connect() as connection:
        connection.settimeout(timeout)
        connection.sendall(data)
        if len(data) % 3 == 0:
            connection.shutdown(socket.SHUT_WR)
        while more := connection.recv(1 << 16):
            answer += more
    return answer
