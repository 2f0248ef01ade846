"""Decoders of wire data: replays the fuzzers' corpus and all their findings, and a number of random mutations."""

from __future__ import annotations

import pytest

from tests.fuzz import decoders


@pytest.mark.parametrize("name", decoders.DECODERS)
def test_corpus_and_findings(name: str) -> None:
    found = decoders.inputs(name)
    assert found, "each decoder has a corpus"
    for path in found:
        decoders.attempt(name, path.read_bytes())


@pytest.mark.parametrize("name", decoders.DECODERS)
def test_mutated_inputs_of_the_corpus(name: str) -> None:
    assert decoders.search(name, 0.3, 1)


def test_a_number_without_end_is_refused_before_it_is_read() -> None:
    """Decoding such a number took time quadratic in its length: minutes for a megabyte of an upload."""
    endless = bytes((decoders.chunks._UPLOAD_DATA,)) + b"\xff" * (1 << 19)
    with pytest.raises(ValueError, match="ten bytes"):
        decoders.chunks.read_varint(memoryview(endless), 1)
    decoders.attempt("upload", endless)
