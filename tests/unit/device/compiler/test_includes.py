"""Includes of host files are detected in every spelling that a compiler accepts."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.compiler import includes

SECRET = "/etc/passwd"

SPELLINGS = {
    "absolute": '#include "/etc/passwd"',
    "angled": "#include </etc/passwd>",
    "up": '#include "../../etc/passwd"',
    "up in the middle": '#include "mine/../../x"',
    "spaces": '  #  include   "/etc/passwd"',
    "tabs and feeds": '\t#\v\finclude\f"/etc/passwd"',
    "digraph": '%:include "/etc/passwd"',
    "trigraph": '??=include "/etc/passwd"',
    "comment before": '/* x */ #include "/etc/passwd"',
    "comment within": '#/* x\n */include/* y */"/etc/passwd"',
    "spliced": '#inc\\\nlude "/etc/passwd"',
    "spliced in the name": '#include "/et\\\nc/passwd"',
    "spliced with blanks": '#inc\\ \t\nlude "/etc/passwd"',
    "spliced by trigraph": '#inc??/\nlude "/etc/passwd"',
    "carriage return": '#include "/etc/passwd"\r\n',
    "after a lone carriage return": 'int a;\r#include "/etc/passwd"',
    "after a byte order mark": '\ufeff#include "/etc/passwd"',
    "next": '#include_next "/etc/passwd"',
    "import": '#import "/etc/passwd"',
    "embed": 'const char x[] = {\n#embed "/etc/passwd"\n};',
    "has_include": '#if __has_include("/etc/passwd")\n#error it is there\n#endif',
    "has_embed": "#if __has_embed( </etc/passwd> )\n#endif",
    "has_include renamed": '#define H __has_include\n#if H("x")\n#endif',
    "has_include pasted": '#define CAT(a, b) a##b\n#if CAT(__has_, include)("/etc/passwd")\n#endif',
    "macro": '#define WHERE "/etc/passwd"\n#include WHERE',
    "macro defined later": '#ifdef AGAIN\n#include WHERE\n#endif\n#define WHERE "/etc/passwd"',
    "function-like macro": "#define S(x) #x\n#define Q(x) S(x)\n#include Q(/etc/passwd)",
    "a header's own macro": "#include __STRINGIFY(/etc/passwd)",
    "the file's name": '#line 1 "/etc/passwd"\n#include __FILE__',
    "line": '#line 1 "/etc/passwd"\n#error quoted from there',
    "line marker": '# 1 "/usr/include/x.h" 1 3\nasm(".incbin");',
    "line by macro": '#define F "/etc/passwd"\n#line 1 F',
    "line number by macro": '#define L 1 "/etc/passwd"\n#line L',
    "raw string": '#include R"(/etc/passwd)"',
    "backslashes": '#include "\\etc\\passwd"',
    "incbin": 'asm(".incbin \\"/etc/passwd\\"");',
    "pragma dependency": '#pragma GCC dependency "/etc/passwd"',
    "pragma pch": '#pragma GCC pch_preprocess "/etc/passwd"',
    "behind a very long comment": f'#include /*{"x" * 10_000}*/ "/etc/passwd"',
    "defined behind a very long comment": f'#define /*{"x" * 10_000}*/ WHERE "/etc/passwd"\n#include WHERE',
    # text that only resembles a comment
    "a comment that has ended": '/* x\n// */ #include "/etc/passwd"',
    "a splice that is none": '// x \\ \n#include "/etc/passwd"',
    "a trigraph that is none": '// x ??/\n#include "/etc/passwd"',
    "a comment in a header's name": '#include <x/*y>\n#include "/etc/passwd"\n// */',
    "a comment in a raw string": 'const char* a = R"(\n/* )";\n#include "/etc/passwd"\n// */',
    "a digit separator": "int a = 1'0 /* '\n;\n#include \"/etc/passwd\"\n// */",
}


def refusal(code: str, headers: dict[str, str] | None = None, options: tuple[str, ...] = ()) -> Refusal:
    with pytest.raises(Refusal) as caught:
        includes.check(code, headers or {}, options)
    return caught.value


@pytest.mark.parametrize("code", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_is_refused(code: str) -> None:
    error = refusal(f"int before;\n{code}\nint after;\n")
    assert error.reason is Reason.COMPILE_FAILED
    assert "headers={" in error.fix and error.details["log"].startswith(includes.SOURCE)
    assert int(error.details["line"]) >= 2


@pytest.mark.parametrize("code", SPELLINGS.values(), ids=SPELLINGS)
def test_sent_headers_are_checked_too(code: str) -> None:
    error = refusal('#include "mine.h"', {"mine.h": code})
    assert error.details["file"] == "mine.h"


def test_position_and_name_of_an_include_are_reported() -> None:
    error = refusal('int a;\\\nint b;\n\n  #include "/etc/passwd"\n')
    assert error.message.startswith('kernel.cu(4): #include "/etc/passwd"')
    assert (error.details["include"], error.details["line"]) == (SECRET, "4")


@pytest.mark.parametrize(
    "code",
    [
        "#include <cuda_fp16.h>\n#include <cuda/std/limits>\n#include <cooperative_groups/reduce.h>",
        '#include "mine/ops.cuh"\n#include "a..b.h"\n#include <x.hpp>',
        "#if defined(__has_include) && __has_include(<cuda_fp8.h>)\n#include <cuda_fp8.h>\n#endif",
        "#ifdef __has_include\n#if __has_include(<a.h>)\n#endif\n#endif",
        '// #include "../common.h"\n    // #include WHERE\n#define WHERE 1\n',
        "/* the daemon cannot #include what it has not got */",
        "#line 12\n#line 40 \"ops.cu\"\n# 7 \"ops.cu\" 2",
        "int include = 1, line = 2;\nlist.include(line);\nif (a < b/c) import = 3; /* x */ line = 4;",
        "#if A < /* b */ 2\n#elif B </* c */3\n#endif",
        "#pragma unroll 4\n#pragma once\n#define N 4",
        '#include <x.h> // "/etc/passwd" is not read\nconst char* path = "/etc/passwd";',
        "#define __has_feature(x) 0",
    ],
)  # fmt: skip
def test_usual_code_is_accepted(code: str) -> None:
    includes.check(code, {"mine/ops.cuh": code})


def test_names_that_options_define_count_as_macros() -> None:
    assert "#include WHERE" in refusal("#include WHERE", options=('-DWHERE="/etc/passwd"',)).message
    assert "#include WHERE" in refusal("#include WHERE", options=("-D", 'WHERE="/etc/passwd"')).message
    includes.check("#include WHERE", {})  # the compiler reports that WHERE is not a file name


@pytest.mark.parametrize(
    "name", ["/etc/x.h", "../x.h", "a/../../x.h", "", "a\\..\\x.h", "a\0b", "a\nb", 'a"b', "x" * 2000]
)
def test_headers_names_stay_in_their_directory(name: str) -> None:
    error = refusal("", {name: ""})
    assert error.reason is Reason.COMPILE_FAILED and "header name" in error.message


def test_options_and_expressions_of_several_lines_are_refused() -> None:
    assert "more than one line" in refusal("", options=("-DX=1\n#include SECRET",)).message
    with pytest.raises(Refusal, match="name expression"):
        includes.check("", {}, (), ('f<int>;\n#include "/etc/passwd"',))


@pytest.mark.parametrize(
    "unit",
    [
        "#/*",
        "#",
        " ",
        "//",
        "//\n",
        "#include /*",
        "*/ ",
        '#if "',
        "__has_include",
        "\\\n",
        "#if ",
        "// x\\\n",
        "#line",
    ],
)
def test_time_is_linear(unit: str) -> None:
    """Checks that a source built to be slow to scan takes no longer than others of its size."""
    small, large = (unit * (size // len(unit)) for size in (40_000, 1_000_000))

    def measured(code: str) -> float:
        started = time.process_time()
        with contextlib.suppress(Refusal):
            includes.check(code, {})
        return time.process_time() - started

    measured(small)
    assert measured(large) < 25 * 8 * max(measured(small), 0.002)


@given(
    st.text(alphabet="#%:?=/*\\\n \t\"'<>R()aindeclu_1", max_size=60),
    st.sampled_from([" ", "\t", "/**/", "/* a\nb */", "\\\n"]),
    st.sampled_from(["#", "%:"]),
)
@example("// ", " ", "#")
def test_directive_on_a_separate_line_is_found_after_any_text(before: str, blank: str, sign: str) -> None:
    """Checks that the directive is refused, for any reason, even if the text before it turns it into a comment."""
    refusal(f'{before}\n{sign}{blank}include{blank}"{SECRET}"\n')
