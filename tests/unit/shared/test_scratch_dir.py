"""Temporary directories, while other daemons remove the directories that no process holds."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hearthd.shared.scratch_dir import Scratch


def test_one_that_is_cleared_away_before_it_is_held_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    make = tempfile.mkdtemp

    def cleared_at_first(prefix: str) -> str:
        made.append(Path(make(prefix=prefix, dir=tmp_path)))
        if len(made) == 1:
            made[0].rmdir()  # simulates another daemon that starts at this moment and removes the directory
        return str(made[-1])

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", cleared_at_first)
    scratch = Scratch("hearth-test-")
    assert scratch.room().parent == made[1]
    scratch.close()
    assert not list(tmp_path.iterdir())
