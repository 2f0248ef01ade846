"""Client of the broker, used in the device process."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hearth_proto import descriptors
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Image, Job
from hearthd.device.compiler import protocol
from hearthd.device.compiler.cancel_token import CancelToken

_END_S = 3.0
"""Seconds that `close` waits for the broker to stop its workers and clean up."""
_FILES_S = 10.0
"""Seconds without an answer after which a request about a segment fails."""
_RENEW_S = 30.0
"""Seconds that a request waits for a new broker after the broker was lost."""
_TRIES = 2
"""Number of brokers that a request is sent to if each is lost before it answers."""


class _Answer:
    """A pending request: the event that its caller waits for, and the answer."""

    __slots__ = ("done", "head", "parts")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.head: dict[str, Any] | None = None
        self.parts: list[bytes] = []


class Broker:
    """Client of the broker. Implements `hearthd.device.compiler.images.ImageSource`. Thread-safe.

    If a broker ends, its keeper starts another one and sends this process the sockets that lead to it; pending requests
    are sent again to the new broker. If the keeper has ended, every request fails with INTERNAL, because a confined
    process cannot start another keeper.
    """

    def __init__(self, link: socket.socket, files: socket.socket, renewals: socket.socket, pid: int) -> None:
        """Uses sockets that are already connected to a broker. `pid` is the process ID of the keeper."""
        self.pid = pid
        self._link = link
        self._files = files
        self._renewals = renewals
        self._sending = threading.Lock()
        self._asking_files = threading.Lock()
        self._changed = threading.Condition()
        """Guards the attributes below. Notified when a new broker has taken over, or when there will be none."""
        self._numbers = itertools.count(1)
        self._answers: dict[int, _Answer] = {}
        self._reads = False
        self._lost = False
        """True from the end of a broker until the next one has started."""
        self._over = False
        """True if the keeper has ended, so that no further broker starts."""
        self._brokers = 1
        """Number of brokers so far, including the current one."""
        self._recipe: dict[str, Any] | None = None
        self._tenant: str | None = None
        self.on_loss: Callable[..., None] = lambda *, replaced: None
        """Called on a separate thread when a broker has ended; `replaced`: another broker has taken its place. The end
        of a broker is not noticed before the first request."""
        self._kept_segments: dict[bytes, int] = {}
        """Segments that the broker keeps, as nonce -> file descriptor of this process."""
        files.settimeout(_FILES_S)

    @property
    def ends(self) -> tuple[socket.socket, ...]:
        """The sockets that lead to the broker and to its keeper."""
        return self._link, self._files, self._renewals

    # ---- ImageSource ----

    def ready(self) -> None:
        """Makes the compile workers load their compiler."""
        self._request({"ask": "ready"})

    def image(self, job: Job, token: CancelToken | None = None) -> tuple[Image, bool]:
        """Returns the image of the job, and True if a cache had it. Raises Refusal, also if the token cancels it."""
        head, parts = protocol.pack_job(job)
        answer, code = self._request({**head, "ask": "image"}, parts, token)
        return protocol.unpack_image(answer, code), bool(answer.get("cached"))

    def release_idle(self) -> None:
        """Makes the compile workers release resources that are not needed while there is no work. Does not wait."""
        self._send({"ask": "rest"})

    def pin(self, tenant: str) -> None:
        """Attributes all later jobs to the tenant. The first tenant is also sent to each broker that takes over."""
        with self._changed:
            if self._tenant is None:
                self._tenant = tenant
        self._send({"ask": "pin", "tenant": tenant})

    def close(self) -> None:
        """Ends the broker and every process that it has started. Waits at most 3 seconds for the end."""
        self._send({"ask": "close"})
        deadline = time.monotonic() + _END_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.002)

    # ---- requests beyond ImageSource ----

    def serve(self, recipe: Mapping[str, Any]) -> None:
        """Sets the compiler of all jobs by its recipe, which the broker cannot determine by itself."""
        with self._changed:
            self._recipe = dict(recipe)
        self._send({"ask": "recipe", "recipe": dict(recipe)})

    def library(self, name: str) -> bytes:
        """Returns one of the backend's libraries, compiled if necessary. Raises Refusal."""
        _, parts = self._request({"ask": "library", "name": name})
        return parts[0]

    def keep(self, nonce: bytes, file: int) -> None:
        """Makes the broker keep an exchange segment; see `hearthd.device.platform.segment_exchange.SegmentExchange`."""
        self._request_files({"ask": "keep", "nonce": nonce.hex()}, [file])
        with self._changed:
            self._kept_segments[nonce] = file

    def drop(self, nonce: bytes) -> None:
        """Makes the broker end the exchange of a segment. Ignores errors, because a lost broker has ended it anyway."""
        with self._changed:
            self._kept_segments.pop(nonce, None)
        with contextlib.suppress(OSError):
            self._request_files({"ask": "drop", "nonce": nonce.hex()}, [])

    def fetch(self, nonce: bytes) -> int:
        """Returns a new descriptor of the segment that a process keeps under the nonce; the caller must close it.

        May block for seconds. Raises OSError if no process keeps the segment, or if the broker does not answer.
        """
        files = self._request_files({"ask": "fetch", "nonce": nonce.hex()}, [])
        if len(files) != 1:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return files[0]

    # ---- requests and answers ----

    def _request_files(self, body: dict[str, Any], files: Sequence[int]) -> list[int]:
        for _ in range(_TRIES):
            with self._asking_files:
                brokers = self._brokers
                message = self._exchange_files(body, files)
            if message is not None:
                answer, received = message
                if answer.get("errno"):
                    raise OSError(int(answer["errno"]), os.strerror(int(answer["errno"])))
                return received
            with self._changed:
                self._start_reading()
                self._changed.wait_for(lambda brokers=brokers: self._brokers > brokers or self._over, _RENEW_S)  # type: ignore[misc]
        raise OSError(errno.EPIPE, "the broker has ended")

    def _exchange_files(self, body: dict[str, Any], files: Sequence[int]) -> tuple[dict[str, Any], list[int]] | None:
        """Sends one request about segments; returns its answer, or None if the broker has ended.

        Raises TimeoutError. An answer that arrives after that is ignored by the next request.
        """
        number = next(self._numbers)
        try:
            descriptors.send(self._files, {**body, "id": number}, files)
            while (message := descriptors.receive(self._files)) is not None and message[0].get("id") != number:
                for file in message[1]:
                    os.close(file)
            return message
        except TimeoutError:
            raise
        except OSError:
            return None

    def _send(self, head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
        """Sends a request without waiting for an answer. Raises Refusal(COMPILE_LIMIT) if it is too large."""
        with contextlib.suppress(protocol.WorkerConnectionClosed), self._sending:
            protocol.send(self._link, head, parts, max_bytes=protocol.MAX_REQUEST)

    def _request(
        self, head: dict[str, Any], parts: Sequence[bytes] = (), token: CancelToken | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        token = token or CancelToken()
        for _ in range(_TRIES):
            token.check()
            answer = self._request_once(head, parts, token)
            if answer.head is not None:
                if "reason" in answer.head:
                    raise _refusal(answer.head)
                return answer.head, answer.parts
        raise _lost()

    def _request_once(self, head: dict[str, Any], parts: Sequence[bytes], token: CancelToken) -> _Answer:
        """Sends a request to the current broker and returns its answer, without a head if the broker was lost."""
        answer = _Answer()
        with self._changed:
            self._start_reading()
            if not self._changed.wait_for(lambda: self._over or not self._lost, _RENEW_S):
                raise _lost()
            if self._over:
                raise _ended()
            number = next(self._numbers)
            self._answers[number] = answer
        try:
            self._send({**head, "id": number}, parts)
            with token.on_cancel(partial(self._send, {"ask": "cancel", "which": number})):
                answer.done.wait()
        finally:
            with self._changed:
                self._answers.pop(number, None)
        return answer

    # ---- the reading thread ----

    def _start_reading(self) -> None:
        if not self._reads:
            self._reads = True
            threading.Thread(target=self._read, name="broker", daemon=True).start()

    def _read(self) -> None:
        """Receives answers, from one broker after the other. Runs on a separate thread."""
        while True:
            with contextlib.suppress(protocol.WorkerConnectionClosed):
                self._take_answers()
            with self._changed:
                self._lost = True
                waiting = list(self._answers.values())
                self._answers.clear()
            for answer in waiting:
                answer.done.set()
            renewed = self._renew()
            with self._changed:
                self._lost, self._over = not renewed, not renewed
                self._brokers += renewed
                self._changed.notify_all()
            self.on_loss(replaced=renewed)
            if not renewed:
                return

    def _take_answers(self) -> None:
        """Receives answers and wakes their callers.

        Raises `protocol.WorkerConnectionClosed` when the broker is gone.
        """
        while True:
            head, parts = protocol.receive(self._link)
            with self._changed:
                answer = self._answers.get(head.get("id", 0))
            if answer is not None:
                answer.head, answer.parts = head, parts
                answer.done.set()
            del head, parts, answer

    def _renew(self) -> bool:
        """Waits for the sockets of the next broker. Returns False if there is no next broker.

        Sends the new broker the state that the previous one had (recipe, tenant, segments).
        """
        try:
            message = descriptors.receive(self._renewals)
        except (OSError, ValueError):
            return False
        if message is None or len(message[1]) != 2:
            return False
        link, files = message[1]
        with self._sending:
            self._link.close()
            self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=link)
        with self._asking_files:
            self._files.close()
            self._files = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=files)
            self._files.settimeout(_FILES_S)
            with self._changed:
                recipe, tenant, kept_segments = self._recipe, self._tenant, dict(self._kept_segments)
            for nonce, file in kept_segments.items():
                with contextlib.suppress(OSError):  # the file is being dropped at this moment
                    self._exchange_files({"ask": "keep", "nonce": nonce.hex()}, [file])
        if recipe is not None:
            self._send({"ask": "recipe", "recipe": recipe})
        if tenant is not None:
            self._send({"ask": "pin", "tenant": tenant})
        return True


class BrokeredLibraries:
    """Source of the backend's own libraries, which a broker compiles.

    Each library is an anonymous file of this process that stays open for the process's lifetime.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._files: dict[str, int] = {}

    def library(self, name: str) -> Path:
        """Returns the path of the shared object. Raises Refusal. Different libraries may be compiled concurrently."""
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            file = self._files.get(name)
            if file is None:
                code = self._broker.library(name)
                file = os.memfd_create(f"hearth-{name}", os.MFD_CLOEXEC)
                with os.fdopen(file, "wb", closefd=False) as stream:
                    stream.write(code)
                self._files[name] = file
        return Path(f"/proc/self/fd/{file}")


def _refusal(head: dict[str, Any]) -> Refusal:
    if head.get("reason") == Reason.CANCELLED:
        return Refusal(Reason.CANCELLED, str(head.get("message", "")), fix=str(head.get("fix", "")))
    return protocol.unpack_refusal(head)


def _lost() -> Refusal:
    return Refusal(
        Reason.DEVICE_UNAVAILABLE,
        "The broker of this device process, which compiles for it, has ended and is being replaced.",
        fix="Try again in a moment; if the same source ends it each time, change the source: see the daemon's log.",
        retry_after_s=1.0,
    )


def _ended() -> Refusal:
    return Refusal(
        Reason.INTERNAL,
        "The broker of this device process and its keeper have ended; nothing more can be compiled in it.",
        fix="save what is needed and close the session: the process is replaced when its last session has ended, or "
        "when an operator does so with `hearth restart-device`",
    )
