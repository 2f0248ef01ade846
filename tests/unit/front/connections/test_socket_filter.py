"""The program of socket filters, compared with a model and run in the kernel."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.front.connections import socket_filter
from hearthd.front.connections.peers import group_of
from hearthd.front.connections.socket_filter import (
    AND,
    COPY_TO_X,
    DROP,
    EQUAL,
    IP_HEADER,
    JUMP,
    LOAD_BYTE,
    LOAD_LENGTH,
    LOAD_WORD,
    MAX_PEERS,
    PASS,
    RETURN,
    SHIFT_RIGHT,
    SUBTRACT_X,
    Instruction,
    program,
)


def run(instructions: list[Instruction], ip: bytes, tcp: bytes) -> int:
    """Runs a classic BPF program as Documentation/networking/filter.rst specifies it: a load outside of the packet
    drops it."""
    at = accumulator = x = 0
    while True:
        each = instructions[at]
        at += 1
        if each.code == RETURN:
            return each.value
        if each.code in (LOAD_WORD, LOAD_BYTE):
            size = 4 if each.code == LOAD_WORD else 1
            header, offset = (ip, each.value - IP_HEADER) if each.value >= IP_HEADER else (tcp, each.value)
            if offset + size > len(header):
                return DROP
            accumulator = int.from_bytes(header[offset : offset + size])
        elif each.code == LOAD_LENGTH:
            accumulator = len(tcp)
        elif each.code == AND:
            accumulator &= each.value
        elif each.code == SHIFT_RIGHT:
            accumulator >>= each.value
        elif each.code == COPY_TO_X:
            x = accumulator
        elif each.code == SUBTRACT_X:
            accumulator = (accumulator - x) & 0xFFFFFFFF
        elif each.code == JUMP:
            at += each.value
        elif each.code == EQUAL:
            at += each.if_true if accumulator == each.value else each.if_false
        else:
            raise AssertionError(f"no such instruction: {each}")


def ip_header(source: str) -> bytes:
    address = ipaddress.ip_address(source)
    if address.version == 4:
        return b"\x45" + bytes(11) + address.packed + bytes(4)
    return b"\x60" + bytes(7) + address.packed + bytes(16)


def tcp_segment(options: int, data: bytes) -> bytes:
    return bytes(12) + bytes(((5 + options) << 4,)) + bytes(7) + bytes(4 * options) + data


IPV4 = st.sampled_from([f"10.0.{net}.{host}" for net in range(3) for host in range(3)])
IPV6 = st.sampled_from([f"2001:db8:0:{net}::{host}" for net in range(3) for host in range(1, 3)] + ["::1", "fe80::5"])
ADDRESSES = st.one_of(IPV4, IPV6)


@given(
    st.lists(st.one_of(ADDRESSES, st.just("uid:7")), max_size=12), ADDRESSES, st.integers(0, 10), st.binary(max_size=9)
)
def test_filter_drops_only_data_of_penalized_peers(held: list[str], source: str, options: int, data: bytes) -> None:
    groups = [group_of(peer) for peer in held]
    wanted = DROP if data and group_of(source) in groups else PASS
    assert run(program(groups), ip_header(source), tcp_segment(options, data)) == wanted


def test_number_of_filtered_peers_is_bounded() -> None:
    peers = [f"2001:db8:0:{number:x}::/64" for number in range(MAX_PEERS + 1)]
    instructions = program(peers)
    assert len(instructions) < 4096  # BPF_MAXINSNS
    assert run(instructions, ip_header(f"2001:db8:0:{MAX_PEERS - 1:x}::1"), tcp_segment(0, b"x")) == DROP
    assert run(instructions, ip_header(f"2001:db8:0:{MAX_PEERS:x}::1"), tcp_segment(0, b"x")) == PASS


# ---- in the kernel ----


@pytest.fixture(params=["127.0.0.1", "::1"])
def listening(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    host = str(request.param)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        try:
            listening.bind((host, 0))
            listening.listen()
            socket_filter.attach(listening, program(["192.0.2.1"]))
        except OSError as error:
            pytest.skip(f"no {host}, or no socket filters: {error}")
        yield listening


@contextlib.contextmanager
def connected(listening: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_connection(listening.getsockname()[:2]) as client:
        server, _ = listening.accept()
        with server:
            yield client, server


def arrives(server: socket.socket, seconds: float) -> bool:
    server.settimeout(seconds)
    try:
        return bool(server.recv(100))
    except TimeoutError:
        return False


def test_data_is_held_until_the_filter_is_removed(listening: socket.socket) -> None:
    host = listening.getsockname()[0]
    with connected(listening) as (before, server_before):
        socket_filter.attach(listening, program([host]))
        with connected(listening) as (client, server):
            before.sendall(b"early")
            client.sendall(b"held")
            assert arrives(server_before, 10)
            assert not arrives(server, 0.3)
            socket_filter.detach(server)
            assert arrives(server, 10)


def test_a_listener_without_its_filter_makes_connections_without(listening: socket.socket) -> None:
    socket_filter.attach(listening, program([listening.getsockname()[0]]))
    socket_filter.detach(listening)
    with connected(listening) as (client, server):
        client.sendall(b"now")
        assert arrives(server, 10)
    with pytest.raises(OSError):
        socket_filter.detach(listening)


def test_the_kernel_takes_the_longest_program(listening: socket.socket) -> None:
    socket_filter.attach(listening, program([f"2001:db8:0:{number:x}::/64" for number in range(MAX_PEERS)]))
    assert struct.calcsize("=HBBI") == 8
