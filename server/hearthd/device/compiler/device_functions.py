"""Device functions that programs call without a header, as they may with nvcc, and that NVRTC does not declare.

A program that names one of them gets a header of the compiler in front. Line numbers of the program stay as they are.
Code that another compiler has made calls the driver's functions. Pure.
"""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Source

Header = tuple[str, str]
"""Name and text of a header."""

_DEPENDENT_LAUNCH = ("cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion")
_DEVICE_RUNTIME = "cuda_device_runtime_api.h"
_DEPENDENT_LAUNCH_HEADER = (
    "hearth/programmatic_launch.h",
    "#if __CUDA_ARCH__ >= 900\n"
    "static __device__ __forceinline__ void cudaGridDependencySynchronize()"
    ' { asm volatile("griddepcontrol.wait;" ::: "memory"); }\n'
    "static __device__ __forceinline__ void cudaTriggerProgrammaticLaunchCompletion()"
    ' { asm volatile("griddepcontrol.launch_dependents;"); }\n'
    "#else\n"
    "static __device__ __forceinline__ void cudaGridDependencySynchronize() {}\n"
    "static __device__ __forceinline__ void cudaTriggerProgrammaticLaunchCompletion() {}\n"
    "#endif\n",
)
"""For functions of programmatic dependent launch. The toolkit's header, `_DEVICE_RUNTIME`, includes others that NVRTC's
packages do not contain; a program that has it needs nothing."""

_SET_CONDITIONAL = "cudaGraphSetConditional"
_CONDITIONS_HEADER = (
    "hearth/graph_conditions.h",
    f'extern "C" __device__ inline void {_SET_CONDITIONAL}(cudaGraphConditionalHandle handle, unsigned int value) '
    "{ *reinterpret_cast<volatile unsigned int*>(handle) = value; }\n",
)
"""The handle of a condition is the address of its value in device memory. NVRTC knows the type of a handle. A program
may declare the function itself, as CUDA's samples do."""


def headers_for(source: Source) -> tuple[Header, ...]:
    """Returns the headers that the compiler adds in front of a program."""
    text = "\n".join((source.code, *(text for _, text in source.headers)))
    headers = []
    if any(name in text for name in _DEPENDENT_LAUNCH) and _DEVICE_RUNTIME not in text:
        headers.append(_DEPENDENT_LAUNCH_HEADER)
    if _SET_CONDITIONAL in text:
        headers.append(_CONDITIONS_HEADER)
    return tuple(headers)


def check_binary(code: bytes) -> None:
    """Raises Refusal(MODULE_INVALID) for PTX, CUBIN or fatbin that calls the driver's function."""
    if _SET_CONDITIONAL.encode() in code:
        raise Refusal(
            Reason.MODULE_INVALID,
            f"the code calls the driver's {_SET_CONDITIONAL}, whose handles a client does not have",
            fix="send the CUDA C++ source, or set the value of the condition by a pointer to it",
        )
