"""Abstract modules: source or binary code from which kernels are made, with CuPy's names.

The client keeps a module's code, so that the module can be loaded again after a loss of the device process. Covers
everything that `hearth.RawModule` and `hearth.aio.RawModule` have in common. Does not cover calls that wait for the
compile; each of the two module classes has its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

from hearth import base_stream as streams
from hearth import lazy_numpy as np
from hearth import shapes
from hearth.arrays.base_array import BaseArray
from hearth.codec import encode
from hearth.codec.encode import encodable
from hearth.cupy_names import CupyNames
from hearth.errors import ArgumentError, DtypeError, HearthError, UnsupportedError, UnsupportedTypeError
from hearth.kernels.base_function import BaseFunction
from hearth.session.memory import Memory
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.dtypes import Dtype
    from hearth.interfaces import ArrayLike, DeviceContext
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.reply import PendingResult

_ELF = b"\x7fELF"
_FATBIN = (b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46")  # fatbin, and the wrapper that nvcc links in
_LTO_IR = b"\xed\x43\x4e\x7f"
_ARCHIVE = b"!<arch>\n"
Code = str | bytes
"""One input of a module."""
_WITHOUT_EFFECT = {
    "jitify": "the headers of the standard library and of CUDA are found without it",
    "translate_cucomplex": "the functions of cuComplex.h are compiled as they are",
}
"""CuPy's keywords that have no effect, each with the reason."""

F = TypeVar("F", bound=BaseFunction)
"""The class of the module's kernels."""
G = TypeVar("G", bound="BaseGlobalArray")
"""The class of the module's variables."""


class BaseModule(CupyNames, Generic[F, G]):
    """Abstract code of one or more kernels, and the requests whose answers the subclass waits for."""

    _cupy = "RawModule"

    _function_type: Callable[[Any, str], F]
    _global_type: Callable[..., G]

    def __init__(
        self,
        device: DeviceContext[Any],
        code: Code | Sequence[Code] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        options: Iterable[str] = (),
        name_expressions: Iterable[str] | None = None,
        headers: Mapping[str, str] | None = None,
        enable_cooperative_groups: bool = False,
        **cupys: Any,
    ) -> None:
        self._notes = _keyword_notes(cupys)
        """Lines of the compile log, each with its line end, about keywords that have no effect."""
        self._cooperative = bool(enable_cooperative_groups)
        """True if every launch of the module's kernels is cooperative."""
        self._device = device
        self._connection = device._connection
        if (code is None) == (path is None):
            raise ArgumentError("pass either code or path, not both or none.", fix="pass e.g. code=source.")
        if path is not None:
            from pathlib import Path

            code = Path(path).read_bytes()
        assert code is not None
        codes: Sequence[Any] = code if isinstance(code, list | tuple) else (code,)
        inputs = _inputs(codes, self._connection)
        self._source = "\n".join(
            text
            for text, (kind, _) in zip(codes, inputs, strict=True)
            if isinstance(text, str) and kind == encode.CUDA_CPP
        )
        for name, value in (("options", options), ("name_expressions", name_expressions)):
            if isinstance(value, str):
                raise DtypeError(
                    f"{name} is a str; it must be a sequence of str.",
                    fix=f"pass {name}=({value!r},).",
                )
        self._load = _serialized(inputs, list(options), list(name_expressions or ()), dict(headers or {}))
        limit = self._connection.limits.max_code_bytes
        size = len(self._load)
        if size > limit:
            raise ArgumentError(
                f"the code, options and headers have {size} bytes; the daemon accepts at most {limit}.",
                reason="MESSAGE_TOO_LARGE",
                fix="compile to a CUBIN for one architecture, or split the module.",
            )
        self._load_lock = threading.Lock()
        self._attachment: Attachment | None = None
        self._handle = 0
        self._handle_on(self._connection.attachment())

    def get_function(self, name: str) -> F:
        """Returns a kernel. Does not block: an unknown name is reported by the first use of the kernel.

        Args:
            name: Name in the code, or one of the `name_expressions`.

        Returns:
            The kernel.

        Raises:
            ArgumentError: `name` is not a text.
        """
        if not isinstance(name, str) or not name or not encodable(name):
            raise ArgumentError(f"{name!r} is not a kernel name.", fix="pass a str.")
        return self._function_type(self, name)

    def _request_global(self, name: str, dtype: Any, shape: shapes.Shape | None) -> PendingResult[G]:
        connection = self._connection
        attachment = connection.attachment()
        handle = connection.mint()
        command = commands_pb2.Command(stream=streams.resolve(None, connection, attachment, work=False))
        command.get_global.buffer = handle
        command.get_global.module = self._handle_on(attachment)
        command.get_global.name = name
        # "global" is a keyword of Python
        return connection.request(
            command,
            lambda result: self._global_variable(
                attachment, handle, name, getattr(result, "global").size, dtype, shape
            ),
            attachment,
        )

    def _global_variable(
        self, attachment: Attachment, handle: int, name: str, size: int, dtype: Any, shape: shapes.Shape | None
    ) -> G:
        kind = shapes.type_of("uint8" if dtype is None else dtype)
        axes = (size // kind.itemsize,) if shape is None else shapes.shape_of(shape)
        if shapes.bytes_of(axes, kind) != size:
            raise ArgumentError(
                f"{name} has {size} bytes; shape {axes} of {kind} takes {shapes.bytes_of(axes, kind)} bytes.",
                fix="pass the type and shape of the variable's declaration.",
            )
        assert attachment.space is not None
        memory = Memory(attachment.space, handle, size, owned=False, keep=self)
        return self._global_type(self._device, memory, 0, axes, kind, typed=dtype is not None)

    def __repr__(self) -> str:
        return f"<hearth.RawModule {self._handle} of device {self._connection.ordinal}>"

    def __del__(self) -> None:
        attachment = getattr(self, "_attachment", None)
        if attachment is not None and attachment.alive and attachment.space is not None:
            attachment.space.deferred_frees.add("module", self._handle)

    def _request_description(self) -> PendingResult[commands_pb2.ModuleResult]:
        attachment = self._connection.attachment()
        command = commands_pb2.Command()
        command.describe_module.module = self._handle_on(attachment)
        return self._connection.request(command, lambda result: result.module, attachment)

    def _handle_on(self, attachment: Attachment) -> int:
        """Returns the module's handle on the attachment to be used; loads the module again after a loss."""
        if self._attachment is attachment:
            return self._handle
        with self._load_lock:
            if self._attachment is not attachment:
                handle = self._connection.mint()
                stream_handle = streams.resolve(None, self._connection, attachment, work=False)
                attachment.submit(encode.load_module(stream_handle, handle, self._load))
                self._handle, self._attachment = handle, attachment
        return self._handle


class BaseGlobalArray(BaseArray):
    """Abstract variable of a module; its subclasses are arrays of the client as well."""

    __slots__ = ("_typed",)

    def __init__(
        self,
        device: DeviceContext[Any],
        memory: Memory,
        offset: int,
        shape: tuple[int, ...],
        dtype: Dtype,
        *,
        typed: bool,
    ) -> None:
        super().__init__(device, memory, offset, shape, dtype)
        self._typed = typed

    def set(
        self,
        a: Any,
        stream: BaseStream | None = None,
        *,
        blocking: bool = False,
        progress: bool | Progress | None = None,
    ) -> None:
        """Overwrites the variable with a host array, like `DeviceArray.set`.

        Args:
            a: An array of the variable's shape and dtype; an array of any dtype and the same size if `get_global` was
                given no dtype.
            stream: Stream that orders the write; None: the current one.
            blocking: Blocks until pinned memory has been read; with `hearth.aio`, must be False in the event loop.
            progress: True for a progress bar, or ``f(done, total)``, called with bytes.

        Raises:
            ArgumentError: The size or shape differs, or `blocking` is True in the event loop.
            DtypeError: The dtypes differ.
        """
        super().set(a if self._typed else _as_bytes(self, a), stream, blocking=blocking, progress=progress)


def _as_bytes(variable: ArrayLike, a: Any) -> np.ndarray[Any, Any]:
    """Converts a host array to the bytes of a variable without a dtype, in native byte order.

    Args:
        variable: The variable.
        a: The array, of the variable's size.

    Returns:
        The bytes as an array of the variable's shape.

    Raises:
        ArgumentError: The array has another size.
    """
    host = np.asarray(a)
    host = np.ascontiguousarray(host, shapes.dtype_of(host.dtype))
    if host.nbytes != variable.nbytes:
        raise ArgumentError(
            f"a variable of {variable.nbytes} bytes cannot be set from an array of {host.nbytes} bytes "
            f"({host.dtype} {host.shape}).",
            fix="pass an array for the whole variable, or set a part with get_global(name, dtype, "
            "shape)[a:b].set(...).",
        )
    return host.reshape(-1).view(np.uint8).reshape(variable.shape)


@contextmanager
def logged(log_stream: TextIO | None) -> Iterator[list[str]]:
    """Context manager that writes the compiler's messages to `log_stream` at the end of the block.

    It writes the messages that the block adds to the list, or those of the error that the block raises.
    """
    log: list[str] = []
    try:
        yield log
    except HearthError as error:
        log.append(error.details.get("log", ""))
        raise
    finally:
        if log_stream is not None and any(log):
            log_stream.write("".join(log))


def _inputs(codes: Sequence[Any], connection: Connection) -> list[tuple[int, bytes]]:
    """Returns the kind and the bytes of each input of a module.

    Args:
        codes: The code, or the inputs that are linked.
        connection: The connection to the device.

    Raises:
        DtypeError: An input is neither str nor bytes, or cannot be encoded.
        ArgumentError: The list is empty.
        UnsupportedError: The daemon is too old to link modules.
    """
    if not codes:
        raise ArgumentError("code is an empty list.", fix="pass at least one input.")
    if len(codes) > 1 and not connection.limits.links:
        raise UnsupportedError(
            f"the daemon does not link modules; code has {len(codes)} inputs.",
            fix='put the sources into one, or use a daemon with the feature "linking".',
        )
    inputs = []
    for index, item in enumerate(codes):
        name = f"code[{index}]" if len(codes) > 1 else "code"
        if not isinstance(item, str | bytes | bytearray):
            raise DtypeError(
                f"{name} is a {type(item).__name__}; it must be str or bytes.",
                fix="pass str or bytes.",
            )
        if isinstance(item, str) and not encodable(item):
            raise DtypeError(
                f"{name} is a str that cannot be encoded as UTF-8.",
                fix="read the file as UTF-8, or pass bytes.",
            )
        data = item.encode() if isinstance(item, str) else bytes(item)
        inputs.append((code_kind(data), data))
    return inputs


def _serialized(
    inputs: list[tuple[int, bytes]], options: list[str], names: list[str], headers: dict[str, str]
) -> bytes:
    """Serializes a `LoadModule` message without its handle."""
    (kind, code), *more = inputs
    if not (more or options or names or headers):
        return encode.code(kind, code)
    load = commands_pb2.LoadModule(
        kind=commands_pb2.CodeKind.Name(kind), code=code, options=options, name_expressions=names, headers=headers
    )
    for kind, code in more:
        load.inputs.add(kind=commands_pb2.CodeKind.Name(kind), code=code)
    return load.SerializeToString()


def code_kind(code: bytes) -> int:
    """Returns the kind of code, a constant of `hearth.codec.encode`, determined by the first bytes.

    ELF is a CUBIN, or an object of the host with device code. A fatbin, code for link-time optimization (LTO-IR) and an
    archive have magic numbers. PTX begins with ``.version``, after blank lines and ``//``
    comments. All other code is CUDA C++.
    """
    if code.startswith(_ELF):
        return encode.CUBIN
    if code.startswith(_FATBIN):
        return encode.FATBIN
    if code.startswith(_LTO_IR):
        return encode.LTO_IR
    if code.startswith(_ARCHIVE):
        return encode.LIBRARY
    for line in code[: 64 << 10].splitlines():
        text = line.strip()
        if text and not text.startswith(b"//"):
            return encode.PTX if text.startswith(b".version") else encode.CUDA_CPP
    return encode.CUDA_CPP


def check_order(code: object, name: object) -> None:
    """Checks that the source and the kernel's name are given in the right order.

    Args:
        code: The first argument, which must not be a name.
        name: The second argument, which must not be source text.

    Raises:
        ArgumentError: They are in the wrong order.
    """
    if isinstance(code, str) and code.isidentifier() and isinstance(name, str) and "{" in name:
        raise ArgumentError(
            f"code is {code!r} and name is source text of {len(name)} characters: they are in the wrong order.",
            fix=f"pass the source first: gpu.RawKernel(source, {code!r}).",
        )


def _keyword_notes(keywords: Mapping[str, Any]) -> str:
    """Returns a line of the compile log for each of CuPy's keywords that has no effect.

    Raises:
        UnsupportedTypeError: A keyword is misspelt.
        UnsupportedError: There is no such keyword, or it has a value that CuPy does not have.
    """
    notes = []
    for name, value in keywords.items():
        if name == "backend" and value in ("nvrtc", "nvcc"):
            if value == "nvcc":
                notes.append("note: backend='nvcc' has no effect: the daemon compiles with its own compiler\n")
            continue
        if name in _WITHOUT_EFFECT and (value is None or isinstance(value, bool | np.bool_)):
            if value:
                notes.append(f"note: {name}=True has no effect: {_WITHOUT_EFFECT[name]}\n")
            continue
        from hearth.keywords import names, suggestion

        correction = suggestion(name, names(BaseModule))
        if correction != ".":
            raise UnsupportedTypeError(f"a module has no keyword {name}{correction}", fix="correct the keyword.")
        raise UnsupportedError(
            f"{name}={value!r} is not supported: the daemon compiles the code.",
            fix="omit it; pass headers={...} for additional include files.",
        )
    return "".join(notes)
