"""The arrays of `hearth run`: loading, generating, writing and printing."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from hearth.cli.format.complaint import invalid_argument
from hearth.cli.format.units import size_name
from hearth.cli.run.spec import Array, FromFile, Generated, Scalar, Spec
from hearth.errors import ArgumentError

Host = np.ndarray[Any, Any]
_MAGIC = b"\x93NUMPY"
_DEFAULT_HIGH = 100
MAX_SHOWN = 1000
"""Maximum number of elements of an array that is printed, or included in a document, in full."""


def host_value(spec: Spec) -> Any:
    """Returns the value as a NumPy scalar, or the array's initial contents, C-contiguous and in native byte order.

    Returns None for a result, which is initially zero on the device. Raises `ArgumentError`.
    """
    if isinstance(spec, Scalar):
        return np.dtype(spec.dtype).type(spec.value)
    if spec.direction == "out":
        return None
    return _load(spec.source.path) if isinstance(spec.source, FromFile) else _generate(spec.source)


def check_memory(specs: list[Spec]) -> None:
    """Raises `ArgumentError` if the arrays to be generated exceed this machine's memory."""
    size = sum(
        int(np.dtype(spec.source.dtype).itemsize * np.prod(spec.source.shape, dtype=object))
        for spec in specs
        if isinstance(spec, Array) and isinstance(spec.source, Generated)
    )
    memory_size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory_size:
        raise invalid_argument(
            f"the arrays take {size_name(size)}; this machine has {size_name(memory_size)} of memory",
            "use smaller arrays",
        )


def check_result_files(specs: list[Spec], force: bool) -> None:
    """Checks the result files before anything runs.

    Raises `ArgumentError` for one that cannot be written, or that exists unless `force`.
    """
    for spec in specs:
        if not isinstance(spec, Array) or spec.result is None:
            continue
        file = Path(spec.result)
        if not file.parent.is_dir():
            raise invalid_argument(
                f"{str(file.parent)!r}, the directory of the result {file.name!r}, does not exist",
                "create the directory first",
            )
        if file.is_dir():
            raise invalid_argument(f"the result {spec.result!r} is a directory", "specify a file")
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise invalid_argument(
                f"you have no permission to write to {str(file.parent)!r}", "use another directory for the result"
            )
        if os.path.lexists(file) and not force:
            raise invalid_argument(
                f"the result {spec.result!r} exists", "use another file, or overwrite the file with --force"
            )


def write(path: str, array: Host, force: bool) -> None:
    """Writes the array to a file, completely or not at all.

    Raises `OSError`, or `ArgumentError` if the file has been created meanwhile.
    """
    target = Path(path)
    if force and target.is_symlink():
        target = target.resolve()
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        if not force:
            try:
                target.hardlink_to(draft)  # unlike a rename, never replaces another file
                return
            except OSError:  # the file exists, or the file system has no hard links
                if os.path.lexists(target):
                    raise invalid_argument(
                        f"the result {path!r} has been created in the meantime", "overwrite the file with --force"
                    ) from None
        draft.replace(target)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def format_array(array: Host) -> str:
    """Formats the array as NumPy prints it, shortened if it is long."""
    return np.array2string(array, threshold=MAX_SHOWN, separator=" ")


def to_lists(array: Host) -> Any:
    """Returns nested lists for a JSON document; None if the array is too long.

    A complex number becomes a pair, and NaN or an infinity a string, because JSON has none of them.
    """
    if array.size > MAX_SHOWN:
        return None
    return _plain(array.tolist())


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else str(value)


def _load(path: str) -> Host:
    try:
        with Path(path).open("rb") as file:
            magic = file.read(len(_MAGIC))
            if magic != _MAGIC:
                kind = "an .npz archive; only .npy files are supported" if magic[:2] == b"PK" else "not an .npy file"
                raise invalid_argument(f"{path!r} is {kind}", "write it with np.save(path, array)")
            file.seek(0)
            array: Host = np.load(file, allow_pickle=False)
    except OSError as error:
        raise invalid_argument(f"{path!r} cannot be read: {error.strerror or error}", "use a readable file") from None
    except ArgumentError:
        raise
    except (ValueError, EOFError) as error:
        pickled = "pickle" in str(error)
        reason = "it contains Python objects" if pickled else f"{error}".partition("\n")[0]
        raise invalid_argument(
            f"{path!r} cannot be loaded: {reason}", "write numeric data with np.save(path, array)"
        ) from None
    if array.dtype.hasobject or not array.dtype.itemsize:
        raise invalid_argument(
            f"{path!r} contains {array.dtype}, which cannot be stored in device memory", "convert it to numbers"
        )
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _generate(source: Generated) -> Host:
    dtype: np.dtype[Any] = np.dtype(source.dtype)
    shape, options = source.shape, source.options
    try:
        if source.generator in ("zeros", "ones"):
            return getattr(np, source.generator)(shape, dtype)  # type: ignore[no-any-return]
        if source.generator == "full":
            return np.full(shape, options["value"], dtype)
        if source.generator == "arange":
            count = int(np.prod(shape, dtype=np.int64))
            start: Any = options.get("start", 0)
            step: Any = options.get("step", 1)
            wide: Host = np.arange(count, dtype=np.uint64 if dtype.kind in "iub" else np.float64)
            if dtype.kind in "iub":  # modulo 2**n, like an integer in the kernel
                values = wide * np.array(int(step.real) % 2**64, np.uint64) + np.array(
                    int(start.real) % 2**64, np.uint64
                )
            else:
                values = wide * step + start
            with np.errstate(over="ignore"):
                return values.astype(dtype).reshape(shape)
        return _random(dtype, shape, dict(options))
    except MemoryError:
        raise invalid_argument(
            f"{source.dtype}{list(shape)} does not fit into this machine's memory", "use a smaller shape"
        ) from None


def _random(dtype: np.dtype[Any], shape: tuple[int, ...], options: dict[str, Any]) -> Host:
    generator = np.random.default_rng(int(options.get("seed", 0)))
    low: Any = options.get("low", 0)
    high: Any = options.get("high")
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if high is None:
        high = _DEFAULT_HIGH if dtype.kind in "iu" else 1.0
    if dtype.kind == "c":
        parts = [generator.uniform(np.real(low), np.real(high), shape) for _ in "ri"]
        return np.asarray(parts[0] + 1j * parts[1], dtype)
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise invalid_argument(
            f"random requires low < high; low is {low} and high is {high}", "use e.g. random:TYPE[SHAPE]:low=0:high=9"
        )
    if dtype.kind in "iu":
        return generator.integers(low, high, shape, dtype=dtype)
    return np.asarray(generator.random(shape) * (float(high) - float(low)) + float(low), dtype)
