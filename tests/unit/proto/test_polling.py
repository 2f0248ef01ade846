"""Settings of gRPC before its import, none of which remain in the environment afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import grpc
import pytest

from hearth_proto import polling

_IMPORT = """
import os, sys
from hearth_proto import polling
{before}
polling.import_grpc({experiment!r})
print("grpc" in sys.modules, os.environ.get("GRPC_EXPERIMENTS"))
import grpc
"""


def _says(experiment: str, before: str = "", **extra: str) -> tuple[str, str]:
    """Returns stdout and stderr of a new process that imports gRPC."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT.format(experiment=experiment, before=before)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **extra},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip(), done.stderr


_IN_RANGE = "polling._SINCE, polling._BEFORE = (1, 0), (99, 0)"


def test_grpc_version_is_found() -> None:
    assert polling.grpc_version() == tuple(map(int, grpc.__version__.split(".")[:2]))


def test_only_grpc_sees_the_experiment() -> None:
    said, complaint = _says("no_such_switch", _IN_RANGE)
    assert said == "True None" and "no_such_switch" in complaint


@pytest.mark.parametrize("experiment", [polling.CLIENT, polling.LISTENER])
def test_installed_grpc_has_the_experiment_in_the_expected_versions(experiment: str) -> None:
    """A failure means that this version of gRPC no longer has the switch: lower `_BEFORE`."""
    version = tuple(map(int, grpc.__version__.split(".")[:2]))
    said, complaint = _says(experiment)
    assert not complaint and said == f"{polling._SINCE <= version < polling._BEFORE} None"


@pytest.mark.parametrize(
    ("before", "extra"),
    [
        ("import grpc", {}),
        ("", {"GRPC_EXPERIMENTS": "-event_engine_fork"}),
        ("polling._BEFORE = polling._SINCE", {}),
        ("polling.PathFinder = type('', (), {'find_spec': lambda name: None})", {}),
    ],
)
def test_other_settings_of_grpc_are_left_unchanged(before: str, extra: dict[str, str]) -> None:
    said, complaint = _says("no_such_switch", before, **extra)
    assert "no_such_switch" not in complaint
    assert said == f"{before == 'import grpc'} {extra.get('GRPC_EXPERIMENTS')}"
