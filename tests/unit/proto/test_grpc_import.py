"""Settings of gRPC at its import, none of which remain in the environment afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import grpc
import pytest

from hearth_proto import grpc_import

_IMPORT = """
import os, sys
from hearth_proto import grpc_import
{before}
grpc_import.import_grpc({experiment!r})
print("grpc" in sys.modules, *(os.environ.get(name) for name in ("GRPC_EXPERIMENTS", "GRPC_ENABLE_FORK_SUPPORT")))
"""

_FORK = """
import os
from hearth_proto import grpc_import
grpc_import.import_grpc(grpc_import.CLIENT)
import grpc
listener = grpc.server(None)
channel = grpc.insecure_channel("127.0.0.1:%d" % listener.add_insecure_port("127.0.0.1:0"))
listener.start()
grpc.channel_ready_future(channel).result(30)
if (child := os.fork()) == 0:
    os._exit(0)
os.waitpid(child, 0)
channel.close()
listener.stop(0)
"""


def _run(program: str, **extra: str) -> tuple[str, str]:
    """Returns stdout and stderr of a program in a new process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**env, "PYTHONPATH": os.pathsep.join(sys.path), **extra},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip(), done.stderr


def _import(experiment: str, before: str = "", **extra: str) -> tuple[str, str]:
    """Returns stdout and stderr of a new process that imports gRPC."""
    return _run(_IMPORT.format(experiment=experiment, before=before), **extra)


_IN_RANGE = "grpc_import._SINCE, grpc_import._BEFORE = (1, 0), (99, 0)"


def test_grpc_version_is_found() -> None:
    assert grpc_import.grpc_version() == tuple(map(int, grpc.__version__.split(".")[:2]))


def test_only_grpc_sees_the_settings() -> None:
    said, complaint = _import("no_such_switch", _IN_RANGE)
    assert said == "True None None" and "no_such_switch" in complaint


@pytest.mark.parametrize("experiment", [grpc_import.CLIENT, grpc_import.LISTENER])
def test_installed_grpc_has_the_experiment_in_the_expected_versions(experiment: str) -> None:
    """A failure means that this version of gRPC no longer has the switch: lower `_BEFORE`."""
    assert _import(experiment) == ("True None None", "")


@pytest.mark.parametrize(
    ("before", "extra"),
    [
        ("import grpc", {}),
        ("", {"GRPC_EXPERIMENTS": "-event_engine_fork", "GRPC_ENABLE_FORK_SUPPORT": "1"}),
        ("grpc_import._BEFORE = grpc_import._SINCE", {}),
        ("grpc_import.PathFinder = type('', (), {'find_spec': lambda name: None})", {}),
    ],
)
def test_other_settings_of_grpc_are_left_unchanged(before: str, extra: dict[str, str]) -> None:
    said, complaint = _import("no_such_switch", before, **extra)
    assert "no_such_switch" not in complaint
    assert said == f"True {extra.get('GRPC_EXPERIMENTS')} {extra.get('GRPC_ENABLE_FORK_SUPPORT')}"


@pytest.mark.parametrize(("extra", "installed"), [({}, False), ({"GRPC_ENABLE_FORK_SUPPORT": "1"}, True)])
def test_fork_handlers_are_installed_only_if_the_user_enables_them(extra: dict[str, str], installed: bool) -> None:
    """The handlers log that they do nothing while threads use gRPC, as those of its server do here."""
    _, log = _run(_FORK, GRPC_VERBOSITY="debug", **extra)
    assert ("fork() handlers" in log) == installed, log
