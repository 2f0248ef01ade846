"""A program that starts with its modules imported: forked by `fork_server.py`, and then a child of this process."""

from __future__ import annotations

import ctypes
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_PR_SET_CHILD_SUBREAPER = 36
_ROOM = 4096
"""Bytes reserved for the command line of a forked process, and for additional variables of its environment."""
_START_S = 60.0
_DEFAULTS = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "GRPC_VERBOSITY": "NONE"}
"""Variables that `hearthd` sets if they are not set: in the fork server, and in a test that runs parts of it."""


class ForkServer:
    """A process with the modules of `hearthd serve` imported; it ends with this process."""

    def __init__(self, environment: Mapping[str, str], varying: Collection[str]) -> None:
        """`environment` is the environment in which the interpreter and the modules start. Variables in `varying` may
        have other values in a forked process."""
        self._varying = frozenset(varying)
        self._environment = self._shared(environment)
        self._folder = Path.cwd()
        self._lock = threading.Lock()
        self._requests, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(_START_S)
        with server_end:
            command = [sys.executable, "-m", "tests.support.daemon.fork_server", str(server_end.fileno()), " " * _ROOM]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[server_end.fileno()],
                env={**environment, "ROOM": " " * _ROOM},
            )

    def _shared(self, environment: Mapping[str, str]) -> dict[str, str]:
        variables = environment.items() - _DEFAULTS.items()
        return {name: value for name, value in variables if name not in self._varying}

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Returns whether a new interpreter, started now with this environment, would behave the same as a fork."""
        return self._shared(environment) == self._environment and Path.cwd() == self._folder

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> int:
        """Forks a new child of this process that runs `python -m` with these arguments; returns its pid."""
        request = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        prctl = ctypes.CDLL(None).prctl
        with self._lock:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._requests, [request], descriptors)
                pid = int(self._requests.recv(100))
            finally:
                prctl(_PR_SET_CHILD_SUBREAPER, 0)
        return pid

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


class Forked(subprocess.Popen[str]):
    """A `Popen` of `python -m`, with standard output as a text pipe."""

    def __init__(
        self, server: ForkServer, arguments: Sequence[str], environment: Mapping[str, str], stderr: IO[str] | int
    ) -> None:
        self._server = server
        super().__init__(arguments, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)

    def _execute_child(self, args: Any, executable: Any, preexec: Any, close: Any, pass_fds: Any, cwd: Any, env: Any,
                       startupinfo: Any, flags: Any, shell: Any, *more: Any) -> None:  # fmt: skip
        pipes = more[:6]
        self.pid = self._server.fork(args, env, [pipes[3], pipes[5]])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
