"""Files with a key: created once, and refused if other users could have read or written them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hearthd.shared import secret_file


def test_key_is_made_once_by_many(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    seen: list[bytes] = []

    def make() -> None:
        secret_file.ensure(str(path))
        seen.append(secret_file.read(str(path)))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 and len(set(seen)) == 1 and len(seen[0]) == secret_file.SIZE
    assert path.stat().st_mode & 0o777 == 0o600 and [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(32))
    path.chmod(mode)
    with pytest.raises(PermissionError, match="chmod 600"):
        secret_file.ensure(str(path))


def test_invalid_key_files_are_refused(tmp_path: Path) -> None:
    short, link = tmp_path / "short", tmp_path / "link"
    short.write_bytes(b"x")
    short.chmod(0o600)
    link.symlink_to(short)
    for path in (short, link, tmp_path):
        with pytest.raises(OSError):
            secret_file.ensure(str(path))
