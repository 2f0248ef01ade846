"""Number of cores that a process may use, by its control groups."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from hearth_proto.cores import cores, quota


def group(root: Path, path: str, text: str) -> None:
    (root / path).mkdir(parents=True, exist_ok=True)
    (root / path / "cpu.max").write_text(text)


def test_a_process_has_some() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_missing_control_groups_set_no_bound(tmp_path: Path) -> None:
    assert quota(str(tmp_path), str(tmp_path / "none")) == math.inf


def test_the_tightest_group_on_the_way_counts(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("1:cpu:/other\n0::/kube/pod/box\n")
    for path, text in (("", "max 100000"), ("kube", "400000 100000"), ("kube/pod", "150000 100000")):
        group(tmp_path / "fs", path, text)
    group(tmp_path / "fs", "kube/pod/box", "max 100000")
    group(tmp_path / "fs", "kube/else", "10000 100000")
    assert quota(str(tmp_path / "fs"), str(groups)) == 1.5
    group(tmp_path / "fs", "", "50000 100000")
    assert quota(str(tmp_path / "fs"), str(groups)) == 0.5


@pytest.mark.parametrize("said", ["0::/../../elsewhere\n", "0::/\n", "nonsense", "", "\0"])
def test_in_a_container_the_root_is_its_own_group(tmp_path: Path, said: str) -> None:
    (tmp_path / "groups").write_text(said)
    group(tmp_path / "fs", "", "200000 100000")
    assert quota(str(tmp_path / "fs"), str(tmp_path / "groups")) == 2.0


@pytest.mark.parametrize("text", ["", "max", "max max", "0 100000", "100000 0", "-1 100000", "a b c"])
def test_unreadable_limit_sets_no_bound(tmp_path: Path, text: str) -> None:
    group(tmp_path, "", text)
    assert quota(str(tmp_path), str(tmp_path / "none")) == math.inf


@pytest.mark.parametrize(("limit", "share"), [("250000", 2.5), ("-1", math.inf)])
def test_version_1(tmp_path: Path, limit: str, share: float) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(limit + "\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert quota(str(tmp_path), str(tmp_path / "none")) == share
