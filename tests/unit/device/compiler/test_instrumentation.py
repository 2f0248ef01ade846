"""Instrumentation of PTX: the accesses that are checked, with their address, size and kind."""

from __future__ import annotations

import re

import pytest

from hearthd.device.backend.access_table import READ, UNKNOWN, WRITE
from hearthd.device.compiler.instrumentation import instrument

HEAD = "//\n.version 8.7\n.target sm_90a\n.address_size 64\n\n"


def checks(line: str) -> list[tuple[str, str, str, int, int]]:
    """Returns (predicate, base, offset, kind, size) of each check before the line."""
    text = instrument(f"{HEAD}{line}\n").rsplit("\tret;\n}\n", 1)[1]
    assert text.endswith(f"{line}\n"), "the line itself is unchanged"
    found = re.findall(
        r"mov\.b64 %hearth_address, (\S+);\nadd\.s64 %hearth_address, %hearth_address, (\S+);\nst\.param\.b64 .*\n"
        r"st\.param\.b32 \[hearth_kind\], (\d+);\n(@!?\S+)? ?call __hearth_check_access, ",
        text,
    )
    return [(predicate, base, offset, int(code) & 255, int(code) >> 8) for base, offset, code, predicate in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("\tld.global.b32 \t%r6, [%rd3+4];", ("", "%rd3", "4", READ, 4)),
        ("\tld.global.nc.f64 \t%fd6, [%rd3];", ("", "%rd3", "0", READ, 8)),
        ("\tld.global.v2.b64 \t{%rd18, %rd19}, [%rd17+-16];", ("", "%rd17", "-16", READ, 16)),
        ("\tst.global.v4.f32 \t[%rd1], {%f1, %f2, %f3, %f4};", ("", "%rd1", "0", WRITE, 16)),
        ("\t@%p3 st.global.u8 \t[%rd1], %rs2;", ("@%p3", "%rd1", "0", WRITE, 1)),
        ("\t@!%p3 ld.b16 \t%rs1, [%rd1+0x10];", ("@!%p3", "%rd1", "0x10", READ, 2)),
        ("\tatom.relaxed.gpu.global.add.u64 \t%rd26, [%rd25], 7;", ("", "%rd25", "0", UNKNOWN, 8)),
        ("\tatom.global.add.noftz.f16x2 \t%r1, [%rd25], %r2;", ("", "%rd25", "0", UNKNOWN, 4)),
        ("\tred.global.add.f32 \t[%rd25], %f1;", ("", "%rd25", "0", UNKNOWN, 4)),
        ("\tld.volatile.global.u32 \t%r1, [counter];", ("", "counter", "0", READ, 4)),
        ("cp.async.ca.shared.global [%r4], [%rd2], 16;", ("", "%rd2", "0", READ, 16)),
        ("cp.async.cg.shared::cta.global.L2::128B [%r4], [%rd2+16], 16, %r5;", ("", "%rd2", "16", READ, 16)),
    ],
)
def test_accesses_are_checked(line: str, expected: tuple[str, str, str, int, int]) -> None:
    assert checks(line) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "\tld.param.u64 \t%rd1, [k_param_0];",
        "\tld.shared.f32 \t%f1, [%r3];",
        "\tst.shared::cluster.f32 \t[%r3], %f1;",
        "\tst.local.v4.b32 \t[%rd3], {%r1, %r2, %r3, %r4};",
        "\tld.const.f32 \t%f1, [%rd3];",
        "\tst.param.b32 \t[param0], %r1;",
        "\tadd.s64 \t%rd1, %rd2, %rd3;",
        "// ld.global.b32 %r6, [%rd3+4];",
        "\tprefetch.global.L2 [%rd1];",
    ],
)
def test_other_lines_are_left_alone(line: str) -> None:
    assert checks(line) == []


def test_the_check_function_precedes_the_kernels() -> None:
    text = instrument(f"{HEAD}.visible .entry f() {{ ret; }}\n")
    assert text.startswith(HEAD.rstrip("\n")) and text.index("__hearth_access_table[") < text.index(".visible .entry f")
    with pytest.raises(ValueError, match="address_size"):
        instrument(".version 8.0\n.target sm_80\n")
