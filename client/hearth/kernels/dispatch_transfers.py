"""The transfers of one dispatch in addition to its command: uploads of large inputs, downloads of large outputs.

On the daemon's host, the bytes are transferred through shared memory, directly from their source or to their
destination if that memory can be shared. On other hosts, they are transferred like other arrays, over stripes or gRPC
streams. Outputs over stripes are received concurrently: each of these downloads ends only when the dispatch is
answered, and the answer waits for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hearth.errors import HearthError, TransferError
from hearth.transfer import plan, router, striping
from hearth.transfer.grpc_stream import cancel_transfer

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply


@dataclass
class Output:
    """The destination of one output: `host`, filled through `scratch` if `host` cannot receive bytes directly."""

    host: np.ndarray[Any, Any]
    scratch: np.ndarray[Any, Any]
    download: int = 0

    @property
    def into(self) -> memoryview:
        """The bytes that a transfer must fill."""
        return plan.host_bytes(self.scratch)

    def fill(self, memory: memoryview) -> None:
        """Takes the output's bytes from a piece of memory.

        Args:
            memory: The bytes; must stay unchanged until `settle`.
        """
        if self.scratch is not self.host:
            self.scratch = np.frombuffer(memory, self.scratch.dtype).reshape(self.scratch.shape)
            return
        from hearth.transfer import registered  # already imported if such memory exists

        registered.copy(self.into, memory)

    def settle(self) -> None:
        """Copies the bytes to `host` if necessary. Called after all bytes have arrived."""
        if self.scratch is not self.host:
            self.host[...] = self.scratch
            self.scratch = self.host


def copied(
    connection: Connection, attachment: Attachment, uploads: Sequence[tuple[int, memoryview]]
) -> list[tuple[int, memoryview]]:
    """Returns uploads with copies of their bytes, in memory that can be shared if that may be useful.

    Args:
        connection: Connection to the device.
        attachment: Attachment of the connection.
        uploads: Pairs of transfer and bytes.
    """
    from hearth.transfer import registered  # not imported for small arrays

    return [(number, registered.copy_of_bytes(connection, attachment, data)) for number, data in uploads]


class DispatchBytes:
    """The transfers of a dispatch whose answer is `reply`.

    All of them end if the dispatch fails. `uploads` are pairs of transfer and bytes; the bytes must not change before
    they are sent.
    """

    def __init__(
        self,
        connection: Connection,
        attachment: Attachment,
        reply: Reply,
        uploads: Sequence[tuple[int, memoryview]],
        outputs: Sequence[Output],
    ) -> None:
        self._connection = connection
        self._attachment = attachment
        self._reply = reply
        self._uploads = list(uploads)
        self._outputs = [output for output in outputs if output.download]
        self._offered = False
        self._lock = threading.Lock()
        self._cancels: list[Callable[[], None]] = []
        self._unopened = {number for number, _ in self._uploads} | {output.download for output in self._outputs}
        """Transfers that the command names and that have not been opened."""
        self._ended = False
        self._error: BaseException | None = None
        self._read: list[memoryview] = []
        self._written: list[tuple[memoryview, Output]] = []
        self._unconfirmed: dict[int, memoryview] = {}
        """Shared memory to which the device may write although it has not confirmed the transfer, by number of
        transfer. Like `_read` and `_written`, it must exist until the answer arrives; the session, which waits for
        the answer, keeps this object alive."""
        reply.on_error = self.cancel
        if reply.error is not None:
            self.cancel()

    @property
    def any(self) -> bool:
        """True if there are transfers left."""
        return bool(self._uploads or self._outputs)

    def cancel(self) -> None:
        """Ends all transfers.

        Unless the daemon has answered, also cancels at the daemon the transfers that were not opened, because the
        daemon waits for each transfer that the command names, and all later commands wait for it.
        """
        with self._lock:
            self._ended = True
            cancels, self._cancels = self._cancels, []
            unopened, self._unopened = self._unopened, set()
            written = list(self._written)
        if written:
            from hearth.transfer import registered

            for memory, _ in written:
                registered.mark_spoiled(memory)
        for cancel in cancels:
            cancel()
        if self._reply.answered:
            self._release_memory()
            return
        for number in unopened:
            cancel_transfer(self._connection, number)

    def copy_inputs(self) -> None:
        """Copies the inputs that were not copied when the job was made; the caller may change them afterwards."""
        self._uploads = copied(self._connection, self._attachment, self._uploads)

    def offer_memory(self) -> bool:
        """Sends the device the addresses of bytes in shared memory, if possible; `transfer` does the rest.

        Returns True if no other transfers remain. Does not wait for the device. A second call does nothing.
        """
        if not self._offered:
            self._offered = True
            self._uploads = [upload for upload in self._uploads if not self._offer_upload(*upload)]
            self._outputs = [output for output in self._outputs if not self._offer_output(output)]
        return not self.any

    def _offer_upload(self, number: int, data: memoryview) -> bool:
        from hearth.transfer import registered  # not imported for small arrays

        self._check()
        memory = registered.upload(self._connection, self._attachment, number, data)
        if memory is not None:
            self._read.append(memory)
        return memory is not None

    def _offer_output(self, output: Output) -> bool:
        from hearth.transfer import registered

        self._check()
        destination = registered.download(self._connection, self._attachment, output.download, output.into)
        if destination is None:
            return False
        if not destination.guaranteed:
            self._unconfirmed[output.download] = destination.memory
            return False
        with self._lock:
            self._written.append((destination.memory, output))
            ended = self._ended
        if ended:
            registered.mark_spoiled(destination.memory)
        return True

    def transfer(self) -> None:
        """Carries out the transfers.

        Blocks until all bytes have arrived. Raises the error of the dispatch, or otherwise the transfer's own error.
        """
        try:
            self.offer_memory()
            self._send()
            self._fetch()
            self._copy_out()
        except HearthError as error:
            raise router.cause_of(self._reply, error) from None
        finally:
            self._release_memory()

    def _release_memory(self) -> None:
        """Releases memory that the device no longer uses.

        The reply, which refers to this object, may exist longer than the dispatch.
        """
        if self._reply.answered:
            self._read.clear()
            self._written.clear()
            self._unconfirmed.clear()

    def _copy_out(self) -> None:
        """Copies outputs from shared memory to their destinations."""
        if not (self._read or self._written):
            return
        self._reply.wait()
        for memory, output in self._written:
            output.fill(memory)

    def _send(self) -> None:
        started = []
        uploads, self._uploads = self._uploads, []
        for number, data in uploads:
            self._begin(number)
            upload = striping.upload(self._connection, self._attachment, self._reply, number, data)
            self._add_cancel(upload.cancel)
            started.append((upload, len(data)))
        for upload, size in started:
            received = upload.result()
            if received != size:
                raise plan.short(received, size)

    def _fetch(self) -> None:
        large = [output for output in self._outputs if len(output.into) >= plan.STRIPED_BYTES]
        small = [output for output in self._outputs if len(output.into) < plan.STRIPED_BYTES]
        threads = [
            threading.Thread(target=self._fetch_in_thread, args=(output,), name="hearth-output", daemon=True)
            for output in large[1:]
        ]
        for thread in threads:
            thread.start()
        try:
            for output in small + large[:1]:  # downloads over stripes end with the answer, which waits for all of them
                self._fetch_one(output)
        except BaseException:
            self.cancel()
            raise
        finally:  # after this, no thread uses the caller's memory
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def _fetch_in_thread(self, output: Output) -> None:
        try:
            self._fetch_one(output)
        except BaseException as error:
            self._error = self._error or error
            self.cancel()

    def _fetch_one(self, output: Output) -> None:
        into = output.into
        try:
            self._begin(output.download)
            download = striping.download(self._connection, self._attachment, self._reply, output.download, into)
            self._add_cancel(download.cancel)
            received = download.result()
            if received != len(into):
                raise plan.short(received, len(into))
        except HearthError as error:
            memory = self._unconfirmed.get(output.download)
            if memory is None or router.cause_of(self._reply, error) is not error or not self._reply.answered:
                raise
            from hearth.transfer import registered

            # the device had received the memory's address, and has completed the dispatch
            registered.copy(into, memory)

    def _begin(self, number: int) -> None:
        """Notes that the transfer is about to be opened. Raises `TransferError` if the dispatch was cancelled."""
        with self._lock:
            self._unopened.discard(number)
        self._check()

    def _check(self) -> None:
        """Raises `TransferError` if the dispatch was cancelled."""
        if self._ended:
            raise TransferError("the dispatch was cancelled.", reason="CANCELLED", fix="start it again.")

    def _add_cancel(self, cancel: Callable[[], None]) -> None:
        """Adds a function that cancels a transfer; calls it immediately if the dispatch has ended."""
        with self._lock:
            if not self._ended:
                self._cancels.append(cancel)
                return
        cancel()
