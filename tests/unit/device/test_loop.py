"""The loop of a device process: what it does before short sleeps, and that it misses nothing while it does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hearthd.device.platform.event_loop import Loop
from hearthd.device.platform.spin_policy import Spinning


class Napping:
    """A loop that naps whenever it has nothing to do, on a thread of its own. `awake` is what it answers when asked."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.awake: bool | None = None
        self.asked = self.turns = 0
        self.loop.on_nap = self._nap
        self.loop.on_poll = self._poll
        self._thread = threading.Thread(target=self.loop.run)

    def __enter__(self) -> Napping:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.loop.close()

    def _nap(self) -> bool | None:
        self.asked += 1
        return self.awake

    def _poll(self) -> float:
        self.turns += 1
        return 1e-4


@pytest.fixture
def napping() -> Iterator[Napping]:
    yield Napping()


def test_a_task_is_run_while_the_loop_asks_again_and_again(napping: Napping) -> None:
    with napping:
        done = threading.Event()
        napping.loop.post(done.set)
        assert done.wait(10)


def test_a_socket_is_heard_while_the_loop_asks_again_and_again(napping: Napping) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        heard = threading.Event()

        def readable(_events: int) -> None:
            theirs.recv(1)
            heard.set()

        napping.loop.add_reader(theirs.fileno(), readable)
        with napping:
            before = napping.turns
            ours.send(b"x")
            assert heard.wait(10)
            assert napping.turns <= before + 3, "and nothing else was done meanwhile"


def test_who_is_awake_goes_round_at_once_and_still_hears_sockets(napping: Napping) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        heard = threading.Event()

        def readable(_events: int) -> None:
            theirs.recv(1)
            heard.set()

        napping.loop.add_reader(theirs.fileno(), readable)
        napping.awake = True
        with napping:
            ours.send(b"x")
            assert heard.wait(10)


def test_a_nap_sleeps_as_long_as_it_should(napping: Napping) -> None:
    napping.awake = False
    with napping:
        before = napping.turns
        time.sleep(0.05)
        assert 1 < napping.turns - before < 550, "some 100 us each"
    assert napping.asked <= napping.turns, "asked once each"


def test_who_lingers_hears_sockets_and_tasks_without_a_sleep_and_sleeps_at_last() -> None:
    """What comes soon behind something that was done is heard while it looks, what comes late while it sleeps."""
    ours, theirs = socket.socketpair()
    loop, heard = Loop(), threading.Semaphore(0)
    loop.lingering = Spinning(0.05)

    def readable(_events: int) -> None:
        theirs.recv(1)
        heard.release()

    loop.add_reader(theirs.fileno(), readable)
    thread = threading.Thread(target=loop.run)
    with ours, theirs:
        thread.start()
        for pause in (0.0, 0.0, 0.2, 0.0, 0.01):
            time.sleep(pause)
            ours.send(b"x")
            assert heard.acquire(timeout=10)
            loop.post(heard.release)
            assert heard.acquire(timeout=10)
        time.sleep(0.3)  # by now it has to sleep
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.2
        loop.stop()
        thread.join(10)
        assert not thread.is_alive()
    loop.close()
