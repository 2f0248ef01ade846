"""The other end of the bare sockets: `python -m tests.bench.socket_peer BYTES`.

A thread for each connection moves bytes between it and allocated memory. Prints `ready PORT`, and ends when its
standard input ends.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading

REQUEST = struct.Struct("<cQQ")
"""``u`` or ``d``; the offset in the memory; the number of bytes."""


def receive(connection: socket.socket, into: memoryview) -> None:
    """Receives until `into` is full."""
    got = 0
    while got < len(into):
        count = connection.recv_into(into[got:])
        if not count:
            raise ConnectionError("the other end is gone")
        got += count


def _serve(connection: socket.socket, memory: memoryview) -> None:
    request = bytearray(REQUEST.size)
    try:
        while True:
            receive(connection, memoryview(request))
            way, at, size = REQUEST.unpack(request)
            if way == b"u":
                receive(connection, memory[at : at + size])
                connection.sendall(b"!")
            else:
                connection.sendall(memory[at : at + size])
    except ConnectionError:
        connection.close()


def main() -> None:
    memory = memoryview(bytearray(b"\x01") * int(sys.argv[1]))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"ready {listener.getsockname()[1]}", flush=True)

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_serve, args=(connection, memory), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
