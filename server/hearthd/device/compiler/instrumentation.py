"""Instrumentation of PTX: each access to memory is preceded by a check of its address against the access table.

Covers `ld`, `st`, `atom`, `red` and `cp.async` with an address in global or generic memory. Does not cover accesses
through textures and tensor maps, bulk copies, and inline PTX with several instructions on a line. Shared, local and
constant memory and parameters are not buffers. The table lists addresses of buffers, so generic addresses of other
memory never match. Pure.
"""

from __future__ import annotations

import re

from hearthd.device.backend import access_table
from hearthd.device.backend.access_table import READ, UNKNOWN, WRITE

_OTHER_SPACES = frozenset({"shared", "local", "param", "const"})
_KINDS = {"ld": READ, "ldu": READ, "st": WRITE, "atom": UNKNOWN, "red": UNKNOWN}
_ADDRESS = r"\[\s*([%$\w]+)\s*(?:\+\s*(-?(?:0x)?[0-9a-fA-F]+))?\s*\]"
_ACCESS = re.compile(rf"\s*(@!?[%$\w]+\s+)?(ld|ldu|st|atom|red)((?:\.[\w:]+)+)\s[^;\[]*{_ADDRESS}[^;]*;\s*$")
_ASYNC = re.compile(
    rf"\s*(@!?[%$\w]+\s+)?cp\.async\.c[ag]\.shared(?:::cta)?\.global[\w.:]*\s+\[[^\]]*\]\s*,\s*{_ADDRESS}\s*,"
    r"\s*(\d+)[^;]*;\s*$"
)
_TYPE = re.compile(r"[busf](8|16|32|64|128)|bf16|[bf]*f16x2|bf16x2")
_PACKED = {"bf16": 2, "f16x2": 4, "bf16x2": 4}
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_HEADER_END = re.compile(r"^\.address_size\s+64\s*$", re.MULTILINE)

_CHECK = f"""
.visible .global .align 64 .b8 {access_table.SYMBOL}[{access_table.BYTES}];

.func __hearth_check_access(.param .b64 __hearth_address, .param .b32 __hearth_kind)
{{
\t.reg .pred %p<6>;
\t.reg .b32 %r<8>;
\t.reg .b64 %rd<14>;
\tld.param.u64 %rd1, [__hearth_address];
\tld.param.u32 %r1, [__hearth_kind];
\tshr.u32 %r2, %r1, 8;
\tcvt.u64.u32 %rd2, %r2;
\tadd.s64 %rd3, %rd1, %rd2;
\tmov.u64 %rd4, {access_table.SYMBOL};
\tld.global.u64 %rd5, [%rd4];
\tadd.s64 %rd6, %rd4, {access_table.SPANS};
$hearth_next:
\tsetp.eq.u64 %p1, %rd5, 0;
\t@%p1 bra $hearth_done;
\tld.global.u64 %rd7, [%rd6];
\tld.global.u64 %rd8, [%rd6+8];
\tld.global.u64 %rd9, [%rd6+16];
\tld.global.u64 %rd10, [%rd6+24];
\tadd.s64 %rd6, %rd6, {access_table.SPAN_BYTES};
\tsub.s64 %rd5, %rd5, 1;
\tsetp.lt.u64 %p2, %rd1, %rd7;
\t@%p2 bra $hearth_next;
\tsetp.ge.u64 %p3, %rd1, %rd10;
\t@%p3 bra $hearth_next;
\tsetp.lt.u64 %p4, %rd1, %rd8;
\tsetp.gt.u64 %p5, %rd3, %rd9;
\tor.pred %p4, %p4, %p5;
\t@!%p4 bra $hearth_done;
\tatom.global.add.u32 %r3, [%rd4+8], 1;
\tsetp.ge.u32 %p1, %r3, {access_table.MAX_RECORDS};
\t@%p1 bra $hearth_done;
\tmul.wide.u32 %rd11, %r3, {access_table.RECORD_BYTES};
\tadd.s64 %rd12, %rd4, %rd11;
\tmov.u32 %r4, %ctaid.x;
\tmov.u32 %r5, %ctaid.y;
\tmov.u32 %r6, %ctaid.z;
\tst.global.u64 [%rd12+{access_table.RECORDS}], %rd1;
\tst.global.u32 [%rd12+{access_table.RECORDS + 8}], %r1;
\tst.global.u32 [%rd12+{access_table.RECORDS + 12}], %r4;
\tst.global.u32 [%rd12+{access_table.RECORDS + 16}], %r5;
\tst.global.u32 [%rd12+{access_table.RECORDS + 20}], %r6;
$hearth_done:
\tret;
}}
"""


def instrument(ptx: str) -> str:
    """Returns the PTX of a module with checks. Raises ValueError for PTX that does not have 64-bit addresses."""
    header = _HEADER_END.search(ptx)
    if header is None:
        raise ValueError("the PTX has no .address_size 64")
    lines = [line for text in ptx[header.end() :].split("\n") for line in (*_checks(text), text)]
    return ptx[: header.end()] + "\n" + _CHECK + "\n".join(lines)


def _checks(line: str) -> list[str]:
    """Returns the lines to insert before a line of PTX: the check of its access, or nothing."""
    match = _ACCESS.match(line)
    if match is not None:
        predicate, name, modifiers, base, offset = match.groups()
        tokens = modifiers.split(".")[1:]
        size = _size(tokens)
        if not size or any(token.partition("::")[0] in _OTHER_SPACES for token in tokens):
            return []
        return _call(predicate, base, offset, _KINDS[name], size)
    match = _ASYNC.match(line)
    if match is not None:
        predicate, base, offset, size_text = match.groups()
        return _call(predicate, base, offset, READ, int(size_text))
    return []


def _size(tokens: list[str]) -> int:
    """Returns the number of bytes that an instruction with these modifiers accesses; 0: unknown."""
    typed = next((token for token in reversed(tokens) if _TYPE.fullmatch(token)), "")
    size = _PACKED.get(typed) or int(re.sub(r"\D", "", typed) or 0) // 8
    return size * next((_VECTORS[token] for token in tokens if token in _VECTORS), 1)


def _call(predicate: str | None, base: str, offset: str | None, kind: int, size: int) -> list[str]:
    return [
        "{",
        ".reg .b64 %hearth_address;",
        ".param .b64 hearth_address;",
        ".param .b32 hearth_kind;",
        f"mov.b64 %hearth_address, {base};",
        f"add.s64 %hearth_address, %hearth_address, {offset or 0};",
        "st.param.b64 [hearth_address], %hearth_address;",
        f"st.param.b32 [hearth_kind], {kind | size << 8};",
        f"{(predicate or '').strip()} call __hearth_check_access, (hearth_address, hearth_kind);".strip(),
        "}",
    ]
