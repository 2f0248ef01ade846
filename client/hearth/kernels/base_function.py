"""Abstract kernels and their launches: checks that need no daemon, and the packed launch record.

Covers everything that `hearth.Function` and `hearth.aio.Function` have in common. Does not cover calls that wait for
the compile; each of the two function classes has its own.

The hot path does as little as possible: everything that depends only on the types of the arguments, the grid and the
other keywords is cached from launch to launch; the remaining work is checking that the arrays exist and packing the
values.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hearth import base_stream as streams
from hearth.codec import encode
from hearth.cupy_names import CupyNames
from hearth.errors import ArgumentError, HearthError, LaunchError, LaunchTypeError
from hearth.kernels import arguments, launch_config, record_packer
from hearth.kernels.pointer_types import PointerTypes
from hearth.launch_recorder import LaunchCall
from hearth.session.memory import DeviceOperand
from hearth.shapes import cdiv
from hearth.stream_scope import current_streams
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from typing import Never, Protocol

    from hearth.base_stream import BaseStream
    from hearth.kernels.launch_attributes import LaunchAttributes
    from hearth.kernels.occupancy import FitWarnings, Occupancy
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.memory import Space
    from hearth.session.reply import PendingResult
    from hearth_proto import launches

    class Module(Protocol):
        """The module of a kernel: `hearth.kernels.base_module.BaseModule`."""

        _connection: Connection
        _source: str
        _cooperative: bool

        def _handle_on(self, attachment: Attachment) -> int: ...


_CACHE_LIMIT = 1024
_LISTS = (tuple, list)
_CONSTANTS = (tuple, int)
_ONCE = 1
_USUAL = (0, None, False, None, 1, None)
"""Stream, timeout, cooperative, cluster, iterations and attributes of nearly all launches."""

_Recent = tuple[Any, Any, object, object, int, str, bytes, record_packer.Packer]
"""A launch like the last ones: attachment, space, grid, block, shared_mem, mode, packed head, and the packer of the
arguments. Replaced as a whole. A plain tuple, because reading it is most of a launch's cost."""
_NO_RECENT: _Recent = (None, None, _LISTS, None, 0, "", b"", lambda args, space: None)


ATTRIBUTES = (
    "max_threads_per_block", "shared_size_bytes", "const_size_bytes", "local_size_bytes", "num_regs", "ptx_version",
    "binary_version", "cache_mode_ca", "max_dynamic_shared_size_bytes", "preferred_shared_memory_carveout",
)  # fmt: skip
"""The keys of `Function.attributes`, which are CuPy's names."""


class _BoundFunction(NamedTuple):
    """A function on one attachment.

    Replaced as a whole, so that a concurrent launch sees either the old or the new value.
    """

    attachment: Attachment | None
    handle: int
    heads: dict[object, tuple[bytes, arguments.Signature]]


class BaseFunction(CupyNames):
    """Abstract kernel: its launches, and the requests whose answers the subclass waits for."""

    _cupy = "RawKernel"

    def __init__(self, module: Module, name: str) -> None:
        self._module = module
        self._connection = module._connection
        self.name = name
        self._bind_lock = threading.Lock()
        self._bound = _BoundFunction(None, 0, {})
        self._previous: tuple[bytes, arguments.Signature] | None = None
        """Head and signature of the last launch that `_recent` did not match."""
        self._recent: _Recent = _NO_RECENT
        self._described: commands_pb2.FunctionResult | None = None
        self._carveout: int | None = None
        """Preferred shared memory in percent, which later attachments set again; None: never set."""
        self._blocks: dict[int, int] = {}
        """Block sizes of the highest occupancy, by dynamic shared memory in bytes."""
        self._pointers: PointerTypes | None = None
        self._fits: FitWarnings | None = None
        self._bind(self._connection.attachment())

    def __call__(
        self,
        grid: Any,
        block: Any,
        args: Sequence[Any] = (),
        shared_mem: int = 0,
        *,
        stream: BaseStream | None = None,
        timeout: float | None = None,
        mode: str = "checked",
        cooperative: bool | Literal["fit"] = False,
        cluster: Any = None,
        iterations: int = 1,
        attributes: LaunchAttributes | None = None,
        **unknown: Never,
    ) -> None:
        """Launches the kernel. Sent one way: does not block.

        Args:
            grid: Blocks along each axis: an int or a tuple of one to three; or a device array of three uint32, which is
                read after the earlier work on the stream is done (a 0 in it launches nothing).
            block: Threads along each axis: an int or a tuple of one to three.
            args: The kernel's arguments; see `hearth.kernels.arguments`.
            shared_mem: Dynamic shared memory in bytes.
            stream: Stream to launch on; None: the current one.
            timeout: Seconds that the kernel may take, after which the device process is ended; None: the session's
                limit.
            mode: ``"checked"``; ``"validate"``, which surrounds every array among the arguments with red zones and
                reports writes to them (slow, copies each array); or ``"unchecked"``, which leaves the check of the
                geometry to the driver. ``"validate"`` also reports reads: on the CPU backend, with accesses up to 64
                GiB away, and on a GPU in the red zones, for a module compiled with ``-fsanitize=address``.
            cooperative: Makes the whole grid resident together, so that the grid can synchronize. Always True for a
                kernel of a module with `enable_cooperative_groups`. ``"fit"`` launches at most as many blocks as can be
                resident: a larger grid with one block along y and z is reduced, and the next call that waits for the
                device gives a `RuntimeWarning` that names the line of the launch; any other grid is refused.
            cluster: Blocks of a cluster along each axis, as `grid`; None: no clusters.
            iterations: Number of launches in a row.
            attributes: Priority, programmatic dependent launch, access-policy window and memory-sync domain; None:
                none.
            **unknown: No other keyword is accepted.

        Raises:
            LaunchError: The client has found the launch invalid. Other failures are reported by the next sync, read or
                flush.
            LaunchTypeError: `args` is no tuple or list, an argument has a type that no kernel takes, or a keyword is
                unknown.
            ArgumentError: `timeout`, `mode`, `cooperative` or `attributes` is invalid, or `stream` belongs to another
                device or session.
        """
        if unknown:
            from hearth.keywords import unknown_keyword

            raise unknown_keyword(f"launch of {self.name}", unknown, self.__call__, LaunchTypeError, "LAUNCH_INVALID")
        connection = self._connection
        attachment = connection._attachment
        if attachment is None or not attachment.alive:
            attachment = connection.attachment()
        if stream is None and current_streams.get() is None:
            same_attachment, space, same_grid, same_block, same_shared_mem, same_mode, head, pack = self._recent
            if (
                grid is same_grid and block is same_block and same_attachment is attachment and mode is same_mode
                and shared_mem is same_shared_mem and iterations is _ONCE
                and timeout is None and cluster is None and not cooperative and attributes is None
                and type(args) is tuple
            ):  # fmt: skip
                try:
                    tail = pack(args, space)
                except (ValueError, struct.error):  # `_pack` raises the error that describes the problem
                    tail = None
                if tail is not None:
                    attachment.launch(head + tail)
                    return
        cooperative = self._cooperative(cooperative)
        record = self._pack(
            attachment, grid, block, args, shared_mem, stream, timeout, mode, cooperative, cluster, iterations,
            attributes,
        )  # fmt: skip
        target = stream
        scope = current_streams.get()
        if scope is not None:
            if target is None:
                target = scope.streams.get(id(connection))
            if scope.captures:
                streams.check_captured(target, connection, launch=True)
        if target is None or target._recorder is None:
            attachment.launch(record)
        else:
            call = LaunchCall(self, grid, block, shared_mem, mode, cooperative, cluster, iterations, attributes)
            target._recorder.launched(attachment, record, call, args)

    def _pack(
        self,
        attachment: Attachment,
        grid: Any,
        block: Any,
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: BaseStream | None = None,
        timeout: float | None = None,
        mode: str = "checked",
        cooperative: bool | str = False,
        cluster: Any = None,
        iterations: int = 1,
        attributes: LaunchAttributes | None = None,
    ) -> bytes:
        """Returns the launch as a packed record. Raises the errors of `__call__`."""
        if not isinstance(args, _LISTS):
            raise LaunchTypeError(
                f"args is a {type(args).__name__}; it must be a tuple of the kernel's arguments.",
                fix="write f(grid, block, (x,)), with the comma.",
            )
        connection = self._connection
        bound = self._bound
        if bound.attachment is not attachment:
            bound = self._bind(attachment)
        is_default = stream is None and current_streams.get() is None
        stream_handle = 0 if is_default else streams.resolve(stream, connection, attachment, work=False)
        heads = bound.heads
        key: tuple[Any, ...]
        try:
            key = (
                stream_handle,
                grid,
                block,
                shared_mem,
                timeout,
                mode,
                cooperative,
                cluster,
                iterations,
                attributes,
                *map(type, args),
            )
            entry = heads.get(key)
        except TypeError:  # not hashable, e.g. a list for the grid
            key, entry = (), None
        if entry is None:
            packed_attributes = None if attributes is None else self._pack_attributes(attributes)
            if self._names_arrays(grid, packed_attributes, attachment):
                key = ()
            entry = launch_config.head(
                bound.handle, stream_handle, grid, block, args, shared_mem, timeout, mode, cooperative, cluster,
                iterations, connection.limits.converts_integers, packed_attributes,
            )  # fmt: skip
            if entry[1].structs:
                from hearth.kernels import pointers

                pointers.check_supported(connection.limits.struct_pointers)
            self._check_pointers(args)
            self._check_fit(cooperative, grid, block, shared_mem, cluster)
            if key and arguments.fixed(key[10:]):
                if len(heads) >= _CACHE_LIMIT:
                    heads.clear()
                heads[key] = entry
        elif (
            entry is self._previous
            and self._recent[6] is not entry[0]
            and (stream_handle, *key[4:5], *key[6:10]) == _USUAL
        ):
            self._remember(attachment, grid, block, shared_mem, mode, entry, key[10:])
        self._previous = entry
        head, signature = entry
        space = attachment.space
        assert space is not None
        try:
            while (tail := signature.pack_checked(args, space)) is None:
                self._check_memory(args, space)  # raises, unless an array was restored meanwhile
        except struct.error as error:
            self._check_memory(args, space)
            from hearth.kernels.unpassable import out_of_range

            raise out_of_range(args) from error
        return head + tail

    def _names_arrays(self, grid: Any, attributes: launches.Attributes | None, attachment: Attachment) -> bool:
        """True if the head of the record names an array, so that it must not be used for another launch."""
        if isinstance(grid, DeviceOperand):
            if grid._memory.owner is not attachment.space:
                self._check_operand("the grid", grid, attachment.space)
            return True
        return attributes is not None and attributes.window is not None

    def _cooperative(self, cooperative: bool | Literal["fit"]) -> bool | Literal["fit"]:
        """Returns the keyword `cooperative` of a launch: at least True for a module whose launches all are."""
        return cooperative or self._module._cooperative

    def _pack_attributes(self, attributes: LaunchAttributes) -> launches.Attributes:
        from hearth.kernels import launch_attributes  # imported here, because few launches have attributes

        return launch_attributes.packed(attributes, self._connection)

    def _remember(
        self,
        attachment: Attachment,
        grid: Any,
        block: Any,
        shared_mem: int,
        mode: str,
        entry: tuple[bytes, arguments.Signature],
        types: tuple[type, ...],
    ) -> None:
        """Caches a launch that occurred twice in this form.

        A repetition with the identical grid and block objects needs only its arguments packed.
        """
        if type(grid) in _CONSTANTS and type(block) in _CONSTANTS and attachment.space is not None:
            pack = arguments.typed(types, entry[1])
            if pack is not None:
                self._recent = attachment, attachment.space, grid, block, shared_mem, mode, entry[0], pack

    def _check_pointers(self, args: Sequence[Any]) -> None:
        """Warns about arrays whose dtype is not what the source declares.

        Called by each dispatch, and by the first launch of each form: a form has the types of the arguments, but not
        the dtypes of arrays.
        """
        if self._pointers is None:
            self._pointers = PointerTypes(self._module._source, self.name)
        self._pointers.check(args)

    def _check_fit(self, cooperative: bool | str, grid: Any, block: Any, shared_mem: int, cluster: Any) -> None:
        """Arranges for a warning if the daemon will reduce the grid, at the first launch of each geometry."""
        if cooperative != launch_config.FIT or cluster is not None or isinstance(grid, DeviceOperand):
            return
        if self._fits is None:
            from hearth.kernels.occupancy import FitWarnings

            self._fits = FitWarnings(self.name, self._connection.kernel_output, self._request_occupancy)
        self._fits.check(grid, block, shared_mem)

    def _check_memory(self, args: Sequence[Any], space: Space) -> None:
        """Raises the error of the first argument whose memory cannot be used."""
        from hearth.kernels import pointers

        for index, arg in enumerate(args):
            for subject, operand in pointers.operands(index, arg):
                if operand._memory.owner is not space:
                    self._check_operand(subject, operand, space, index)

    def __getitem__(self, geometry: Any) -> Callable[..., None]:
        """Binds a launch geometry, in Numba's form: ``f[grid, block](x, n)``.

        ``f[grid, block, stream]`` and ``f[grid, block, stream, shared_mem]`` also give the stream, and the dynamic
        shared memory in bytes.

        Raises:
            LaunchError: The index is not such a tuple.
        """
        if not isinstance(geometry, tuple) or not 2 <= len(geometry) <= 4:
            raise LaunchError(
                f"f[{geometry!r}] is not a valid launch geometry.",
                fix="use f[grid, block](args...).",
            )
        grid, block = geometry[:2]
        stream = geometry[2] or None if len(geometry) > 2 else None
        shared_mem = geometry[3] if len(geometry) > 3 else 0

        def launch(*args: Any, **unknown: Never) -> None:
            if unknown:
                raise LaunchTypeError(
                    f"launch of {self.name}: {self.name}[grid, block](...) takes no keywords, such as "
                    f"{next(iter(unknown))}.",
                    fix=f"write {self.name}(grid, block, (arguments...), timeout=...); "
                    f"{self.name}[grid, block, stream, shared_mem](arguments...) takes a stream and shared memory.",
                    details={"keyword": next(iter(unknown))},
                )
            self(grid, block, args, shared_mem, stream=stream)

        return launch

    def _covering(self, n: int, block: int, stream: Any, shared_mem: int) -> Callable[..., None]:
        """Returns the launch of `n` threads in blocks of `block` threads; a launch of 0 threads does nothing.

        Raises:
            ArgumentError: `n` or `block` is negative.
        """
        blocks = cdiv(n, block)
        if n < 0 or block < 0:
            raise ArgumentError(
                f"forall has {n} threads in blocks of {block}; a number is negative.",
                fix="pass 0 or more.",
            )
        return self[blocks, block, stream, shared_mem] if blocks else _launch_nothing

    # ---- requests whose answers the subclass waits for ----

    def _request_suggestion(self, shared_mem: int) -> PendingResult[Occupancy]:
        return self._request_occupancy(1, shared_mem)

    def _request_occupancy(self, block: Any, shared_mem: int, cluster: Any = None) -> PendingResult[Occupancy]:
        from hearth.kernels.occupancy import occupancy_of

        attachment = self._connection.attachment()
        command = commands_pb2.Command()
        request = command.occupancy
        request.function = self._handle_on(attachment)
        request.block.x, request.block.y, request.block.z = arguments.dimensions("block", block)
        request.shared_mem = shared_mem
        if cluster is not None:
            request.cluster.x, request.cluster.y, request.cluster.z = arguments.dimensions("cluster", cluster)
        return self._connection.request(command, occupancy_of, attachment)

    def _request_description(self, carveout: int | None = None) -> PendingResult[commands_pb2.FunctionResult]:
        attachment = self._connection.attachment()
        command = _description(self._handle_on(attachment), carveout)
        return self._connection.request(command, lambda result: result.function, attachment)

    def _repr_html_(self) -> str:
        from hearth import html_repr

        described = self._described
        rows: list[tuple[str, object]] = [("device", self._connection.ordinal)]
        if described is None:
            rows.append(("attributes", "not requested yet: .attributes, which waits for the compile"))
        else:
            parameters = described.parameters
            rows += [
                ("registers per thread", described.registers),
                ("static shared memory", html_repr.size(described.static_shared_bytes)),
                ("local memory per thread", html_repr.size(described.local_bytes)),
                ("constant memory", html_repr.size(described.constant_bytes)),
                ("maximum threads per block", described.max_threads_per_block),
                ("parameters", f"{len(parameters)}, {sum(parameter.size for parameter in parameters)} bytes"),
            ]
        return html_repr.pairs(f"Kernel {self.name}", rows)

    def __repr__(self) -> str:
        return f"<hearth.Function {self.name} of device {self._connection.ordinal}>"

    # ---- internals ----

    def _handle_on(self, attachment: Attachment) -> int:
        return self._bind(attachment).handle

    def _bind(self, attachment: Attachment) -> _BoundFunction:
        """Returns the function on the attachment that is about to be used; looks it up again after a loss."""
        if self._bound.attachment is attachment:
            return self._bound
        with self._bind_lock:
            if self._bound.attachment is not attachment:
                module = self._module._handle_on(attachment)
                connection = self._connection
                handle = connection.mint()
                stream_handle = streams.resolve(None, connection, attachment, work=False)
                attachment.submit(encode.get_function(stream_handle, handle, module, self.name))
                if self._carveout is not None:
                    attachment.submit(_description(handle, self._carveout))
                self._bound = _BoundFunction(attachment, handle, {})
            return self._bound

    def _check_operand(self, subject: str, array: Any, space: Space | None, index: int | None = None) -> None:
        """Raises the error for which the array cannot be used in `space`; `subject` names the array.

        Returns if a durable array has been restored there meanwhile.
        """
        details = {} if index is None else {"argument": str(index)}
        if array._connection is not self._connection:
            raise LaunchError(
                f"{subject} is {array!r}, which belongs to another device or session than {self!r}.",
                fix="use arrays and kernels of one device; copy through the host with gpu.asarray(x.get()).",
                details=details,
            )
        try:
            self._connection.check(array._memory, f"{subject}, {array!r},")
        except HearthError as error:
            for name, value in details.items():
                error.details.setdefault(name, value)
            raise
        if array._memory.owner is not space:
            raise LaunchError(
                f"{subject}, {array!r}, was restored in a new device process during the launch.",
                fix="launch the kernel again.",
                details=details,
            )


def _description(function: int, carveout: int | None) -> commands_pb2.Command:
    """Returns the command that describes a function, after setting its preferred shared memory if that is given."""
    command = commands_pb2.Command()
    command.describe_function.function = function
    if carveout is not None:
        command.describe_function.preferred_shared_memory_carveout = carveout
    return command


def _launch_nothing(*args: Any) -> None:
    """Launches nothing."""
