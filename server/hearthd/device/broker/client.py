"""A broker from its device process's side."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hearth_proto import descriptors
from hearth_proto.reasons import Reason, Refusal
from hearthd.device import compile_messages as messages
from hearthd.device.compilation import Image, Job

_END_S = 3.0
_FILES_S = 10.0
"""For a broker to stop its workers and to clear up after them."""


class _Answer:
    """A request under way."""

    __slots__ = ("done", "head", "parts")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.head: dict[str, Any] | None = None
        self.parts: list[bytes] = []


class Broker:
    """Implements `hearthd.device.broker.images.ImageSource`. Threads may use it at once.

    A broker that has ended fails every request with INTERNAL; a confined process can start no other.
    """

    def __init__(self, link: socket.socket, files: socket.socket, pid: int) -> None:
        self.pid = pid
        self._link = link
        self._files = files
        self._sending = threading.Lock()
        self._asking_files = threading.Lock()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: dict[int, _Answer] = {}
        self._jobs: dict[int, Job] = {}
        self._reads = False
        self._over = False
        files.settimeout(_FILES_S)

    @property
    def ends(self) -> tuple[socket.socket, socket.socket]:
        """The sockets that lead to it."""
        return self._link, self._files

    # ---- ImageSource ----

    def ready(self) -> None:
        """Has the workers load their compiler."""
        self._ask({"ask": "ready"})

    def image(self, job: Job) -> tuple[Image, bool]:
        """Raises Refusal."""
        head, parts = messages.pack_job(job)
        answer, code = self._ask({**head, "ask": "image"}, parts, job)
        return messages.unpack_image(answer, code), bool(answer.get("cached"))

    def rest(self) -> None:
        self._send({"ask": "rest"})

    def cancel(self, job: Job) -> None:
        with self._lock:
            numbers = [number for number, asked in self._jobs.items() if asked is job]
        for number in numbers:
            self._send({"ask": "cancel", "which": number})

    def pin(self, tenant: str) -> None:
        self._send({"ask": "pin", "tenant": tenant})

    def close(self) -> None:
        """Ends the broker with all that it has started, and waits for it for a limited time."""
        self._send({"ask": "close"})
        deadline = time.monotonic() + _END_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.002)

    # ---- the rest ----

    def serve(self, recipe: Mapping[str, Any]) -> None:
        """Jobs are for the compiler of this recipe, which the broker cannot know by itself."""
        self._send({"ask": "recipe", "recipe": dict(recipe)})

    def library(self, name: str) -> bytes:
        """One of the backend's own libraries, compiled where it is not there yet. Raises Refusal."""
        _, parts = self._ask({"ask": "library", "name": name})
        return parts[0]

    def keep(self, nonce: bytes, file: int) -> None:
        """As `hearthd.device.broker.segments.Segments`."""
        self._ask_files({"ask": "keep", "nonce": nonce.hex()}, [file])

    def drop(self, nonce: bytes) -> None:
        with contextlib.suppress(OSError):
            self._ask_files({"ask": "drop", "nonce": nonce.hex()}, [])

    def fetch(self, nonce: bytes) -> int:
        files = self._ask_files({"ask": "fetch", "nonce": nonce.hex()}, [])
        if len(files) != 1:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return files[0]

    # ---- inside ----

    def _ask_files(self, body: dict[str, Any], files: Sequence[int]) -> list[int]:
        with self._asking_files:
            descriptors.send(self._files, body, files)
            message = descriptors.receive(self._files)
        if message is None:
            raise OSError(errno.EPIPE, "the broker has ended")
        answer, came = message
        if answer.get("errno"):
            raise OSError(int(answer["errno"]), os.strerror(int(answer["errno"])))
        return came

    def _send(self, head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
        """A request without an answer."""
        with contextlib.suppress(messages.Closed), self._sending:
            messages.send(self._link, head, parts)

    def _ask(
        self, head: dict[str, Any], parts: Sequence[bytes] = (), job: Job | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        answer = _Answer()
        with self._lock:
            if self._over:
                raise _ended()
            number = next(self._numbers)
            self._answers[number] = answer
            if job is not None:
                self._jobs[number] = job
            if not self._reads:
                self._reads = True
                threading.Thread(target=self._read, name="broker", daemon=True).start()
        try:
            self._send({**head, "id": number}, parts)
            answer.done.wait()
        finally:
            with self._lock:
                self._answers.pop(number, None)
                self._jobs.pop(number, None)
        if answer.head is None:
            raise _ended()
        if "reason" in answer.head:
            raise _refusal(answer.head)
        return answer.head, answer.parts

    def _read(self) -> None:
        with contextlib.suppress(messages.Closed):
            while True:
                head, parts = messages.receive(self._link)
                with self._lock:
                    answer = self._answers.get(head.get("id", 0))
                if answer is not None:
                    answer.head, answer.parts = head, parts
                    answer.done.set()
                del head, parts, answer
        with self._lock:
            self._over = True
            waiting = list(self._answers.values())
        for each in waiting:
            each.done.set()


class BrokeredLibraries:
    """The backend's own libraries, from a broker: each is an anonymous file of this process, open for its life."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._files: dict[str, int] = {}

    def library(self, name: str, _folder: Path, _sources: Sequence[str], *_more: str) -> Path:
        """The path of the shared object. Raises Refusal. Different ones are made at the same time."""
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = self._made(name)
        return Path(f"/proc/self/fd/{file}")

    def _made(self, name: str) -> int:
        code = memoryview(self._broker.library(name))
        file = os.memfd_create(f"hearth-{name}", os.MFD_CLOEXEC)
        while code:
            code = code[os.write(file, code) :]
        return file


def _refusal(head: dict[str, Any]) -> Refusal:
    if head.get("reason") == Reason.CANCELLED:
        return Refusal(Reason.CANCELLED, str(head.get("message", "")), fix=str(head.get("fix", "")))
    return messages.unpack_refusal(head)


def _ended() -> Refusal:
    return Refusal(
        Reason.INTERNAL,
        "The broker of this device process has ended; nothing more can be compiled in it.",
        fix="save what is needed, then have an operator replace the process: `hearth restart-device`",
    )
