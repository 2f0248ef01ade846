"""ProcessHandle: a DeviceHandle whose thread is the main thread of a child process.

Tasks travel pickled over a socket pair between this process and a child that it started itself: never on a link that
anybody else can write to. The daemon's device processes do not use it; they speak frames of `Batch` bytes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from hearth_proto.frames import Frame, FrameReader, Kind, encode
from hearthd.device.platform.event_loop import Loop
from hearthd.device.process.device_handle import (
    CAPACITY,
    DeviceHandle,
    HandleClosed,
    HandleFull,
    InlineHandle,
    ServiceThread,
    raise_errors,
)

S = TypeVar("S")
R = TypeVar("R")

ONE_WAY, CALL, EXCLUSIVE, FLUSH = range(4)


class ProcessHandle(Generic[S]):
    """A DeviceHandle in a child process. `factory` and tasks have to be picklable (module-level functions)."""

    def __init__(self, factory: Callable[[], S], *, name: str = "device", capacity: int = CAPACITY) -> None:
        ours, theirs = socket.socketpair()
        self._link = ours
        self._capacity = capacity
        self._room = threading.Semaphore(capacity)
        self._lock = threading.Lock()
        self._closed = False
        self._outstanding: dict[int, Future[Any]] = {0: Future()}
        self._last_id = 0
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_child, args=(theirs, factory), name=name, daemon=True)
        self._process.start()
        theirs.close()
        self._reader = threading.Thread(target=self._read, name=f"{name}-replies", daemon=True)
        self._reader.start()
        try:
            self._outstanding[0].result()
        except BaseException:
            self.shutdown()
            raise

    def submit(self, task: Callable[[S], object], timeout: float | None = None) -> None:
        if not self._room.acquire(timeout=timeout):
            raise HandleFull(f"the device's queue had no room for {timeout} s; submit less at once, or wait longer")
        try:
            self._send(ONE_WAY, task, None)
        except BaseException:
            self._room.release()
            raise

    def call(self, task: Callable[[S], R]) -> R:
        future: Future[R] = Future()
        self._send(CALL, task, future)
        return future.result()

    def exclusive(self, task: Callable[[DeviceHandle[S]], R]) -> R:
        future: Future[R] = Future()
        self._send(EXCLUSIVE, task, future)
        return future.result()

    def flush(self) -> None:
        future: Future[list[Exception]] = Future()
        self._send(FLUSH, None, future)
        raise_errors(future.result())

    def shutdown(self, timeout: float = 30.0) -> bool:
        with self._lock:
            if not self._closed:
                self._closed = True
                with contextlib.suppress(OSError):  # it may have ended by itself
                    self._link.sendall(encode(Kind.SHUTDOWN))
        self._process.join(timeout)
        ended = self._process.exitcode is not None
        if not ended:
            self._process.kill()
            self._process.join()
        self._reader.join()
        self._link.close()
        return ended

    def _send(self, what: int, task: object, future: Future[Any] | None) -> None:
        payload = bytes([what]) + pickle.dumps(task)
        with self._lock:
            if self._closed:
                raise HandleClosed("the device handle has been shut down, or its process ended")
            self._last_id += 1
            if future is not None:
                self._outstanding[self._last_id] = future
            try:
                self._link.sendall(encode(Kind.CALL, payload, id=self._last_id))
            except OSError as error:
                self._outstanding.pop(self._last_id, None)
                raise HandleClosed("the device process has ended") from error

    def _read(self) -> None:
        reader = FrameReader()
        try:
            while data := self._link.recv(1 << 16):
                for frame in reader.feed(data):
                    self._reply(frame)
        except OSError:
            pass  # the same as its end
        with self._lock:
            self._closed = True
            lost, self._outstanding = self._outstanding, {}
        for future in lost.values():
            if not future.done():
                future.set_exception(HandleClosed("the device process ended before it answered"))
        self._room.release(self._capacity)  # who waits for room learns that there is nobody left to make any

    def _reply(self, frame: Frame) -> None:
        if frame.kind == Kind.ACK:
            self._room.release()
            return
        future = self._outstanding.pop(frame.id, None) if frame.id else self._outstanding[0]
        if future is None:
            return
        try:
            failed, value = pickle.loads(frame.payload)
        except Exception as error:
            failed, value = True, RuntimeError(f"the result does not come back from pickle: {error!r}")
        if failed:
            future.set_exception(value)
        else:
            future.set_result(value)


class _Child(Generic[S]):
    """The child's side: frames in, tasks run on the main thread, frames out."""

    def __init__(self, link: socket.socket, service: ServiceThread[S]) -> None:
        self._link = link
        self._service = service
        self._inline = InlineHandle(service)
        self._reader = FrameReader()

    def readable(self, _events: int) -> None:
        data = self._link.recv(1 << 16)
        if not data:
            self._service.loop.stop()
            return
        for frame in self._reader.feed(data):
            if frame.kind == Kind.SHUTDOWN:
                self._service.loop.stop()
            else:
                self._run(frame)

    def _run(self, frame: Frame) -> None:
        what = frame.payload[0]
        if what == ONE_WAY:
            self._link.sendall(encode(Kind.ACK))
            try:
                task = pickle.loads(frame.payload[1:])
            except Exception as error:
                self._service.keep(RuntimeError(f"the task does not come out of pickle here: {error!r}"))
                return
            self._service.run_one_way(task)
            return
        try:
            task = pickle.loads(frame.payload[1:])
            if what == CALL:
                value = task(self._service.service)
            elif what == EXCLUSIVE:
                value = task(self._inline)
            else:
                value = [_portable(error) for error in self._service.take_errors()]
            payload = pickle.dumps((False, value))
        except BaseException as error:
            payload = _pickled_error(error)
        self._link.sendall(encode(Kind.RESULT, payload, id=frame.id))


def _pickled_error(error: BaseException) -> bytes:
    return pickle.dumps((True, _portable(error)))


def _portable(error: BaseException) -> BaseException:
    """The error itself, or its text where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))  # an exception with arguments of its own may pickle and not come back
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _child(link: socket.socket, factory: Callable[[], S]) -> None:
    loop = Loop()
    try:
        service = ServiceThread(loop, factory)
    except BaseException as error:
        link.sendall(encode(Kind.RESULT, _pickled_error(error)))
        return
    link.sendall(encode(Kind.RESULT, pickle.dumps((False, None))))
    loop.add_reader(link.fileno(), _Child(link, service).readable)
    try:
        loop.run()
    finally:
        service.close()
