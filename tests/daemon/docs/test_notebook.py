"""The notebook of the documentation runs from top to bottom and prints the output that it contains."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.daemon.harness import DaemonProcess
from tests.support.folders import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = ROOT / "docs" / "examples" / "hearth.ipynb"


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """Returns the printed output of each cell; other output depends on the machine."""
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_notebook(daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HEARTH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEARTH_TARGET", daemon.unix)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    shown = printed(notebook)
    ran = nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    assert printed(ran) == shown and any(shown)
    everything = "".join(str(output.get("data", "")) for cell in ran.cells for output in cell.get("outputs", ()))
    assert "hearth.Node" in everything
