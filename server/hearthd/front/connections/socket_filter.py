"""Socket filters: the kernel drops the data of some peers before a library reads any of it.

`program` is pure and creates a classic BPF program (Linux, `SO_ATTACH_FILTER`, which needs no privilege). A listening
TCP socket with the program completes handshakes as before, and each connection that it accepts has the program from its
first segment on. The kernel does not acknowledge the data that it drops. The peer's host sends it again, first after
about 0.2 s, so that no data is lost if the program is removed from the connection in time.

See also: https://docs.kernel.org/networking/filter.html.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

MAX_PEERS = 64
"""Maximum number of peers in one program, because the program runs for each segment that arrives."""
PASS, DROP = 0xFFFFFFFF, 0

LOAD_WORD, LOAD_BYTE, LOAD_LENGTH = 0x20, 0x30, 0x80
AND, SHIFT_RIGHT, SUBTRACT_X, COPY_TO_X = 0x54, 0x74, 0x1C, 0x07
EQUAL, JUMP, RETURN = 0x15, 0x05, 0x06
IP_HEADER = 0xFFF00000
"""SKF_NET_OFF: base of offsets into the IP header. Other offsets count from the TCP header."""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h
_INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter
_PROGRAM = struct.Struct("@HP")  # struct sock_fprog


class Instruction(NamedTuple):
    """A BPF instruction.

    The accumulator is compared with, or changed by, `value`. A comparison skips `if_true` instructions if it is true,
    otherwise `if_false` instructions.
    """

    code: int
    value: int = 0
    if_true: int = 0
    if_false: int = 0


def program(peers: Iterable[str]) -> list[Instruction]:
    """Returns a program that drops segments with data from these peers.

    Peers are named as by `peers.group_of`: IPv4 and IPv6 addresses, and IPv6 networks. Other names, and peers beyond
    `MAX_PEERS`, are left out.
    """
    ipv4: list[Instruction] = [Instruction(LOAD_WORD, IP_HEADER + 12)]
    ipv6: list[Instruction] = []
    for peer in list(peers)[:MAX_PEERS]:
        try:
            network = ipaddress.ip_network(peer)
        except ValueError:
            continue
        words = [
            int.from_bytes(network.network_address.packed[offset : offset + 4])
            for offset in range(0, network.prefixlen // 8, 4)
        ]
        if network.version == 4:
            ipv4 += [Instruction(EQUAL, words[0], 0, 1), Instruction(RETURN, DROP)]
            continue
        for number, word in enumerate(words):
            skip = 2 * (len(words) - number - 1) + 1
            ipv6 += [Instruction(LOAD_WORD, IP_HEADER + 8 + 4 * number), Instruction(EQUAL, word, 0, skip)]
        ipv6.append(Instruction(RETURN, DROP))
    accept = Instruction(RETURN, PASS)
    return [
        # Loads the length of the data after the TCP header into the accumulator.
        Instruction(LOAD_BYTE, 12),
        Instruction(AND, 0xF0),
        Instruction(SHIFT_RIGHT, 2),
        Instruction(COPY_TO_X),
        Instruction(LOAD_LENGTH),
        Instruction(SUBTRACT_X),
        Instruction(EQUAL, 0, 0, 1),
        accept,
        # Branches on the IP version.
        Instruction(LOAD_BYTE, IP_HEADER),
        Instruction(SHIFT_RIGHT, 4),
        Instruction(EQUAL, 4, 1, 0),
        Instruction(JUMP, len(ipv4) + 1),
        *ipv4,
        accept,
        *ipv6,
        accept,
    ]


def attach(sock: socket.socket, instructions: list[Instruction]) -> None:
    """Sets the program of a socket, replacing an earlier one.

    Raises `OSError` if the kernel or a container's policy does not allow filters.
    """
    packed = b"".join(
        _INSTRUCTION.pack(instruction.code, instruction.if_true, instruction.if_false, instruction.value)
        for instruction in instructions
    )
    buffer = ctypes.create_string_buffer(packed, len(packed))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAM.pack(len(instructions), ctypes.addressof(buffer)))


def detach(sock: socket.socket) -> None:
    """Removes the program of a socket. Raises `OSError` if it has none."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
