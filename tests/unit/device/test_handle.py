"""The contract of DeviceHandle, over both implementations: a thread of this process, and a child process."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from hearthd.device.process.child_handle import ProcessHandle
from hearthd.device.process.device_handle import DeviceHandle, HandleClosed, HandleFull, TaskErrors, ThreadHandle


class Service:
    """What the device thread owns in these tests; every method proves that it runs on that thread."""

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.items: list[Any] = []
        self.gate = threading.Event()

    def check(self) -> None:
        assert threading.get_ident() == self.owner, "called off the device thread"

    def close(self) -> None:
        self.check()


def append(item: Any, service: Service) -> None:
    service.check()
    service.items.append(item)


def items(service: Service) -> list[Any]:
    service.check()
    return list(service.items)


def pid(_: Service) -> int:
    return os.getpid()


def fail(text: str, service: Service) -> None:
    service.check()
    raise ValueError(text)


class OddError(Exception):
    """Does not come back from pickle: it wants two arguments."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd {a} {b}")


def fail_oddly(_: Service) -> None:
    raise OddError(1, 2)


def leave(status: int, _: Service) -> None:
    raise SystemExit(status)


def comes_back_only_here(_: Service) -> object:
    return Homebound()


class Unwelcome:
    """A task that cannot be unpickled where it should run."""

    def __call__(self, _: Service) -> None:
        raise AssertionError("it never gets there")

    def __reduce__(self) -> tuple[object, ...]:
        return refuse_to_be_made, ()


class Homebound:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return refuse_to_be_made, ()


def refuse_to_be_made() -> None:
    raise ValueError("not here")


def processor_time(_: Service) -> float:
    return time.process_time()


def sleep(seconds: float, _: Service) -> None:
    time.sleep(seconds)


def nested(handle: DeviceHandle[Service]) -> list[Any]:
    handle.submit(partial(append, "inner one-way"))
    handle.call(partial(append, "inner call"))
    assert handle.exclusive(inline_items) == handle.call(items)
    return handle.call(items)


def inline_items(handle: DeviceHandle[Service]) -> list[Any]:
    return handle.call(items)


def fail_inside(text: str, handle: DeviceHandle[Service]) -> None:
    handle.call(partial(fail, text))


def shut_down_inside(handle: DeviceHandle[Service]) -> None:
    handle.shutdown()


def broken_factory() -> Service:
    raise RuntimeError("no device here")


Make = Callable[..., DeviceHandle[Service]]


@pytest.fixture(params=[ThreadHandle, ProcessHandle], ids=["thread", "process"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[DeviceHandle[Service]] = []

    def factory(**options: int) -> DeviceHandle[Service]:
        handle: DeviceHandle[Service] = request.param(Service, **options)
        made.append(handle)
        return handle

    yield factory
    for handle in made:
        assert handle.shutdown()


def test_state_lives_on_the_device_thread(make: Make) -> None:
    handle = make()
    handle.submit(partial(append, 1))
    assert handle.call(items) == [1]


def test_fifo_for_one_producer(make: Make) -> None:
    handle = make()
    for number in range(500):
        handle.submit(partial(append, number))
    assert handle.call(items) == list(range(500))


def test_fifo_for_each_of_many_producers(make: Make) -> None:
    handle = make()

    def produce(name: int) -> None:
        for number in range(100):
            handle.submit(partial(append, (name, number)))

    threads = [threading.Thread(target=produce, args=(name,)) for name in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = handle.call(items)
    assert len(everything) == 1000
    for name in range(10):
        assert [number for who, number in everything if who == name] == list(range(100))


def test_a_lone_task_runs_at_once(tmp_path: Any, make: Make) -> None:
    handle = make()
    mark = tmp_path / "ran"
    handle.submit(partial(touch, str(mark)))
    deadline = time.monotonic() + 5
    while not mark.exists():  # nothing else is submitted and nobody flushes
        assert time.monotonic() < deadline, "a lone one-way task was held back"
        os.sched_yield()


def touch(path: str, _: Service) -> None:
    with open(path, "w"):  # noqa: PTH123
        pass


def test_call_raises_what_the_task_raised(make: Make) -> None:
    handle = make()
    with pytest.raises(ValueError, match="boom 1"):
        handle.call(partial(fail, "boom 1"))
    with pytest.raises(ValueError, match="boom 2"):
        handle.call(partial(fail, "boom 2"))
    handle.submit(partial(append, "alive"))
    assert handle.call(items) == ["alive"]


def test_an_exception_that_cannot_travel_keeps_its_text(make: Make) -> None:
    with pytest.raises(Exception, match="odd 1 2"):
        make().call(fail_oddly)


def test_one_way_errors_are_kept_for_flush(make: Make) -> None:
    handle = make()
    handle.submit(partial(fail, "first"))
    handle.submit(partial(append, "between"))
    handle.submit(partial(fail, "second"))
    with pytest.raises(TaskErrors) as caught:
        handle.flush()
    assert [str(error) for error in caught.value.exceptions] == ["first", "second"]
    handle.flush()
    assert handle.call(items) == ["between"]


def test_one_way_errors_that_cannot_travel_are_told_all_the_same(make: Make) -> None:
    handle = make()
    handle.submit(fail_oddly)
    handle.submit(partial(fail, "plain"))
    with pytest.raises(TaskErrors) as caught:
        handle.flush()
    texts = [str(error) for error in caught.value.exceptions]
    assert len(texts) == 2 and "odd 1 2" in texts[0] and texts[1] == "plain"


def test_what_ends_a_thread_elsewhere_ends_only_the_task_here(make: Make) -> None:
    handle = make()
    handle.submit(partial(leave, 3))
    handle.submit(partial(append, "alive"))
    with pytest.raises(TaskErrors, match="one-way tasks failed") as caught:
        handle.flush()
    assert "SystemExit: 3" in str(caught.value.exceptions[0])
    with pytest.raises(SystemExit):
        handle.call(partial(leave, 4))
    assert handle.call(items) == ["alive"]


def test_repeated_exceptions_are_each_kept(make: Make) -> None:
    handle = make()
    for turn in range(20):
        with pytest.raises(ValueError, match=f"^{turn}$"):
            handle.call(partial(fail, str(turn)))
        with pytest.raises(ValueError, match=f"^inner {turn}$"):
            handle.exclusive(partial(fail_inside, f"inner {turn}"))
        handle.submit(partial(fail, f"one-way {turn}"))
    with pytest.raises(TaskErrors) as caught:
        handle.flush()
    assert [str(error) for error in caught.value.exceptions] == [f"one-way {turn}" for turn in range(20)]


def test_a_result_that_does_not_travel_fails_its_call_alone() -> None:
    handle: ProcessHandle[Service] = ProcessHandle(Service)
    try:
        with pytest.raises(RuntimeError, match="does not come back"):
            handle.call(comes_back_only_here)
        with pytest.raises(Exception, match=r"pickle|not here"):
            handle.call(Unwelcome())
        handle.submit(Unwelcome())
        with pytest.raises(TaskErrors, match="one-way tasks failed") as caught:
            handle.flush()
        assert "does not come out of pickle" in str(caught.value.exceptions[0])
        assert handle.call(items) == []
    finally:
        assert handle.shutdown()


def test_exclusive_runs_inline_and_nothing_interleaves(make: Make) -> None:
    handle = make()
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            handle.submit(partial(append, "other"))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        seen = handle.exclusive(nested)
    finally:
        stop.set()
        thread.join()
    place = seen.index("inner one-way")
    assert seen[place : place + 2] == ["inner one-way", "inner call"]


def test_it_cannot_be_shut_down_from_inside(make: Make) -> None:
    with pytest.raises(RuntimeError, match="own thread"):
        make().exclusive(shut_down_inside)


def test_back_pressure_when_full(make: Make) -> None:
    handle = make(capacity=4)
    handle.submit(partial(sleep, 0.3))
    refused = 0
    for number in range(50):
        try:
            handle.submit(partial(append, number), timeout=0.0)
        except HandleFull:
            refused += 1
    assert refused >= 40, "the queue has a bound"
    handle.submit(partial(append, "waited"))
    assert handle.call(items)[-1] == "waited"


def test_shutdown_runs_what_is_queued(make: Make, tmp_path: Any) -> None:
    handle = make()
    mark = tmp_path / "last"
    handle.submit(partial(sleep, 0.1))
    handle.submit(partial(touch, str(mark)))
    assert handle.shutdown()
    assert mark.exists()
    assert handle.shutdown(), "twice is once"
    with pytest.raises(HandleClosed):
        handle.submit(partial(append, 1))
    with pytest.raises(HandleClosed):
        handle.call(items)


def test_a_handle_made_after_a_shutdown_has_fresh_state(make: Make) -> None:
    old = make()
    old.submit(partial(append, "old"))
    assert old.shutdown()
    assert make().call(items) == []


def test_a_task_is_let_go_of_once_it_has_run() -> None:
    """What a task holds on to (arrays, handles) lives no longer than it has to."""
    handle = ThreadHandle(Service)
    try:
        for use in (handle.submit, handle.call):
            payload = Service()
            gone = weakref.ref(payload)
            use(partial(append_type, payload))
            handle.flush()
            del payload
            handle.flush()  # the loop's own last reference is that to the task before
            assert gone() is None
    finally:
        assert handle.shutdown()


def append_type(item: object, service: Service) -> None:
    service.items.append(type(item).__name__)


def test_the_service_is_made_once_whoever_comes_first() -> None:
    made: list[int] = []

    def factory() -> Service:
        made.append(threading.get_ident())
        time.sleep(0.05)  # the others arrive while it is being made
        return Service()

    handles: list[ThreadHandle[Service]] = []
    lock = threading.Lock()

    def use(number: int) -> None:
        with lock:
            if not handles:
                handles.append(ThreadHandle(factory))
        handles[0].submit(partial(append, number))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert sorted(handles[0].call(items)) == [0, 1, 2, 3]
        assert made == [handles[0].call(owner)]
    finally:
        assert handles[0].shutdown()


def owner(service: Service) -> int:
    return service.owner


def test_an_idle_handle_uses_no_processor_time(make: Make) -> None:
    handle = make()
    handle.call(items)
    began, clock = handle.call(processor_time), time.perf_counter()
    time.sleep(0.4)  # the measured quantity itself: nothing happens
    used = handle.call(processor_time) - began
    assert used < 0.1 * (time.perf_counter() - clock)


def test_two_handles_share_nothing(make: Make) -> None:
    one, two = make(), make()
    one.submit(partial(append, 1))
    assert one.call(items) == [1]
    assert two.call(items) == []


@pytest.mark.parametrize("kind", [ThreadHandle, ProcessHandle])
def test_a_service_that_cannot_start_says_why(kind: Any) -> None:
    with pytest.raises(RuntimeError, match="no device here"):
        kind(broken_factory)


def test_a_producer_that_waits_for_room_learns_that_the_process_is_gone() -> None:
    handle: ProcessHandle[Service] = ProcessHandle(Service, capacity=2)
    child = handle.call(pid)
    outcome: list[BaseException] = []

    def produce() -> None:
        try:
            while True:
                handle.submit(partial(sleep, 60))
        except HandleClosed as error:
            outcome.append(error)

    producer = threading.Thread(target=produce)
    producer.start()
    while handle._room._value:  # type: ignore[attr-defined]
        os.sched_yield()
    os.kill(child, 9)
    producer.join(10)
    assert len(outcome) == 1
    assert handle.shutdown()


def test_a_killed_process_ends_every_call() -> None:
    handle: ProcessHandle[Service] = ProcessHandle(Service)
    child = handle.call(pid)
    assert child != os.getpid()
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            handle.call(partial(sleep, 60))
        except HandleClosed as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    os.kill(child, 9)
    waiter.join(10)
    assert len(outcome) == 1
    with pytest.raises(HandleClosed):
        handle.call(items)
    assert handle.shutdown()
