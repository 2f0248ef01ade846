"""Accept loops: every connection is handed on, and no error of accept ends or blocks the event loop."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from hearthd.front.connections.accept_loop import AcceptLoop


def listening() -> socket.socket:
    made = socket.create_server(("127.0.0.1", 0))
    made.setblocking(False)
    return made


def test_connections_are_accepted_until_the_loop_stops() -> None:
    async def scenario() -> None:
        came: asyncio.Queue[tuple[socket.socket, tuple[str, int]]] = asyncio.Queue()
        loop = AcceptLoop("test", lambda *accepted: came.put_nowait(accepted), lambda error: None)
        first, second = listening(), listening()
        addresses = [one.getsockname() for one in (first, second)]
        loop.listen(first)
        loop.listen(second)
        for address in addresses:
            with socket.create_connection(address) as client:
                accepted, where = await asyncio.wait_for(came.get(), 10)
                assert where == client.getsockname()
                accepted.close()
        working = asyncio.Event()
        loop.start_task(working.wait())  # type: ignore[arg-type]
        await asyncio.wait_for(loop.stop(), 10)
        with pytest.raises(OSError):
            socket.create_connection(addresses[0], timeout=10)

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED])
def test_an_error_of_accept_is_waited_out(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shortage of resources is reported. An error that persists lets the event loop run other tasks."""

    async def scenario() -> None:
        loop, failing = asyncio.get_running_loop(), True
        accept = loop.sock_accept

        async def sock_accept(sock: socket.socket) -> tuple[socket.socket, object]:
            if failing:
                raise OSError(number, "no")
            return await accept(sock)

        monkeypatch.setattr(loop, "sock_accept", sock_accept)
        shortages: list[OSError] = []
        came = asyncio.Event()

        def accepted(connection: socket.socket, where: object) -> None:
            connection.close()
            came.set()

        listener = AcceptLoop("test", accepted, shortages.append, retry_s=0.001)
        made = listening()
        listener.listen(made)
        await asyncio.sleep(0.05)
        assert bool(shortages) is (number != errno.ECONNABORTED)
        failing = False
        with socket.create_connection(made.getsockname()):
            await asyncio.wait_for(came.wait(), 10)
        await listener.stop()

    asyncio.run(scenario())
