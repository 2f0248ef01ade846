"""Cost and dependencies of `import hearth`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hearth

# typing_extensions is a dependency of grpcio
ALLOWED = {"numpy", "grpc", "google", "hearth", "hearth_proto", "typing_extensions"}

PROBE = """
import sys
for blocked in ("cupy", "cuda", "hearthd", "ml_dtypes", "grpc_health", "grpc_reflection", "grpc_status"):
    sys.modules[blocked] = None
before = set(sys.modules)
import hearth
assert "numpy" not in sys.modules and "grpc" not in sys.modules, "import hearth is heavy"
for name in hearth.__all__:
    getattr(hearth, name)
import hearth.transport.grpc
third_party = set()
for name in set(sys.modules) - before:
    module = sys.modules[name]
    top = name.partition(".")[0]
    file = getattr(module, "__file__", None) or ""
    own = top in ("hearth__mypyc", "hearth_proto__mypyc")  # of the compiled form
    if not own and top not in sys.stdlib_module_names and not top.startswith("_") and file:
        third_party.add(top)
print(" ".join(sorted(third_party)))
"""


def run(code: str) -> str:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_needs_grpc_protobuf_and_numpy_only() -> None:
    assert set(run(PROBE).split()) <= ALLOWED


def test_import_is_quick() -> None:
    """The limit is on processor time, on which other work on the machine has little effect."""
    code = "import time; t = time.process_time(); import hearth; print(time.process_time() - t)"
    assert min(float(run(code)) for _ in range(3)) < 0.2


def test_public_names_exist() -> None:
    assert sorted(hearth.__all__) == sorted(set(hearth.__all__))
    assert set(hearth._HOME_OF) | {"__version__"} == set(hearth.__all__)
    assert dir(hearth) == sorted(hearth.__all__)
    assert (Path(hearth.__file__).parent / "py.typed").exists()
