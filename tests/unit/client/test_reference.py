"""Every public name has a docstring, and the reference can be generated."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import hearth
from tests.support.folders import ROOT


def _members(owner: type) -> list[str]:
    """Returns public functions and properties of a class of Hearth that have no docstring, including inherited ones."""
    return [
        f"{owner.__name__}.{name}"
        for name, value in inspect.getmembers(owner)
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and not (inspect.getdoc(value) or "").strip()
        and (getattr(value, "__module__", None) or "hearth").startswith("hearth")
    ]


def test_everything_public_has_a_docstring() -> None:
    missing = []
    for name in hearth.__all__:
        value = getattr(hearth, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            if not (value.__doc__ or "").strip():
                missing.append(name)
            if inspect.isclass(value):
                missing += _members(value)
    assert not missing


def test_the_reference_is_made(tmp_path: Path) -> None:
    """Runs in a separate process, because it changes pdoc."""
    script = ROOT / "docs" / "reference.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=100)
    page = (tmp_path / "hearth.html").read_text()
    for name in hearth.__all__:
        assert f'id="{name}"' in page, name
    for part in ("Device.asarray", "Device.dispatch", "DeviceArray.get", "Group.all_reduce"):
        assert f'id="{part}"' in page, part
    assert "Uploads the inputs, runs the kernel" in page and "_connection" not in page
