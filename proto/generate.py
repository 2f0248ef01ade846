"""Generates the Python stubs beside their .proto files (`make proto`), or checks that they are fresh (`--check`).

Needs grpcio-tools in the version that the Makefile pins: generated code binds its users to the protobuf release that
generated it or newer, so an old generator keeps the thin client installable beside other people's packages.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
SOURCES = sorted((ROOT / "hearth_proto" / "v1").glob("*.proto"))
SERVICES = {"device.proto", "node.proto"}


def generate(destination: Path) -> None:
    """Generates the stubs of all .proto files in the folder `destination`. Raises `SystemExit` if protoc fails."""
    include = str(resources.files("grpc_tools") / "_proto")
    for source in SOURCES:
        arguments = ["protoc", f"-I{ROOT}", f"-I{include}", f"--python_out={destination}", f"--pyi_out={destination}"]
        if source.name in SERVICES:
            arguments.append(f"--grpc_python_out={destination}")
        if protoc.main([*arguments, str(source)]) != 0:
            raise SystemExit(f"protoc failed on {source}")


def stale() -> list[str]:
    """Returns the names of stubs that differ from what their .proto generates, or that no .proto generates."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = {path.name: path.read_bytes() for path in Path(folder).rglob("*_pb2*.py*")}
    here = {path.name: path.read_bytes() for path in (ROOT / "hearth_proto" / "v1").glob("*_pb2*.py*")}
    return sorted(name for name in fresh.keys() | here.keys() if fresh.get(name) != here.get(name))


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        differing = stale()
        if differing:
            raise SystemExit(f"stale stubs: {', '.join(differing)}; run `make proto`")
    else:
        generate(ROOT)
