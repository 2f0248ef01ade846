"""Kernels and their launches: checks that need no daemon, and the packed record.

The hot path does as little as it can: everything that follows from the types of the arguments, the grid and the other
keywords is kept from launch to launch; what is left is to check that the arrays are alive and to pack the values.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth import arguments
from hearth import stream as streams
from hearth.errors import ArgumentError, HearthError, LaunchError, LaunchTypeError, UnsupportedError
from hearth_proto.launches import LaunchFlag
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.attachment import Attachment
    from hearth.module import RawModule
    from hearth.stream import Stream

_MODES = {"checked": 0, "unchecked": int(LaunchFlag.UNCHECKED)}
_SHARED_MAX = 2**32 - 1
_CACHE_LIMIT = 1024


class _Bound(NamedTuple):
    """A function on one attachment: replaced as a whole, so that a launch sees one or the other."""

    attachment: Attachment | None
    handle: int
    heads: dict[object, tuple[bytes, arguments.Signature]]


class Function:
    """A kernel, called as in CuPy, ``f((grid,), (block,), (args...))``, or as in Numba, ``f[grid, block](args...)``."""

    def __init__(self, module: RawModule, name: str) -> None:
        self._module = module
        self._connection = module._connection
        self.name = name
        self._making = threading.Lock()
        self._bound = _Bound(None, 0, {})
        self._described: commands_pb2.FunctionResult | None = None
        self._bind(self._connection.attachment())

    def __call__(
        self,
        grid: Any,
        block: Any,
        args: Sequence[Any] = (),
        shared_mem: int = 0,
        *,
        stream: Stream | None = None,
        timeout: float | None = None,
        mode: str = "checked",
        cooperative: bool = False,
        cluster: Any = None,
        iterations: int = 1,
    ) -> None:
        """Launches the kernel, one way.

        `grid` in blocks and `block` in threads: an int or one to three; `args` as `hearth.arguments` says;
        `shared_mem`: dynamic shared memory in bytes; `timeout` in seconds, after which the device process is ended.
        Raises `LaunchError` for what can be seen here; the rest surfaces at the next sync, read or flush.
        """
        if not isinstance(args, tuple | list):
            raise LaunchTypeError(
                f"args is a {type(args).__name__}; it is a tuple of the kernel's arguments.",
                reason="LAUNCH_INVALID",
                fix="write f(grid, block, (x,)), with the comma.",
            )
        connection = self._connection
        attachment = connection._attachment
        if attachment is None or not attachment.alive:
            attachment = connection.attachment()
        bound = self._bound
        if bound.attachment is not attachment:
            bound = self._bind(attachment)
        on = 0 if stream is None and streams._current.get() is None else streams.resolve(stream, connection, attachment)
        heads = bound.heads
        key: tuple[Any, ...]
        try:
            key = (
                on,
                grid,
                block,
                shared_mem,
                timeout,
                mode,
                cooperative,
                cluster,
                iterations,
                *map(type, args),
            )
            entry = heads.get(key)
        except TypeError:  # a list for the grid, say
            key, entry = (), None
        if entry is None:
            only = {"cooperative=": cooperative, "cluster=": cluster is not None, "iterations=": iterations != 1}
            _refuse_unsupported(only, mode)
            entry = _head(bound.handle, on, grid, block, args, shared_mem, timeout, mode)
            if key and arguments.fixed(key[9:]):
                if len(heads) >= _CACHE_LIMIT:
                    heads.clear()
                heads[key] = entry
        head, signature = entry
        values = list(args)
        space = attachment.space
        buffers = []
        for index in signature.pointers:
            array = values[index]
            memory = array._memory
            if memory.owner is not space:
                self._refuse(index, array)
            buffers.append(memory.handle)
            values[index] = array._offset
        for index in signature.raw:
            values[index] = arguments.raw_bytes(values[index])
        try:
            tail = signature.pack(*buffers, *values)
        except struct.error:
            tail = signature.tail(args)  # says what does not fit
        attachment.launch(head + tail)

    def __getitem__(self, geometry: Any) -> Callable[..., None]:
        """Numba's form: ``f[grid, block]``, ``f[grid, block, stream]`` or ``f[grid, block, stream, shared_mem]``."""
        if not isinstance(geometry, tuple) or not 2 <= len(geometry) <= 4:
            raise LaunchError(
                f"f[{geometry!r}] is no launch geometry.", reason="LAUNCH_INVALID", fix="use f[grid, block](args...)."
            )
        grid, block = geometry[:2]
        stream = geometry[2] or None if len(geometry) > 2 else None
        shared_mem = geometry[3] if len(geometry) > 3 else 0

        def launch(*args: Any) -> None:
            self(grid, block, args, shared_mem, stream=stream)

        return launch

    def __repr__(self) -> str:
        return f"<hearth.Function {self.name} of device {self._connection.ordinal}>"

    # ---- attributes, by CuPy's names; each waits for the compile ----

    @property
    def attributes(self) -> dict[str, int]:
        """All of the below in one dict."""
        names = ("num_regs", "shared_size_bytes", "local_size_bytes", "const_size_bytes", "max_threads_per_block")
        return {name: getattr(self, name) for name in names}

    @property
    def num_regs(self) -> int:
        """Registers per thread; 0 where the backend has none."""
        return self._describe().registers

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory per block."""
        return self._describe().static_shared_bytes

    @property
    def local_size_bytes(self) -> int:
        """Local memory per thread."""
        return self._describe().local_bytes

    @property
    def const_size_bytes(self) -> int:
        """Constant memory."""
        return self._describe().constant_bytes

    @property
    def max_threads_per_block(self) -> int:
        """The largest block that the kernel's registers allow."""
        return self._describe().max_threads_per_block

    @property
    def parameters(self) -> list[tuple[int, int]]:
        """(offset, size) in bytes of each parameter in the parameter block."""
        return [(parameter.offset, parameter.size) for parameter in self._describe().parameters]

    def _describe(self) -> commands_pb2.FunctionResult:
        if self._described is None:
            attachment = self._connection.attachment()
            command = commands_pb2.Command()
            command.describe_function.function = self._bind(attachment).handle
            self._described = self._connection.call(command, attachment=attachment).function
        return self._described

    # ---- inside ----

    def _bind(self, attachment: Attachment) -> _Bound:
        """The function on the attachment that is about to be used: after a loss it is looked up again."""
        if self._bound.attachment is attachment:
            return self._bound
        with self._making:
            if self._bound.attachment is not attachment:
                module = self._module._handle_on(attachment)
                connection = self._connection
                handle = connection.mint()
                command = commands_pb2.Command(stream=streams.resolve(None, connection, attachment))
                command.get_function.function = handle
                command.get_function.module = module
                command.get_function.name = self.name
                attachment.submit(command)
                self._bound = _Bound(attachment, handle, {})
            return self._bound

    def _refuse(self, index: int, array: Any) -> None:
        """Says why the array cannot be used here."""
        if array._connection is not self._connection:
            raise LaunchError(
                f"argument {index} is {array!r} of another device or session; {self!r} cannot reach it.",
                reason="LAUNCH_INVALID",
                fix="use arrays and kernels of one device; go through the host with gpu.asarray(x.get()).",
                details={"argument": str(index)},
            )
        try:
            self._connection.check(array._memory, f"argument {index}, {array!r},")
        except HearthError as error:
            error.details.setdefault("argument", str(index))
            raise
        raise LaunchError(f"argument {index}, {array!r}, changed hands during the launch.", reason="LAUNCH_INVALID")


def _head(
    function: int,
    stream: int,
    grid: Any,
    block: Any,
    args: Sequence[Any],
    shared_mem: int,
    timeout: float | None,
    mode: str,
) -> tuple[bytes, arguments.Signature]:
    """The part of the record that stays from launch to launch. Raises what is wrong with it."""
    if mode not in _MODES:
        raise ArgumentError(f"mode is {mode!r}.", reason="INVALID_ARGUMENT", fix='use "checked" or "unchecked".')
    if not 0 <= shared_mem <= _SHARED_MAX:
        raise LaunchError(
            f"shared_mem is {shared_mem} bytes; it lies between 0 and {_SHARED_MAX}.",
            reason="LAUNCH_INVALID",
            fix="see gpu.properties.shared_mem_per_block_optin.",
        )
    if timeout is not None and not 0 < timeout < 2**63 / 1e9:
        raise ArgumentError(f"timeout is {timeout} s.", reason="INVALID_ARGUMENT", fix="give seconds above 0.")
    timeout_ns = 0 if timeout is None else max(1, int(timeout * 1e9))
    dims = arguments.dimensions("grid", grid), arguments.dimensions("block", block)
    signature = arguments.signature(args)
    return signature.head(function, stream, *dims, int(shared_mem), _MODES[mode], timeout_ns), signature


def _refuse_unsupported(keywords: dict[str, bool], mode: str) -> None:
    asked = [name for name, given in keywords.items() if given] + (['mode="validate"'] if mode == "validate" else [])
    if asked:
        raise UnsupportedError(
            f"{', '.join(asked)}: not supported by this version.", reason="UNSUPPORTED", fix="leave it out."
        )
