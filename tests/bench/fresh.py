"""An interpreter with a new virtual environment, as after a plain installation of the client.

The environment that runs the benchmarks contains more than either side needs, and packages may run code at every start
of its interpreter (a line of code in a .pth file: numba-cuda's takes 40 ms, which is half of a client's first result).
A new environment has none; packages are found at their location by PYTHONPATH, which reads no .pth files.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import venv
from pathlib import Path

_PACKAGES = ("hearth", "hearth_proto", "numpy", "cupy")


def interpreter(folder: Path) -> str:
    """Returns the interpreter's path; creates the environment if it does not exist yet."""
    home = folder / "client"
    if not home.exists():
        venv.create(home, symlinks=True)
    return str(home / "bin" / "python")


def python_path() -> str:
    """Returns the path on which this interpreter finds packages, without the folders of the standard library."""
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard |= {f"{each}/lib-dynload" for each in standard}
    specs = [importlib.util.find_spec(name) for name in _PACKAGES]  # editable installs may be in no folder of sys.path
    found = [str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin]
    found += [each for each in sys.path if Path(each).is_dir() and each not in standard]
    return os.pathsep.join(dict.fromkeys(found))
