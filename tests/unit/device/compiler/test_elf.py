"""Sections and symbols of an object file of the host's compiler."""

from __future__ import annotations

from pathlib import Path

from hearthd.device.compiler.elf import SHT_RELA, STB_GLOBAL, STT_TLS, ElfFile
from hearthd.device.cpu.toolchain import find_toolchain

SOURCE = b"int g = 3; static int s[5] = {1}; __thread char t[7]; extern int q; int* f() { return s + g + q; }"


def test_sections_and_symbols_of_an_object_file(tmp_path: Path) -> None:
    find_toolchain().run(["-x", "c++", "-c", "-", "-o", "a.o"], tmp_path, SOURCE)
    file = ElfFile((tmp_path / "a.o").read_bytes())
    symbols = {symbol.name: symbol for symbol in file.symbols()}
    assert (symbols[b"g"].binding, symbols[b"g"].size, symbols[b"t"].size) == (STB_GLOBAL, 4, 7)
    assert symbols[b"t"].kind == STT_TLS and symbols[b"_ZL1s"].binding != STB_GLOBAL
    assert not symbols[b"q"].section and file.name(file.sections[symbols[b"g"].section]).startswith(".data")
    g = symbols[b"g"]
    assert file.content(file.sections[g.section])[g.value : g.value + 4] == b"\3\0\0\0"
    assert any(section.kind == SHT_RELA and section.size for section in file.sections)
