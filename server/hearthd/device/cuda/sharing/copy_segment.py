"""The segment of host memory that the two processes of a copy communicator share.

Its first page has the state of the ranks, the counters of pieces, which the devices write and wait for, and the nonce.
The windows in host memory, one for each rank, follow that page; they take no memory unless a rank touches them.

The segment is an anonymous file. Its creator keeps it for the other process under a random number, the nonce; so does
each rank with its window in device memory, under a number that both derive from the nonce.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import secrets
import threading
import time

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.platform.segment_exchange import hand_over
from hearthd.shared import sealed_memory

RANKS = 2

SLOT_BYTES = 16 << 20
"""Largest piece of a copy."""
SLOTS = 2
"""Pieces that a window holds: one is filled while the other is read."""
WINDOW_BYTES = SLOT_BYTES * SLOTS

PAGE = 4096
SIZE = PAGE + RANKS * WINDOW_BYTES

PROOF_BYTES = 16
"""Bytes at the beginning of a window by which the peer checks that it reads the right memory."""

RELEASED = 1 << 62
"""Value of a counter for which no device waits any longer."""

OFFER, MAPPED, _FILLED, _DRAINED = 0, 8, 16, 24
"""Indices of the words of rank 0; those of rank 1 follow. All are 64 bytes apart, so that they share no cache line."""

_NONCE_BYTES = 16
_NONCE_OFFSET = 512
"""Offset of the nonce in bytes. The words of both ranks are before it."""

_JOIN_SECONDS = 60.0
_POLL_SECONDS = 0.001


class CopySegment:
    """The segment, mapped in this process."""

    def __init__(self, nonce: bytes, file: int) -> None:
        """Maps the segment. The file remains the caller's. Raises OSError, ValueError."""
        if (
            os.fstat(file).st_size != SIZE
            or fcntl.fcntl(file, fcntl.F_GET_SEALS) & sealed_memory.SEALS != sealed_memory.SEALS
            or os.pread(file, _NONCE_BYTES, _NONCE_OFFSET) != nonce
        ):
            raise ValueError("the file is not the segment of a copy communicator")
        self._nonce = nonce
        self._memory = mmap.mmap(file, SIZE)
        self._words = (ctypes.c_uint64 * (PAGE // 8)).from_buffer(self._memory)
        self.address = ctypes.addressof(self._words)
        """Address of the first page."""

    def window_address(self, rank: int) -> int:
        """Returns the address of the window in host memory that `rank` fills."""
        return self.address + PAGE + rank * WINDOW_BYTES

    def window_nonce(self, rank: int) -> bytes:
        """Returns the number under which `rank` keeps its window in device memory for the other process."""
        return hashlib.sha256(self._nonce + bytes([rank])).digest()[: len(self._nonce)]

    def proof(self, rank: int) -> bytes:
        """Returns the first bytes of the window of `rank` in device memory, before any copy."""
        return hashlib.sha256(b"window" + self._nonce + bytes([rank])).digest()[:PROOF_BYTES]

    # ---- joining ----

    def exchange(self, word: int, rank: int, yes: bool) -> bool:
        """Sends `yes` to the other rank, and returns True if both ranks have sent True.

        `word`: `OFFER`, this rank offers a window in device memory; `MAPPED`, it has mapped the other rank's window.
        Blocks until the other rank has called it. Raises Refusal(COMMUNICATOR_FAILED).
        """
        # 1 means True, and 2 means False
        self._words[word + 32 * rank] = 1 if yes else 2
        deadline = time.monotonic() + _JOIN_SECONDS
        while not (answer := self._words[word + 32 * (1 - rank)]):
            if time.monotonic() > deadline:
                raise Refusal(
                    Reason.COMMUNICATOR_FAILED,
                    f"The other device of the copy did not join within {_JOIN_SECONDS:g} s.",
                    fix="copy again; a new connection of the two devices is made",
                )
            time.sleep(_POLL_SECONDS)
        return yes and answer == 1

    # ---- counters ----

    def filled(self, rank: int) -> int:
        """Returns the offset of the number of pieces that `rank` has written to its window."""
        return 8 * (_FILLED + 32 * rank)

    def drained(self, rank: int) -> int:
        """Returns the offset of the number of pieces that the other rank has read from the window of `rank`."""
        return 8 * (_DRAINED + 32 * rank)

    def release(self, rank: int) -> None:
        """Ends every wait of this rank's device that is under way, as if all pieces had been moved.

        A write of the other device may undo that; then it must be called again.
        """
        self._words[self.drained(rank) // 8] = RELEASED
        self._words[self.filled(1 - rank) // 8] = RELEASED

    def close(self) -> None:
        """Unmaps the segment. Its words must not be used any more."""
        del self._words
        self._memory.close()


class CopySegments:
    """Creates segments, and opens those of other processes. Thread-safe."""

    def __init__(self) -> None:
        self._created: dict[bytes, int] = {}
        """Files of segments that this process keeps for others, by nonce."""
        self._lock = threading.Lock()

    def create(self) -> bytes:
        """Creates a segment, and returns its nonce. `drop` must be called. Raises OSError."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        file = sealed_memory.make("hearth-copies", SIZE)
        try:
            os.pwrite(file, nonce, _NONCE_OFFSET)
        except BaseException:
            os.close(file)
            raise
        self.keep(nonce, file)
        return nonce

    def keep(self, nonce: bytes, file: int) -> None:
        """Hands a file to the process that knows the nonce, until `drop`; takes the file. Raises OSError."""
        try:
            hand_over().keep(nonce, file)
        except BaseException:
            os.close(file)
            raise
        with self._lock:
            self._created[nonce] = file

    def drop(self, nonce: bytes) -> None:
        """Ends `create` or `keep`. Has no effect in a process that did neither."""
        with self._lock:
            file = self._created.pop(nonce, -1)
        if file >= 0:
            hand_over().drop(nonce)
            os.close(file)

    def open(self, nonce: bytes) -> CopySegment:
        """Maps the segment that a process keeps under the nonce. May block for seconds. Raises OSError, ValueError."""
        file = self.fetch(nonce)
        try:
            return CopySegment(nonce, file)
        finally:
            os.close(file)

    def fetch(self, nonce: bytes) -> int:
        """Returns the file that a process keeps under the nonce. May block for seconds. Raises OSError."""
        return hand_over().fetch(nonce)
