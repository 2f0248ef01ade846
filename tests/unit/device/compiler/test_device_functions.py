"""Headers of device functions in front of a program, and calls in code that another compiler has made."""

from __future__ import annotations

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Source
from hearthd.device.compiler import device_functions

CALL = "__global__ void k(cudaGraphConditionalHandle h) { cudaGraphSetConditional(h, 1); }"


def test_only_programs_that_name_the_function_get_its_definition() -> None:
    plain = Source("__global__ void k() {}")
    assert not device_functions.headers_for(plain)
    for source in (Source(CALL), Source('#include "a.h"', headers=(("a.h", CALL),))):
        ((name, text),) = device_functions.headers_for(source)
        assert name == "hearth/graph_conditions.h" and "cudaGraphConditionalHandle handle" in text


def test_other_code_that_calls_the_function_is_refused() -> None:
    device_functions.check_binary(b".version 8.0\n.target sm_80\n")
    with pytest.raises(Refusal, match="whose handles a client does not have") as caught:
        device_functions.check_binary(b".version 8.0\n.extern .func cudaGraphSetConditional\n(.param .b64 a);")
    assert caught.value.reason == Reason.MODULE_INVALID and "source" in caught.value.fix
