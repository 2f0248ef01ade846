"""Compiler options: every option of NVRTC's documentation is treated in one way, which both backends share."""

from __future__ import annotations

import importlib.util

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Source
from hearthd.device.compiler import options as compiler_options
from hearthd.device.compiler.options import ALLOWED, parse_options
from hearthd.device.cpu.options import parse_cpu_options

# The option, the form in which NVRTC gets it ("" if it does not), and "ignored" if the CPU backend's log says so.
ACCEPTED = """
-DN=4                                   | -DN=4                     |
-D=N=4                                  | -DN=4                     |
-D F(x)=(2*(x))                         | -DF(x)=(2*(x))            |
--define-macro=URL="http://x/*y"        | -DURL="http://x/*y"       |
-UN                                     | -UN                       |
--undefine-macro=N                      | -UN                       |
-std=c++11                              | --std=c++11               |
--std=c++20                             | --std=c++20               |
-use_fast_math                          | --use_fast_math           |
--fmad=false                            | --fmad=false              |
-device-int128                          | --device-int128           |
-G                                      | --device-debug            |
--device-debug                          | --device-debug            |
-default-device                         | --device-as-default-execution-space |
--device-as-default-execution-space     | --device-as-default-execution-space |
-lineinfo                               | --generate-line-info      | ignored
--generate-line-info                    | --generate-line-info      | ignored
-maxrregcount=32                        | --maxrregcount=32         | ignored
--ftz=true                              | --ftz=true                | ignored
-prec-sqrt=false                        | --prec-sqrt=false         | ignored
--prec-div=true                         | --prec-div=true           | ignored
-dopt                                   | --dopt=on                 | ignored
--dopt=on                               | --dopt=on                 | ignored
-Ofc=mid                                | --Ofast-compile=mid       | ignored
-extra-device-vectorization             | --extra-device-vectorization | ignored
--restrict                              | --restrict                | ignored
-jtd=101                                | --jump-table-density=101  | ignored
--device-stack-protector=true           | --device-stack-protector=true | ignored
--builtin-move-forward=false            | --builtin-move-forward=false | ignored
-builtin-initializer-list=true          | --builtin-initializer-list=true | ignored
-diag-error=177                         | --diag-error=177          | ignored
--diag-suppress=177,550                 | --diag-suppress=177,550   | ignored
-diag-warn=20012                        | --diag-warn=20012         | ignored
-err-no                                 | --display-error-number    | ignored
--no-display-error-number               | --no-display-error-number | ignored
-brief-diag=true                        | --brief-diagnostics=true  | ignored
-opt-info=inline                        | --optimization-info=inline | ignored
-rdc=true                               | --relocatable-device-code=true | ignored
--relocatable-device-code=true          | --relocatable-device-code=true | ignored
-dc                                     | --relocatable-device-code=true | ignored
--device-c                              | --relocatable-device-code=true | ignored
-dlto                                   | --dlink-time-opt          | ignored
-fsanitize=address                      |                           |
-rdc=false                              |                           | ignored
--relocatable-device-code=false         |                           | ignored
-dw                                     |                           | ignored
--modify-stack-limit=false              |                           | ignored
-no-cache                               |                           | ignored
-frandom-seed=abc                       |                           | ignored
--no-source-include                     |                           | ignored
--split-compile=4                       |                           | ignored
-minimal                                |                           | ignored
--pch                                   |                           | ignored
-pch-verbose=true                       |                           | ignored
--pch-messages=false                    |                           | ignored
-instantiate-templates-in-pch=true      |                           | ignored
-arch=sm_90                             |                           | ignored
--gpu-architecture=compute_80           |                           | ignored
-gencode=arch=compute_90,code=sm_90     |                           | ignored
-I/usr/include                          |                           | ignored
-I include                              |                           | ignored
--include-path=/                        |                           | ignored
-Xptxas=-v                              |                           | ignored
--ptxas-options=-O3                     |                           | ignored
-Xcompiler=-fPIC                        |                           | ignored
-create-pch=a.pch                       |                           | ignored
--use-pch=a.pch                         |                           | ignored
-pch-dir=/tmp                           |                           | ignored
-time=-                                 |                           | ignored
--fdevice-time-trace=trace.json         |                           | ignored
-Werror=all-warnings                    |                           | ignored
--use-bundled-headers=cccl              |                           | ignored
--expt-relaxed-constexpr                |                           | ignored
-O3                                     |                           | ignored
-g                                      |                           | ignored
-m64                                    |                           | ignored
"""

REFUSED = """
-include=a.h
--pre-include=/etc/passwd
-ewp
-dlto=yes
-rdc=maybe
-gen-opt-lto
--optix-ir
-device-float128
-fdevice-syntax-only
-std=c++98
-std=c++03
-std=c++23
-std=gnu++17
-std
-maxrregcount=many
-ftz=yes
-ftz
-dopt=off
-jtd=102
-diag-suppress=x
-w=1
-D
-D1x=2
-DX=/*
-DX="open
-DX=R"(
-DX=\\
-UN M
-foo
--no-such-option
a.cu
"""


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


def refusal(*options: str) -> Refusal:
    """Returns the refusal of the options, which must be the same for both backends."""
    with pytest.raises(Refusal) as caught:
        parse_options(options)
    with pytest.raises(Refusal) as other:
        parse_cpu_options(options)
    assert (caught.value.message, caught.value.fix) == (other.value.message, other.value.fix)
    return caught.value


@pytest.mark.parametrize(("text", "nvrtc", "ignored"), [(*row, "")[:3] for row in rows(ACCEPTED)])
def test_accepted_option(text: str, nvrtc: str, ignored: str) -> None:
    parsed = parse_options([text])
    assert parsed.for_nvrtc() == ([nvrtc] if nvrtc else [])
    notes = parse_cpu_options([text]).notes
    assert any("has no effect on the CPU backend" in note and text in note for note in notes) == bool(ignored)
    is_own = parsed.has("fsanitize")  # the daemon follows it itself
    assert bool(parsed.without_effect(on_gpu=True)) == (not nvrtc and not is_own)
    assert not parse_cpu_options([text, "-w"]).notes


@pytest.mark.parametrize("option", REFUSED.strip().splitlines())
def test_refused_option(option: str) -> None:
    error = refusal("-DN=1", option)
    assert error.reason is Reason.COMPILE_FAILED and error.fix
    assert option in error.message and ALLOWED in error.message
    assert error.details["option"] == option and option in error.details["log"]


def test_table_is_complete() -> None:
    """Checks that each option known to the module is in the tables above, in one of its spellings."""
    tried = {text.split("=")[0].split(" ")[0].lstrip("-") for text, *_ in rows(ACCEPTED + REFUSED)}
    tried |= {text[1] for text, *_ in rows(ACCEPTED + REFUSED) if text[1:2] in ("D", "U", "I")} | {"w"}
    options = [*compiler_options.ACCEPTED, *compiler_options.REFUSED]  # options of NVRTC
    assert [option.long for option in options if not {option.long, option.short} & tried] == []


def test_value_in_next_string() -> None:
    options = ["-D", "N=4", "--std", "c++20", "-maxrregcount", "32", "-U", "M", "", " -dopt ", "-w"]
    expected = ["-DN=4", "--std=c++20", "--maxrregcount=32", "-UM", "--dopt=on", "--disable-warnings"]
    assert parse_options(options).for_nvrtc() == expected
    assert [each.text for each in parse_options(["-arch", "sm_90", "-Xptxas", "-v"]).options] == [
        "-arch sm_90",
        "-Xptxas -v",
    ]
    assert "--pre-include a.h" in refusal("--pre-include", "a.h").message
    assert "more than one line" in refusal("-D", "N=1\n#error").message


def test_cpu_follows_options() -> None:
    parsed = parse_cpu_options(
        ["-DA", "-DB=", "-DA=2", "-UC", "--std=c++14", "-std=c++20", "-use_fast_math", "-device-int128", "-fmad=false"]
    )
    assert parsed.standard == "gnu++20" and parsed.arguments == ["-ffp-contract=off"] and not parsed.notes
    assert parsed.prologue == [
        "#define __USE_FAST_MATH__ 1", "#define __CUDACC_RTC_INT128__ 1", "#define A 1", "#define B ", "#undef A",
        "#define A 2", "#undef C",
    ]  # fmt: skip
    assert parse_cpu_options(["-fmad=false", "-fmad=true"]).arguments == []


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed")
def test_nvrtc_takes_accepted_options() -> None:
    """Tests the newest options only if NVRTC knows them: an older NVRTC names those that it refuses."""
    from hearthd.device.cuda.nvrtc import NvrtcCompiler

    compiler = NvrtcCompiler((9, 0), ())
    code = 'extern "C" __global__ void f(int* x) { *x = 1; }'
    recent = ("-jtd", "-Ofc", "--device-stack-protector")
    for text, *_ in rows(ACCEPTED):
        try:
            compiler.compile(Source(code, (text,)))
        except Refusal as error:
            assert text.startswith(recent) and "refuses an option" in error.message, (text, error)
    assert "has no effect here" in compiler.compile(Source(code, ("--split-compile=4",))).log
