"""Scratch directories, with other daemons that remove those without an owner."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hearthd.shared.scratch_dir import Scratch


def test_directory_removed_before_it_is_held_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    make = tempfile.mkdtemp

    def cleared_at_first(prefix: str) -> str:
        made.append(Path(make(prefix=prefix, dir=tmp_path)))
        if len(made) == 1:
            made[0].rmdir()  # as another daemon does that starts at this moment
        return str(made[-1])

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", cleared_at_first)
    scratch = Scratch("hearth-test-")
    assert scratch.room().parent == made[1]
    scratch.close()
    assert not list(tmp_path.iterdir())
