"""Features that kernels on the CPU lack, with the names that programs use for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.translation.tokens import SourceMap, Token, matching

_ASM = "inline PTX (asm)"
_TEXTURE = "textures and surfaces"
_TENSOR = "tensor cores (wmma, mma)"
_BULK = "bulk asynchronous copies (TMA)"
_DYNAMIC = "dynamic parallelism (launching kernels from a kernel)"
_CLUSTER = "thread block clusters"
_MULTI_GRID = "launches over several devices (multi_grid_group)"
_NAMED_BARRIER = "named barriers (__barrier_sync)"
_GRID_CONSTANT = "the address space of grid constants"
_SECTION = "naming an object's section or symbol version"

_NAMES = {
    "asm": _ASM,
    "__asm__": _ASM,
    "__asm": _ASM,
    "texture": _TEXTURE,
    "cudaTextureObject_t": _TEXTURE,
    "cudaSurfaceObject_t": _TEXTURE,
    "wmma": _TENSOR,
    "CUtensorMap": _BULK,
    "cudaLaunchKernel": _DYNAMIC,
    "cudaDeviceSynchronize": _DYNAMIC,
    "cudaGetParameterBuffer": _DYNAMIC,
    "this_cluster": _CLUSTER,
    "cluster_group": _CLUSTER,
    "this_multi_grid": _MULTI_GRID,
    "multi_grid_group": _MULTI_GRID,
    "__isClusterShared": _CLUSTER,
    "__isGridConstant": _GRID_CONSTANT,
    "__cvta_generic_to_grid_constant": _GRID_CONSTANT,
    "__cvta_grid_constant_to_generic": _GRID_CONSTANT,
}
_PATTERNS = (
    (re.compile(r"(tex[123]D|texCubemap|surf[123]D|surfCubemap)\w*"), _TEXTURE),
    (re.compile(r"__cluster\w+|__threadfence_cluster"), _CLUSTER),
    (re.compile(r"__barrier_sync\w*"), _NAMED_BARRIER),
)

_ATTRIBUTES = {"section", "__section__", "symver", "__symver__"}
"""Attributes whose text reaches the assembler unchanged, and could make it read files."""

DEPENDENCY_CONTROL = ("griddepcontrol.wait;", "griddepcontrol.launch_dependents;")
"""Instructions of programmatic dependent launch: they do nothing where a kernel starts after the one before it."""

_CLOBBERS = 3
"""Number of colons before the clobber list of an `asm`."""

MARK = "HEARTH-UNSUPPORTED:"
"""Text by which the backend's headers mark a compiler message about an unsupported use."""


def refuse(feature: str, file: str, line: int, name: str = "") -> Refusal:
    """Returns the refusal of `feature`, used at `line` of `file` under the name `name`."""
    location = f"{file}({line})" if line else file
    return Refusal(
        Reason.UNSUPPORTED,
        f"{location}: {feature} cannot run on the CPU backend" + (f" ('{name}')." if name else "."),
        fix="Guard this code with #ifndef __HEARTH_CPU__ and give a plain CUDA C++ form, or use a device with a GPU.",
        details={"feature": feature, "file": file, "line": line},
    )


def is_dependency_control(instructions: Sequence[str]) -> bool:
    """True if the strings of an `asm` are a single instruction of `DEPENDENCY_CONTROL`."""
    return len(instructions) == 1 and instructions[0].strip('" \t') in DEPENDENCY_CONTROL


def _is_compiler_barrier(tokens: Sequence[Token], at: int) -> bool:
    """True if an `asm`, whose tokens after the keyword begin at `at`, does nothing and has no operands."""
    while at < len(tokens) and tokens[at].text in ("volatile", "__volatile__", "__volatile", "inline"):
        at += 1
    if at >= len(tokens) or tokens[at].text != "(":
        return False
    end = matching(tokens, at, len(tokens))
    words = [token.text for token in tokens[at + 1 : end]]
    colons = sum({":": 1, "::": 2}.get(word, 0) for word in words)
    first = next((number for number, word in enumerate(words) if word in (":", "::")), len(words))
    instructions, operands = words[:first], [word for word in words[first:] if word not in (":", "::", ",")]
    if colons > _CLOBBERS or not instructions:
        return False
    if not is_dependency_control(instructions) and any(word.strip('" \t') for word in instructions):
        return False
    return not operands or (colons == _CLOBBERS and set(operands) == {'"memory"'} and words[-1] == '"memory"')


def check(source: SourceMap, tokens: Sequence[Token]) -> None:
    """Raises `Refusal` (UNSUPPORTED) for the first use of a feature that cannot run here."""
    for index, token in enumerate(tokens):
        feature = None
        if token.kind == "name":
            previous = tokens[index - 1].text if index else ""
            if previous in (".", "->"):
                continue
            feature = _NAMES.get(token.text)
            if feature is _ASM and _is_compiler_barrier(tokens, index + 1):
                feature = None
            if token.text == "texture" and (index + 1 >= len(tokens) or tokens[index + 1].text != "<"):
                feature = None
            if feature is None and token.text in _ATTRIBUTES and previous in ("(", ",", "::"):
                feature = _SECTION if [t.kind for t in tokens[index + 1 : index + 3]] == ["op", "string"] else None
            if feature is None:
                feature = next((kind for pattern, kind in _PATTERNS if pattern.fullmatch(token.text)), None)
        elif token.text == "<" and [t.text for t in tokens[index + 1 : index + 3]] == ["<", "<"]:
            adjacent = tokens[index + 2].end - token.start == 3
            callee = index > 0 and (tokens[index - 1].kind == "name" or tokens[index - 1].text == ">")
            feature = _DYNAMIC if adjacent and callee else None
        if feature is not None:
            file, line = source.location(token.start)
            name = "<<<...>>>" if token.text == "<" else token.text
            raise refuse(feature, file, line, name)
