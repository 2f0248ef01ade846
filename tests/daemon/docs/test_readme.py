"""The README's program runs as shown, and the names that it mentions exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, environment, on_cpu
from tests.support.daemon.kernels import COMMON
from tests.support.folders import ROOT

README = (ROOT / "README.md").read_text()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_files_and_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z]+)\b", README)) - {"it"}:
        assert f"\n{target}:" in makefile, target
    for path in set(re.findall(r"\b((?:deploy|proto|tests|server|client)/[\w./-]*\w)", README)):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_quoted_error_is_the_one_that_a_launch_raises(page: str, daemon: DaemonProcess) -> None:
    quoted = re.search(r"```\nhearth\.errors\.(\w+): (.*?)\n```", (ROOT / page).read_text(), re.DOTALL)
    assert quoted is not None
    with daemon.connect() as node:
        gpu = node.device(0)
        y = gpu.zeros(4, np.float32)
        saxpy = gpu.RawModule(code=COMMON).get_function("saxpy")
        saxpy((5,), (2000,), (np.float32(2), y, y, np.int32(4)))
        with pytest.raises(getattr(hearth, quoted[1])) as raised:
            gpu.synchronize()
    message, end = str(raised.value), 0
    for fragment in " ".join(quoted[2].split()).split(" ... "):
        end = message.index(fragment.removesuffix(" ..."), end)


@on_cpu
def test_the_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hearthd", "demo"],
        env=environment(
            XDG_CACHE_HOME=str(tmp_path),
            COLUMNS="140",
            HEARTH_DEVICES_BACKEND="cpu",
            # of other daemons
            HEARTH_CONFIG="/nowhere/hearth.toml",
            HEARTH_AUDIT_PATH="/nowhere/audit.log",
            HEARTH_TOKEN_FILE="/nowhere/token",
            HEARTH_CA="/nowhere/ca.pem",
        ),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal to NumPy") == 5
    assert "mean over 2 devices" in done.stdout
    assert "failed" not in done.stdout
    after = done.stdout.partition("\nNext:\n")[2]
    for command in re.findall(r"^  (\S.*?/bin/\w+)", after, re.MULTILINE):
        assert Path(command).exists(), command
    assert "http://127.0.0.1:7422/" in after
