"""Headers of device code: truncated or damaged code, or code for another device, is refused before a driver sees it."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.compiler import image_headers
from hearthd.device.compiler.image_headers import Cubin, Fatbin, Ptx

HOPPER = (9, 0)
FILES = Path(__file__).parent / "device_code"
CUBIN = zlib.decompress(base64.b85decode((FILES / "sm_90.cubin.b85").read_bytes()))
"""`nvcc -cubin -arch=sm_90` (CUDA 13.0) of one kernel and one variable."""
FATBIN = zlib.decompress(base64.b85decode((FILES / "sm_80_sm_90a_ptx_90.fatbin.b85").read_bytes()))
"""`nvcc -fatbin` of the same source for sm_80 and sm_90a, with compressed PTX for compute_90."""

PTX = b"""//
// Generated
//
.version 8.0
.target sm_80
.address_size 64
.visible .entry f() { ret; }
"""


def refused(code: bytes, capability: tuple[int, int] = HOPPER) -> Refusal:
    with pytest.raises(Refusal) as caught:
        image_headers.check(code, capability)
    assert caught.value.reason is Reason.MODULE_INVALID
    return caught.value


def elf(flags: int = 0x5A04, abi: int = 65, machine: int = 190, kind: int = 2) -> bytes:
    """Returns a CUBIN with two empty sections."""
    ident = b"\x7fELF\x02\x01\x01" + bytes([abi]) + bytes(8)
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, kind, machine, 1, 0, 0, 64, flags, 64, 56, 0, 64, 2, 1)
    return header + bytes(2 * 64)


# ---- CUBIN ----


def test_a_real_cubin() -> None:
    assert image_headers.read_cubin(CUBIN) == Cubin(90, False)
    assert image_headers.check(CUBIN, HOPPER) is False
    assert image_headers.check(CUBIN + b"\0" * 8, HOPPER) is False


@pytest.mark.parametrize("image", [CUBIN, FATBIN], ids=["cubin", "fatbin"])
def test_truncated_image_is_refused(image: bytes) -> None:
    for length in range(len(image)):
        assert refused(image[:length]).fix


def test_both_places_of_the_architecture() -> None:
    assert image_headers.read_cubin(elf(0x06005A04, abi=65)).architecture == 90
    assert image_headers.read_cubin(elf(0x00500550, abi=51)).architecture == 80
    assert image_headers.read_cubin(elf(0x1234, abi=0)).architecture is None
    assert image_headers.check(elf(0x1234, abi=0), HOPPER) is False, "an image of an unknown kind is left to the driver"


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        (90, (9, 0), True),
        (80, (8, 6), True),
        (86, (8, 6), True),
        (89, (8, 6), False),
        (80, (9, 0), False),
        (100, (9, 0), False),
        (100, (10, 3), True),
        (103, (10, 0), False),
        (120, (12, 1), True),
        (75, (7, 5), True),
    ],
)
def test_which_device_runs_which_architecture(architecture: int, capability: tuple[int, int], runs: bool) -> None:
    code = elf(architecture << 8)
    if runs:
        assert image_headers.check(code, capability) is False
    else:
        error = refused(code, capability)
        major, minor = capability
        assert f"sm_{architecture}" in error.message and f"compute capability {major}.{minor}" in error.message


def test_other_elf_files_are_refused_by_kind() -> None:
    assert "machine 62" in refused(elf(machine=62)).message
    assert "relocatable" in refused(elf(kind=1)).message
    assert "64 bits" in refused(b"\x7fELF\x01" + CUBIN[5:]).message
    assert "64 bits" in refused(b"\x7fELF\x02\x02" + CUBIN[6:]).message
    assert "without sections" in refused(elf()[:40] + bytes(8) + elf()[48:]).message


def test_tables_that_do_not_fit_are_refused() -> None:
    for offset, value in ((40, 2**63), (58, 63), (60, 0xFFF0), (62, 18), (54, 1), (32, 2**64 - 1)):
        size = 8 if offset in (32, 40) else 2
        damaged = CUBIN[:offset] + value.to_bytes(size, "little") + CUBIN[offset + size :]
        refused(damaged)


@given(st.binary(max_size=300), st.integers(0, 63), st.binary(min_size=1, max_size=8))
def test_damaged_images_only_raise_refusals(tail: bytes, at: int, patch: bytes) -> None:
    damaged = bytearray(CUBIN)
    damaged[at : at + len(patch)] = patch
    for code in (
        bytes(damaged),
        CUBIN[: at + 4] + tail,
        FATBIN[: at + 4] + tail,
        FATBIN[:at] + patch + FATBIN[at + 8 :],
    ):
        try:
            image_headers.check(code, HOPPER)
        except Refusal as refusal:
            assert refusal.reason is Reason.MODULE_INVALID


# ---- fatbin ----


def test_a_real_fatbin() -> None:
    assert image_headers.read_fatbin(FATBIN) == Fatbin((80, 90), (90,), True)
    assert image_headers.check(FATBIN, (9, 0)) is False, "it has code for this device"
    assert image_headers.check(FATBIN, (8, 6)) is False
    assert image_headers.check(FATBIN, (10, 0)) is True, "only its PTX can run"
    assert "sm_80, sm_90, PTX for compute_90" in refused(FATBIN, (7, 5)).message


def test_entries_that_do_not_fit_are_refused() -> None:
    for at, value in ((20, 0), (20, 2**31), (24, 2**63), (24, len(FATBIN))):
        size = 8 if at == 24 else 4
        refused(FATBIN[:at] + value.to_bytes(size, "little") + FATBIN[at + size :])


def test_unknown_fatbin_version_is_left_to_the_driver() -> None:
    assert image_headers.check(FATBIN[:4] + b"\x02\x00" + FATBIN[6:], HOPPER) is False


def test_fatbin_wrapper_is_refused() -> None:
    assert "wrapper" in refused(b"\xb1\x43\x62\x46\x01\0\0\0" + bytes(16)).message


# ---- PTX ----


def test_ptx_by_its_head() -> None:
    assert image_headers.read_ptx(PTX) == Ptx((8, 0), 80, "")
    assert image_headers.read_ptx(b"/* a\n b */ .version 9.1 .target sm_100f, debug\n") == Ptx((9, 1), 100, "f")
    assert image_headers.check(PTX, HOPPER) is True


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("sm_80", (9, 0), True),
        ("sm_90", (9, 0), True),
        ("sm_100", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_100f", (10, 3), True),
        ("sm_100f", (12, 0), False),
        ("sm_103a", (10, 0), False),
    ],
)
def test_which_device_runs_which_ptx(target: str, capability: tuple[int, int], runs: bool) -> None:
    code = PTX.replace(b"sm_80", target.encode())
    if runs:
        assert image_headers.check(code, capability) is True
    else:
        error = refused(code, capability)
        major, minor = capability
        assert target in error.message and f"sm_{major}{minor}" in error.message and f"sm_{major}{minor}" in error.fix


@pytest.mark.parametrize(
    "code",
    [b"", b"\0", b"hello", b".version 8.0\n.target nonsense\n", b".version 8.0\n", b".target sm_80\n", b"\xff\xfe" * 9],
)
def test_unknown_formats_are_refused(code: bytes) -> None:
    assert refused(code).fix
