"""Tensor maps: descriptions of a region for the tensor memory accelerator (TMA), checked before the driver sees them.

The driver answers every mistake with "invalid value"; this module describes each mistake in a separate sentence and
reports all of them in one refusal. Limits are those of cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col and
cuTensorMapEncodeIm2colWide (cuda.h, CUDA 13.0), and of the PTX ISA's chapter on tensors. Sizes are in elements, strides
in bytes, innermost dimension first; sums and products are Python integers and cannot overflow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hearth_proto.reasons import Reason, Refusal

MAX_RANK = 5
MAX_SHAPE = 1 << 32
STRIDE_LIMIT = 1 << 40
MAX_ELEMENT_STRIDE = 8
MAX_BOX = 256
MAX_CHANNELS = 256
MAX_PIXELS = 1024
ALIGNMENT = 16
"""Alignment of the address, of strides, and of the box's innermost dimension, in bytes."""

CORNERS: Mapping[int, tuple[int, int]] = {3: (-32768, 32767), 4: (-128, 127), 5: (-16, 15)}
"""Range of the offsets of an im2col corner, by rank."""

WIDE_CORNER = (-32768, 32767)
"""Range of an offset of an im2col-wide corner, at every rank."""

WIDE_MODES: Mapping[str, int] = {"w": 0, "w128": 128}
"""Modes of im2col-wide, with the number of pixels that a copy reads; 0: `pixels_per_column` of them."""

SWIZZLES: Mapping[str, int] = {
    "none": 0, "32b": 32, "64b": 64, "128b": 128, "128b_atom_32b": 128, "128b_atom_32b_flip_8b": 128,
    "128b_atom_64b": 128,
}  # fmt: skip
"""Number of bytes that a swizzle spans; 0: not limited."""

ATOMS = tuple(name for name in SWIZZLES if "_atom_" in name)
"""Swizzles that move chunks of more than 16 bytes."""

WIDE_SWIZZLES = ("64b", "128b", "128b_atom_32b")
"""Swizzles that im2col-wide supports."""

INTERLEAVES: Mapping[str, int] = {"none": 0, "16b": 16, "32b": 32}
"""Size of one slice of channels in bytes; 0: channels are not sliced."""

L2_PROMOTIONS = ("none", "l2_64b", "l2_128b", "l2_256b")
OOB_FILLS = ("none", "nan")


@dataclass(frozen=True)
class Element:
    """An element type: `name` is that of the CUtensorMapDataType without its prefix."""

    name: str
    bits: int
    floating: bool = False


_PACKED = "16u4_align8b"
_ELEMENTS: Mapping[str, Element] = {
    element.name: element
    for element in (
        Element("uint8", 8), Element("uint16", 16), Element("uint32", 32), Element("int32", 32),
        Element("uint64", 64), Element("int64", 64), Element("float16", 16, True), Element("float32", 32, True),
        Element("float64", 64, True), Element("bfloat16", 16, True), Element("float32_ftz", 32, True),
        Element("tfloat32", 32, True), Element("tfloat32_ftz", 32, True), Element(_PACKED, 4),
    )
}  # fmt: skip
_AS_UINT8 = ("int8", "float8_", "float6_", "float4_", "int4", "uint4", "int2", "uint2")
"""Prefixes of dtypes that are copied as uint8: NumPy and ml_dtypes store each element in one byte."""


def element_of(dtype: str) -> Element | None:
    """Returns the element type as which `dtype` is copied; None if TMA has no such element type.

    `dtype` is the driver's, NumPy's or ml_dtypes' name. The accelerator copies bits: it treats an int8 as a uint8, and
    likewise a float8 of any kind.
    """
    element = _ELEMENTS.get(dtype)
    if element is None and dtype.startswith(_AS_UINT8):
        return _ELEMENTS["uint8"]
    return _ELEMENTS["uint16"] if dtype == "int16" else element


@dataclass(frozen=True)
class Tile:
    """Access mode in which each load reads a box of elements."""

    box: tuple[int, ...]


@dataclass(frozen=True)
class Im2col:
    """Access mode in which each load reads columns of pixels, as a convolution does.

    Offsets are in the order W, H, D.
    """

    lower_corner: tuple[int, ...]
    upper_corner: tuple[int, ...]
    channels_per_pixel: int
    pixels_per_column: int


@dataclass(frozen=True)
class Im2colWide:
    """Columns of pixels along W only; the corners are offsets of W. `pixels_per_column`: 0 with mode "w128"."""

    lower_corner_width: int
    upper_corner_width: int
    channels_per_pixel: int
    pixels_per_column: int
    mode: str = "w"


@dataclass(frozen=True)
class TensorMapSpec:
    """Description of a tensor map, without the address.

    `strides` has an entry for every dimension except the innermost.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_strides: tuple[int, ...]
    access: Tile | Im2col | Im2colWide | None
    interleave: str = "none"
    swizzle: str = "none"
    l2_promotion: str = "none"
    oob_fill: str = "none"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def extent(self) -> int | None:
        """Returns the number of bytes from the first to the end of the last byte described; None if it is undetermined.

        With interleaved channels, the result is a lower bound: the driver's documentation leaves open how slices follow
        each other.
        """
        element = element_of(self.dtype)
        if element is None or not self.shape or len(self.strides) != self.rank - 1:
            return None
        inner = INTERLEAVES.get(self.interleave, 0) or -(-self.shape[0] * element.bits // 8)
        steps = zip(self.shape[1:], self.strides, strict=True)
        return inner + sum((size - 1) * stride for size, stride in steps if size > 0)


def check(spec: TensorMapSpec, address: int, offset: int, buffer_size: int) -> list[str]:
    """Returns the errors in a spec, one sentence each; an empty list if the driver will accept it.

    `address` is the address of the buffer's first byte.
    """
    element = element_of(spec.dtype)
    errors = [_no_element(spec.dtype)] if element is None else []
    errors += _check_names(spec)
    errors += _check_rank(spec)
    errors += _check_address(spec, address, offset)
    errors += _check_dimensions(spec)
    if spec.oob_fill == "nan" and element is not None and not element.floating:
        errors.append(
            f"oob_fill is nan and dtype {spec.dtype}, which is copied as {element.name}; only floats have a nan"
        )
    if isinstance(spec.access, Tile):
        errors += _check_tile(spec, spec.access, element)
    elif isinstance(spec.access, Im2col):
        errors += _check_im2col(spec, spec.access, element)
    elif isinstance(spec.access, Im2colWide):
        errors += _check_im2col_wide(spec, spec.access, element)
    else:
        errors.append("neither a tile nor im2col is given")
    extent = spec.extent()
    if offset > buffer_size:
        errors.append(f"it starts at byte {offset} of a buffer of {buffer_size}")
    elif extent is not None and offset + extent > buffer_size:
        errors.append(
            f"it describes {extent} bytes from byte {offset} of a buffer of {buffer_size}: "
            f"{offset + extent - buffer_size} too many"
        )
    return errors


def refuse(spec: TensorMapSpec, errors: Sequence[str], subject: str, **extra: object) -> Refusal:
    """Returns the refusal of a tensor map, which lists all its errors.

    `subject` names the map: "tensor map of buffer 5".
    """
    details: dict[str, object] = {**vars(spec), "failures": len(errors), **extra}
    del details["access"]
    if spec.access is not None:
        details |= vars(spec.access)
    return Refusal(
        Reason.TENSOR_MAP_INVALID,
        f"{subject}, {spec.dtype} of shape {spec.shape} (innermost first): " + "; ".join(errors),
        fix="correct these arguments; the CUDA driver's manual has the rules: cuTensorMapEncodeTiled, ...Im2col, "
        "...Im2colWide",
        details=details,
    )


_REQUIREMENTS = "an NVIDIA GPU of compute capability 10.0 or newer and a driver of CUDA 12.8 or newer"

_MISSING: Mapping[str, tuple[str, str]] = {
    "tensor_maps": (
        "has no tensor maps: they need the tensor memory accelerator of an NVIDIA GPU of compute capability 9.0 or "
        "newer",
        "check for tensor_maps in gpu.properties.features, and use plain loads if it is missing",
    ),
    "tensor_map_im2col_wide": (
        f"has no im2col-wide tensor maps: they need {_REQUIREMENTS}",
        "check for tensor_map_im2col_wide in gpu.properties.features, and use Im2col if it is missing",
    ),
    "tensor_map_swizzle_atoms": (
        f"has no swizzles with atoms of 32 or 64 bytes ({', '.join(ATOMS)}): they need {_REQUIREMENTS}",
        "check for tensor_map_swizzle_atoms in gpu.properties.features, and use swizzle 128b if it is missing",
    ),
}
"""Message about a device without the feature, after the device's name, and the fix, by feature."""


def check_features(spec: TensorMapSpec, features: Collection[str], device: str) -> None:
    """Raises Refusal(UNSUPPORTED) for the first feature that the map needs and `device` lacks."""
    needed = ["tensor_maps"]
    if isinstance(spec.access, Im2colWide):
        needed.append("tensor_map_im2col_wide")
    if spec.swizzle in ATOMS:
        needed.append("tensor_map_swizzle_atoms")
    for feature in needed:
        if feature not in features:
            raise missing_feature(device, feature)


def missing_feature(device: str, feature: str = "tensor_maps") -> Refusal:
    """Returns the refusal (UNSUPPORTED) of a tensor map that needs a feature which the device lacks."""
    message, fix = _MISSING[feature]
    return Refusal(Reason.UNSUPPORTED, f"{device} {message}", fix=fix, details={"feature": feature})


def _no_element(dtype: str) -> str:
    if dtype == "bool":
        return "dtype bool has no tensor map type; view it as uint8"
    if dtype.startswith("complex"):
        return f"dtype {dtype} has no tensor map type; view it as floats, with the parts as one more dimension"
    return f"dtype is {dtype!r}; it must be one of {', '.join(_ELEMENTS)}, int8, int16 or an ml_dtypes name of one byte"


def _check_names(spec: TensorMapSpec) -> list[str]:
    allowed: Sequence[tuple[str, str, Sequence[str]]] = (
        ("interleave", spec.interleave, tuple(INTERLEAVES)),
        ("swizzle", spec.swizzle, tuple(SWIZZLES)),
        ("l2_promotion", spec.l2_promotion, L2_PROMOTIONS),
        ("oob_fill", spec.oob_fill, OOB_FILLS),
    )
    return [
        f"{name} is {value!r}; it must be one of {', '.join(names)}"
        for name, value, names in allowed
        if value not in names
    ]


def _check_rank(spec: TensorMapSpec) -> list[str]:
    rank = spec.rank
    errors = _check_range(1, MAX_RANK, {"the rank": rank})
    if spec.interleave in ("16b", "32b") and rank < 3:
        errors.append(f"the rank is {rank}; interleaved, it must be at least 3")
    if isinstance(spec.access, Im2col | Im2colWide) and rank not in CORNERS:
        errors.append(f"the rank is {rank}; for im2col it must be 3, 4 or 5")
    if rank and len(spec.strides) != rank - 1:
        errors.append(
            f"{len(spec.strides)} strides are given for rank {rank}; every dimension except the innermost needs one"
        )
    if len(spec.element_strides) != rank:
        errors.append(
            f"{len(spec.element_strides)} element_strides are given for rank {rank}; every dimension needs one"
        )
    return errors


def _check_address(spec: TensorMapSpec, address: int, offset: int) -> list[str]:
    alignment = 32 if spec.interleave == "32b" else ALIGNMENT
    if (address + offset) % alignment == 0:
        return []
    condition = ", interleaved by 32 bytes" if alignment == 32 else ""
    return [
        f"it starts at byte {offset} of the buffer, at address {address + offset:#x}; "
        f"its address must be a multiple of {alignment}{condition}"
    ]


def _check_dimensions(spec: TensorMapSpec) -> list[str]:
    errors = _check_range(1, MAX_SHAPE, _numbered("shape", spec.shape))
    if spec.dtype == _PACKED and spec.shape and spec.shape[0] % 2:
        errors.append(f"shape[0] is {spec.shape[0]}; two elements share a byte, so it must be even")
    multiple = 32 if spec.interleave == "32b" else ALIGNMENT
    for axis, stride in enumerate(spec.strides, 1):
        if stride % multiple or stride >= STRIDE_LIMIT:
            errors.append(
                f"the stride of dimension {axis} is {stride} bytes; "
                f"it must be a multiple of {multiple} below {STRIDE_LIMIT}"
            )
    errors += _check_range(1, MAX_ELEMENT_STRIDE, _numbered("element_strides", spec.element_strides))
    if spec.element_strides and spec.interleave == "none" and 1 < spec.element_strides[0] <= MAX_ELEMENT_STRIDE:
        # The driver would accept the value and ignore it.
        errors.append(f"element_strides[0] is {spec.element_strides[0]}; without interleave it must be 1")
    if spec.interleave == "32b" and spec.swizzle in SWIZZLES and spec.swizzle != "32b":
        errors.append(f"swizzle is {spec.swizzle}; with interleave 32b it must be 32b")
    return errors


def _check_tile(spec: TensorMapSpec, tile: Tile, element: Element | None) -> list[str]:
    errors: list[str] = []
    if len(tile.box) != spec.rank:
        errors.append(f"the box has {len(tile.box)} dimensions, the tensor {spec.rank}")
    errors += _check_range(1, MAX_BOX, _numbered("box", tile.box))
    if tile.box and element is not None and spec.interleave == "none":
        bits = tile.box[0] * element.bits
        if bits % (8 * ALIGNMENT):
            errors.append(
                f"box[0] is {tile.box[0]} elements, {bits / 8:g} bytes; "
                f"without interleave it must be a multiple of {ALIGNMENT} bytes"
            )
        errors += _check_span(spec, "box[0]", bits)
    return errors


def _check_im2col(spec: TensorMapSpec, im2col: Im2col, element: Element | None) -> list[str]:
    errors: list[str] = []
    limits = CORNERS.get(spec.rank)
    spatial = spec.rank - 2
    for name, corner in (("lower_corner", im2col.lower_corner), ("upper_corner", im2col.upper_corner)):
        if limits is None:
            continue
        if len(corner) != spatial:
            errors.append(f"{name} has {len(corner)} offsets; with rank {spec.rank} it must have {spatial}")
        low, high = limits
        errors += [
            f"{name}[{axis}] is {offset}; with rank {spec.rank} it must lie between {low} and {high}"
            for axis, offset in enumerate(corner)
            if not low <= offset <= high
        ]
    if limits is not None and len(im2col.lower_corner) == len(im2col.upper_corner) == spatial:
        sides = zip(spec.shape[1:-1], im2col.lower_corner, im2col.upper_corner, strict=True)
        for axis, (size, lower, upper) in enumerate(sides, 1):
            errors += _check_between_corners(axis, size, lower, upper)
    errors += _check_range(1, MAX_CHANNELS, {"channels_per_pixel": im2col.channels_per_pixel})
    errors += _check_range(1, MAX_PIXELS, {"pixels_per_column": im2col.pixels_per_column})
    if element is not None and spec.interleave == "none":
        errors += _check_span(spec, "channels_per_pixel", im2col.channels_per_pixel * element.bits)
    return errors


def _check_im2col_wide(spec: TensorMapSpec, wide: Im2colWide, element: Element | None) -> list[str]:
    lower, upper = wide.lower_corner_width, wide.upper_corner_width
    errors = _check_range(*WIDE_CORNER, {"lower_corner_width": lower, "upper_corner_width": upper})
    if spec.rank in CORNERS:
        errors += _check_between_corners(1, spec.shape[1], lower, upper)
    errors += _check_range(1, MAX_CHANNELS, {"channels_per_pixel": wide.channels_per_pixel})
    fixed = WIDE_MODES.get(wide.mode)
    if fixed is None:
        errors.append(f"mode is {wide.mode!r}; it must be one of {', '.join(WIDE_MODES)}")
    elif not fixed:
        errors += _check_range(1, MAX_PIXELS, {"pixels_per_column": wide.pixels_per_column})
    elif wide.pixels_per_column not in (0, fixed):
        # The driver would accept the value and ignore it.
        errors.append(f"pixels_per_column is {wide.pixels_per_column}; mode {wide.mode} requires 0 or {fixed}")
    if spec.interleave in INTERLEAVES and spec.interleave != "none":
        errors.append(f"interleave is {spec.interleave}; with im2col-wide it must be none")
    if spec.swizzle in SWIZZLES and spec.swizzle not in WIDE_SWIZZLES:
        errors.append(f"swizzle is {spec.swizzle}; with im2col-wide it must be one of {', '.join(WIDE_SWIZZLES)}")
    elif element is not None and spec.interleave == "none":
        errors += _check_span(spec, "channels_per_pixel", wide.channels_per_pixel * element.bits)
    return errors


def _check_range(low: int, high: int, values: Mapping[str, int]) -> list[str]:
    """Returns an error for each of the named values that is not from `low` to `high`."""
    return [
        f"{name} is {value}; it must lie between {low} and {high}"
        for name, value in values.items()
        if not low <= value <= high
    ]


def _numbered(name: str, values: Sequence[int]) -> Mapping[str, int]:
    return {f"{name}[{axis}]": value for axis, value in enumerate(values)}


def _check_between_corners(axis: int, size: int, lower: int, upper: int) -> list[str]:
    if size + upper - lower >= 1:
        return []
    return [
        f"nothing of dimension {axis} lies between the corners: its {size} elements from {lower} to {upper} of the end"
    ]


def _check_span(spec: TensorMapSpec, name: str, bits: int) -> list[str]:
    span = SWIZZLES.get(spec.swizzle, 0)
    if not span or bits <= 8 * span:
        return []
    return [f"{name} takes {bits / 8:g} bytes; with swizzle {spec.swizzle} it may take at most {span}"]
