"""Attacks by messages of callers without a credential: large, compressed, incomplete and malformed ones."""

from __future__ import annotations

import contextlib
import functools
import gzip
import random
import socket
import time
import zlib

from hearth_proto import calls, frames
from hearth_proto.frames import Kind
from tests.attacks.raw_http2 import Http2, blocking, message
from tests.attacks.rows import Budget, Row
from tests.attacks.target import Target, Until, connect

MIB = 1 << 20
DESCRIBE = "/hearth.v1.NodeService/Describe"
CREATE_GROUP = "/hearth.v1.NodeService/CreateGroup"
LOAD_MODULE = "/hearth.v1.DeviceService/LoadModule"
HEALTH = "/grpc.health.v1.Health/Check"
GZIP = ((b"grpc-encoding", b"gzip"),)
_EMPTY_MEMBER = b"\x12\x00"
"""An empty entry of CreateGroupRequest.members, encoded."""


# ---- large bodies ----


def _bodies(target: Target, seconds: float, path: str, body: bytes, streams: int = 10) -> dict[str, int]:
    """Makes calls with a body on 4 connections, which the daemon ends or which are held; ended connections are
    replaced."""
    until = Until(seconds)
    sent = ended = 0
    while until:
        connections = [Http2(target.grpc) for _ in range(4)]
        for one in connections:
            for _ in range(streams):
                one.call(path, body)
        round_ = Until(min(until.left, 2.0))
        while round_ and not all(one.over or one.ended == streams for one in connections):
            for one in connections:
                one.pump(Until(min(round_.left, 0.02)), streams)
        for one in connections:
            sent += one.sent
            ended += one.ended
            one.close()
    return {"calls_ended": ended, "sent_mib": sent // MIB}


@functools.cache
def _most_of_31_mib() -> bytes:
    return message(bytes(30 * MIB), announced=31 * MIB)


def large_bodies(target: Target, seconds: float) -> dict[str, int]:
    """Makes 40 calls that each send 30 of 31 MiB and then nothing."""
    return _bodies(target, seconds, DESCRIBE, _most_of_31_mib())


@functools.cache
def _most_of_16_mib() -> bytes:
    return message(bytes(15 * MIB), announced=16 * MIB)


def large_modules(target: Target, seconds: float) -> dict[str, int]:
    """Sends large bodies to a method whose credential may be in its message, up to the maximum message size."""
    return _bodies(target, seconds, LOAD_MODULE, _most_of_16_mib())


def large_health_checks(target: Target, seconds: float) -> dict[str, int]:
    """Sends large bodies to a method that needs no credential."""
    return _bodies(target, seconds, HEALTH, _most_of_16_mib())


@functools.cache
def _empty_members() -> bytes:
    return _EMPTY_MEMBER * (31 * MIB // 2)


def empty_members(target: Target, seconds: float) -> dict[str, int]:
    """Sends CreateGroup with 31 MiB of empty members."""
    return _bodies(target, seconds, CREATE_GROUP, message(_empty_members()), streams=1)


def unfinished_bodies(target: Target, seconds: float) -> dict[str, int]:
    """Makes calls that announce a message and send single bytes of it from time to time."""
    until, ended = Until(seconds), 0
    connections = [Http2(target.grpc) for _ in range(4)]
    for one in connections:
        for number in range(100):
            one.call((LOAD_MODULE, HEALTH, DESCRIBE)[number % 3], message(b"x", announced=60000))
    while until and not all(one.over for one in connections):
        for one in connections:
            one.pump(Until(min(until.left, 0.05)))
    for one in connections:
        ended += one.ended
        one.close()
    return {"calls_ended": ended}


# ---- compressed requests ----


@functools.cache
def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(MIB)) for _ in range(512)) + packer.flush()


def gzip_bomb(target: Target, seconds: float) -> dict[str, int]:
    """Sends 512 MiB of zeros, compressed, in a Describe, repeatedly."""
    body = message(_bomb(), compressed=True)
    return _compressed(target, seconds, DESCRIBE, body, pause=0.0)


@functools.cache
def _packed_members() -> bytes:
    return gzip.compress(_empty_members())


def gzip_members(target: Target, seconds: float) -> dict[str, int]:
    """Sends 31 MiB of empty members compressed to 30 KiB, twice a second."""
    return _compressed(target, seconds, CREATE_GROUP, message(_packed_members(), compressed=True), pause=0.5)


def _compressed(target: Target, seconds: float, path: str, body: bytes, pause: float) -> dict[str, int]:
    until, ended, made = Until(seconds), 0, 0
    encodings = ((b"grpc-encoding", b"gzip"), (b"grpc-encoding", b"deflate"), (b"grpc-encoding", b"identity"))
    while until:
        one = Http2(target.grpc)
        for encoding in encodings:
            one.call(path, body, (encoding,), end=True)
        one.call(path, body, end=True)
        made += 4
        one.pump(Until(min(until.left, 2.0)), 4)
        ended += one.ended
        one.close()
        time.sleep(min(until.left, pause))
    return {"calls": made, "calls_ended": ended}


# ---- malformed paths and metadata ----

_PATHS = (
    b"/\xff\xfe", b"/hearth.v1.NodeService/\xff", b"", b"*", b"/", b"/\0", b"/" + b"x" * 7000, b"/a/b/c",
    b"\xf0\x9f\x92",
)  # fmt: skip
_METADATA = (
    (b"authorization", b"\xff\xfe"), (b"authorization", b"Bearer " + b"x" * 7000), (b"hearth-session", b"\xc3("),
    (b"hearth-ticket", b"\x80"), (b"grpc-timeout", b"never"), (b"x-bin", b"!!!"), (b"grpc-encoding", b"\xff"),
    (b"content-type", b"text/html"), (b":path", b"/again"), (b"grpc-status", b"0"), (b"te", b"\xff"),
    (b"grpc-tags-bin", b"AAAA"), (b"x" * 5000, b"y"), (b"x", b"z" * 15000),
)  # fmt: skip


def odd_headers(target: Target, seconds: float) -> dict[str, int]:
    """Sends paths and metadata that are not UTF-8, reserved, long or meaningless."""
    until, ended, made = Until(seconds), 0, 0
    choose = random.Random(0)
    while until:
        one = Http2(target.grpc)
        for path in _PATHS:
            one.call(path, message(b""), end=True)
        for _ in range(8):
            chosen = choose.sample(_METADATA, choose.randint(1, 3))
            one.call(choose.choice((DESCRIBE, HEALTH, LOAD_MODULE)), message(b""), chosen, end=True)
        made += len(_PATHS) + 8
        one.pump(Until(min(until.left, 0.5)), len(_PATHS) + 8)
        ended += one.ended
        one.close()
    return {"calls": made, "calls_ended": ended}


# ---- framed calls ----


def _framed(target: Target, seconds: float, begin: bytes, body: int, connections: int) -> dict[str, int]:
    """Opens connections that start a call and then send zeros; a connection that is closed is replaced."""
    until, sent, opened = Until(seconds), 0, 0
    zeros = bytes(MIB)
    open_: dict[socket.socket, int] = {}
    while until:
        while len(open_) < connections:
            try:
                one = connect(target.calls)
            except OSError:
                break
            one.sendall(begin)
            one.setblocking(False)
            open_[one] = body
            opened += 1
        for one, left in list(open_.items()):
            try:
                if left:
                    took = blocking(one, zeros[:left])
                    open_[one] -= took
                    sent += took
                with contextlib.suppress(BlockingIOError):
                    while data := one.recv(65536):
                        del data
                    raise ConnectionError
            except OSError:
                one.close()
                del open_[one]
        time.sleep(0.005)
    for one in open_:
        one.close()
    return {"connections": opened, "sent_mib": sent // MIB}


def _method(path: str) -> bytes:
    return frames.encode(Kind.METHOD, calls.pack_head(path, ()))


def framed_bodies(target: Target, seconds: float) -> dict[str, int]:
    """Sends 30 of 31 MiB of a frame on each of 40 connections to the socket of framed calls."""
    return _framed(target, seconds, _method(DESCRIBE) + frames.header(Kind.MESSAGE, 31 * MIB), 30 * MIB, 40)


def framed_modules(target: Target, seconds: float) -> dict[str, int]:
    """Sends framed bodies to a method whose credential may be in its message: nearly 64 KiB each, on many
    connections."""
    return _framed(target, seconds, _method(LOAD_MODULE) + frames.header(Kind.MESSAGE, 64 << 10), 63 << 10, 500)


def framed_heads(target: Target, seconds: float) -> dict[str, int]:
    """Sends incomplete METHOD frames of nearly 16 KiB each, on many connections."""
    return _framed(target, seconds, frames.header(Kind.METHOD, calls.MAX_HEAD), calls.MAX_HEAD - 1, 500)


FLOOD = Budget(slower=5.0)

ROWS = (
    Row("large bodies", large_bodies, FLOOD, prepare=_most_of_31_mib),
    Row("large modules", large_modules, FLOOD, prepare=_most_of_16_mib),
    Row("large health checks", large_health_checks, FLOOD, prepare=_most_of_16_mib),
    Row("empty members", empty_members, FLOOD, prepare=_empty_members),
    Row("unfinished bodies", unfinished_bodies),
    Row("gzip bomb", gzip_bomb, FLOOD, prepare=_bomb),
    Row("gzip members", gzip_members, prepare=_packed_members),
    Row("odd headers", odd_headers, FLOOD),
    Row("framed bodies", framed_bodies, FLOOD),
    Row("framed modules", framed_modules, Budget(slower=5.0, growth_mib=40)),
    Row("framed heads", framed_heads, FLOOD),
)
