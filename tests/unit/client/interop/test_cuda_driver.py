"""Mapping of exported GPU memory: the driver's calls, in order, and the calls that undo them after a failure."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

import hearth
from hearth.interop import cuda_driver
from hearth.interop.cuda_driver import CudaDevice, Driver, DriverError, format_uuid, load

UUIDS = [bytes(range(16)), bytes(range(16, 32))]
ADDRESS, HANDLE, CONTEXT = 0x7F0000000000, 77, 0x1234


class Library:
    """A fake libcuda with two GPUs. `fails` is a call that returns `status`; `lacks` is a function that does not
    exist."""

    def __init__(self, fails: str = "", status: int = 2, lacks: str = "") -> None:
        self.calls: list[str] = []
        self.seen: dict[str, tuple[Any, ...]] = {}
        self.fails, self.status, self.lacks = fails, status, lacks

    def __getattr__(self, name: str) -> Any:
        if name == self.lacks or not name.startswith("cu"):
            raise AttributeError(f"undefined symbol: {name}")

        def function(*arguments: Any) -> int:
            self.calls.append(name)
            self.seen[name] = tuple(getattr(each, "value", each) for each in arguments)
            if name == self.fails:
                return self.status
            _ANSWERS.get(name, lambda *_: None)(*arguments)
            return 0

        setattr(self, name, function)
        return function

    @property
    def mapping(self) -> list[str]:
        """Returns the calls for memory management."""
        return [name.removeprefix("cuMem") for name in self.calls if name.startswith("cuMem")]


def _pointed(reference: Any, kind: Any) -> Any:
    """Returns the object that a `ctypes.byref` refers to."""
    return ctypes.cast(reference, ctypes.POINTER(kind)).contents


def _set(value: int, kind: Any = ctypes.c_void_p) -> Callable[..., None]:
    def answer(to: Any, *_: Any) -> None:
        _pointed(to, kind).value = value

    return answer


def _device(to: Any, ordinal: int) -> None:
    _pointed(to, ctypes.c_int).value = ordinal


def _uuid(to: Any, device: Any) -> None:
    _pointed(to, ctypes.c_ubyte * 16)[:] = UUIDS[device.value]


def _name(status: int, to: Any) -> None:
    _pointed(to, ctypes.c_char_p).value = b"CUDA_ERROR_OUT_OF_MEMORY"


_ANSWERS: dict[str, Callable[..., None]] = {
    "cuDeviceGetCount": _set(2, ctypes.c_int),
    "cuDeviceGet": _device,
    "cuDeviceGetUuid_v2": _uuid,
    "cuDevicePrimaryCtxRetain": _set(CONTEXT),
    "cuMemImportFromShareableHandle": _set(HANDLE),
    "cuMemAddressReserve": _set(ADDRESS),
    "cuGetErrorName": _name,
}


def device(library: Library) -> CudaDevice:
    return CudaDevice(Driver(library), 1)


def test_mapped_and_unmapped() -> None:
    library = Library()
    mapping = device(library).map(5, 4096)
    assert library.mapping == ["ImportFromShareableHandle", "AddressReserve", "Map", "SetAccess", "Release"]
    assert library.seen["cuMemImportFromShareableHandle"][1:] == (5, 1)
    assert library.seen["cuMemMap"] == (ADDRESS, 4096, 0, HANDLE, 0)
    access = _pointed(library.seen["cuMemSetAccess"][2], ctypes.c_int * 3)  # location.type, location.id, flags
    assert list(access) == [1, 1, 3]
    assert (mapping.address, mapping.dlpack_device, mapping.cuda) == (ADDRESS, (2, 1), True)
    del library.calls[:]
    mapping.close()
    mapping.close()
    assert library.calls == [
        "cuCtxPushCurrent_v2", "cuCtxSynchronize", "cuMemUnmap", "cuMemAddressFree", "cuCtxPopCurrent_v2"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fails", "undone"),
    [
        ("cuMemImportFromShareableHandle", []),
        ("cuMemAddressReserve", ["Release"]),
        ("cuMemMap", ["AddressFree", "Release"]),
        ("cuMemSetAccess", ["Unmap", "AddressFree", "Release"]),
    ],
)
def test_failed_mapping_is_undone(fails: str, undone: list[str]) -> None:
    library = Library(fails)
    with pytest.raises(hearth.HearthError, match=rf"{fails} failed in this process: CUDA_ERROR_OUT_OF_MEMORY") as error:
        device(library).map(5, 4096)
    assert error.value.fix
    done = library.mapping
    assert done[done.index(fails.removeprefix("cuMem")) + 1 :] == undone
    assert library.calls.count("cuCtxPushCurrent_v2") == library.calls.count("cuCtxPopCurrent_v2") == 1


def test_a_process_that_ends_unmaps_nothing() -> None:
    library = Library()
    mapping = device(library).map(5, 4096)
    library.fails, library.status = "cuCtxPushCurrent_v2", 4
    mapping.close()
    library = Library()
    other = device(library).map(5, 4096)
    library.fails, library.status = "cuCtxSynchronize", 700
    with pytest.raises(DriverError):
        other.close()


def test_the_gpu_is_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(cuda_driver, "_driver", lambda: Driver(library))
    monkeypatch.setattr(cuda_driver, "_devices", {})
    found = cuda_driver.device_of_uuid(format_uuid(UUIDS[1]), "H200")
    assert found.ordinal == 1
    assert cuda_driver.device_of_uuid(format_uuid(UUIDS[1]), "H200") is found
    with pytest.raises(hearth.UnsupportedError, match="does not see the daemon's GPU") as error:
        cuda_driver.device_of_uuid(format_uuid(bytes(16)), "H200")
    assert format_uuid(UUIDS[0]) in error.value.details["visible"]


def test_uuids_are_formatted_as_nvml_does() -> None:
    assert format_uuid(UUIDS[0]) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_no_driver() -> None:
    with pytest.raises(hearth.UnsupportedError, match="no CUDA driver") as error:
        load(("libcuda-that-is-not-there.so",))
    assert error.value.fix


def test_a_driver_that_is_too_old() -> None:
    with pytest.raises(AttributeError):
        Driver(Library(lacks="cuMemImportFromShareableHandle"))


@pytest.mark.parametrize(("status", "fix"), [(100, "CUDA_VISIBLE_DEVICES, or set it"), (803, "nvidia-smi")])
def test_a_process_that_can_use_no_gpu(monkeypatch: pytest.MonkeyPatch, status: int, fix: str) -> None:
    """cuInit returns CUDA_ERROR_NO_DEVICE if CUDA_VISIBLE_DEVICES is empty."""
    library = Library("cuInit", status)
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", lambda _: library)
    with pytest.raises(hearth.UnsupportedError, match=rf"can use no GPU.*\({status}\)") as error:
        load()
    assert fix in error.value.fix and "x.get()" in error.value.fix and error.value.details["status"] == str(status)
    assert error.value.reason == "UNSUPPORTED"


@pytest.mark.parametrize(("stream", "waits"), [(None, "cuCtxSynchronize"), (7, "cuStreamSynchronize")])
def test_memory_of_this_process_is_copied(stream: int | None, waits: str) -> None:
    """A copy waits for earlier work on the source, which may be on another GPU, and is complete when the call
    returns."""
    library = Library()  # reports that the source is on GPU 0
    device(library).copy(ADDRESS, 0x700000000000, 4096, None if stream is None else (stream,))
    after = library.calls[library.calls.index("cuPointerGetAttribute") :]
    assert after == [
        "cuPointerGetAttribute", "cuDeviceGet", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2", waits, "cuCtxPopCurrent_v2",
        "cuCtxPushCurrent_v2", "cuMemcpy", "cuCtxSynchronize", "cuCtxPopCurrent_v2",
    ]  # fmt: skip
    assert library.seen["cuPointerGetAttribute"][1:] == (9, 0x700000000000)
    assert library.seen["cuMemcpy"] == (ADDRESS, 0x700000000000, 4096)
    if stream is not None:
        assert library.seen["cuStreamSynchronize"] == (stream,)
