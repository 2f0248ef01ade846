"""The segment of a copy communicator: how a process recognizes it. Needs no device."""

from __future__ import annotations

import os

import pytest

from hearthd.device.cuda.sharing.copy_segment import CopySegment, CopySegments


def test_segment_is_opened_by_its_nonce_and_not_by_another_one() -> None:
    segments = CopySegments()
    nonces = [segments.create() for _ in range(2)]
    segments.open(nonces[0]).close()
    files = [segments.fetch(nonce) for nonce in nonces]
    with pytest.raises(ValueError, match="not the segment"):
        CopySegment(nonces[0], files[1])
    CopySegment(nonces[1], files[1]).close()
    for file, nonce in zip(files, nonces, strict=True):
        os.close(file)
        segments.drop(nonce)
    with pytest.raises(OSError):
        segments.open(nonces[0])
