"""`cudaGraphSetConditional` for kernels: the handle of a condition is the address of its value in device memory.

NVRTC knows the type of a handle, but not the function. A program may declare the function itself, as CUDA's samples do.
Code that another compiler has made calls the driver's function, which takes a handle of the driver. Pure.
"""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Source

_NAME = "cudaGraphSetConditional"
_DEFINITION = (
    f'extern "C" __device__ inline void {_NAME}(cudaGraphConditionalHandle handle, unsigned int value) '
    "{ *reinterpret_cast<volatile unsigned int*>(handle) = value; }\n#line 1\n"
)


def declared(source: Source) -> str:
    """Returns the text of a program, with a definition of the function in front if the program or a header names it.

    Line numbers stay as they are.
    """
    texts = (source.code, *(text for _, text in source.headers))
    return _DEFINITION + source.code if any(_NAME in text for text in texts) else source.code


def check_binary(code: bytes) -> None:
    """Raises Refusal(MODULE_INVALID) for PTX, CUBIN or fatbin that calls the driver's function."""
    if _NAME.encode() in code:
        raise Refusal(
            Reason.MODULE_INVALID,
            f"the code calls the driver's {_NAME}, whose handles a client does not have",
            fix="send the CUDA C++ source, or set the value of the condition by a pointer to it",
        )
