"""Runs an image's command as an engine does: as process 1 of separate namespaces and as the image's user, with write
access only to its volumes and /tmp."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from image import Failed, Image

_START_S = 120.0
_CLIENT_S = 120.0
"""Time limit of a client, in seconds. Its first kernel, with an empty cache, waits for the precompiled prelude."""
_STOP_S = 30.0
_NEW = ("--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child=KILL")


class Instance:
    """A running image: `__enter__` returns when the daemon is ready, `__exit__` ends it."""

    def __init__(self, image: Image, folder: Path) -> None:
        self.image = image
        self.command = [*image.entrypoint, *image.command]
        self.volumes = {inside: folder / inside.strip("/").replace("/", "-") for inside in image.volumes}
        self.socket = self.volumes["/run/hearth"] / "hearth.sock"
        self.first_line = ""
        self._log = folder / "log"

    def __enter__(self) -> Instance:
        for inside, outside in self.volumes.items():  # a new volume has the owner and mode of the image's directory
            there = (self.image.root / inside.strip("/")).stat()
            outside.mkdir()
            outside.chmod(there.st_mode & 0o7777)
            os.chown(outside, there.st_uid, there.st_gid)
        mounts = [(str(outside), inside, "rw") for inside, outside in self.volumes.items()]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._started(self.command, mounts), stdout=subprocess.PIPE, stderr=log, text=True
            )
        overdue = threading.Timer(_START_S, self._process.kill)
        overdue.start()
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline().strip()
        overdue.cancel()
        if not self.first_line.startswith("hearthd ready"):
            raise Failed(f"{' '.join(self.command)} did not start: {self.first_line!r}\n{self.log()}")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        self._pid = int(children.split()[0])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # process 1, whose end ends its namespace
        self._process.wait()

    def _started(self, command: list[str], mounts: list[tuple[str, str, str]]) -> list[str]:
        """Returns the command line that runs `command` of the image in new namespaces.

        `mounts`: source, target, "rw" or "ro".
        """
        plan = {
            "root": str(self.image.root),
            "mounts": mounts,
            "user": [int(part) for part in self.image.user.split(":")],
            "workdir": self.image.workdir,
            "env": self.image.env,
            "command": command,
        }
        return ["unshare", *_NEW, sys.executable, __file__, json.dumps(plan)]

    def beside(self, command: list[str], file: Path) -> str:
        """Runs a command while the daemon runs, as in a client's container, and returns its output. Raises `Failed`.

        It has the sockets in a read-only mount, a file at the root, and no network.
        """
        (self.image.root / file.name).touch()  # an engine creates mount points, too
        mounts = [(str(self.socket.parent), "/run/hearth", "ro"), (str(file), f"/{file.name}", "ro")]
        try:
            done = subprocess.run(
                self._started(command, mounts), capture_output=True, text=True, timeout=_CLIENT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command)} took longer than {_CLIENT_S:g} s\n{self.log()}") from None
        if done.returncode:
            raise Failed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def log(self) -> str:
        return self._log.read_text()

    def confinement(self) -> str:
        """Returns the confinement of process 1, as text."""
        lines = (line.partition(":") for line in Path(f"/proc/{self._pid}/status").read_text().splitlines())
        status = {name: value.split() for name, _, value in lines}
        seen = {
            "pid": status["NSpid"][-1], "uid": status["Uid"][0], "gid": status["Gid"][0],
            "CapEff": status["CapEff"][0], "NoNewPrivs": status["NoNewPrivs"][0],
        }  # fmt: skip
        return " ".join(f"{name}={value}" for name, value in seen.items())

    def health_check(self) -> tuple[int, str]:
        """Runs the image's health check inside, and returns its exit status and output."""
        user, group = self.image.user.split(":")
        enter = ["nsenter", "-t", str(self._pid), "-m", "-p", "-n", "-i", "-u", "-r", "-w", "-S", user, "-G", group]
        env = [f"{name}={value}" for name, value in self.image.env.items()]
        done = subprocess.run(
            [*enter, "env", "-i", *env, *self.image.health_check], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def zombies(self) -> list[str]:
        """Returns the children of process 1 that have ended and that it has not reaped."""
        found = []
        for pid in Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split():
            stat = Path(f"/proc/{pid}/stat")
            if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
                found.append(f"process {pid}")
        return found

    def stop(self) -> tuple[int, float]:
        """Sends the image's stop signal, and returns the exit status and the duration in seconds."""
        begin = time.monotonic()
        os.kill(self._pid, signal.Signals[self.image.stop_signal])
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.image.stop_signal} did not end it within {_STOP_S:g} s\n{self.log()}") from None
        return code, time.monotonic() - begin


# ---- inside ----


def _enter(plan: dict) -> None:
    """Sets up the mounts in the new namespaces, drops privileges, and executes the command."""
    root = plan["root"]
    _mount("--rbind", root, root)  # a separate mount, which becomes read-only
    for outside, inside, access in plan["mounts"]:
        _mount("--bind", outside, root + inside)
        if access == "ro":
            _mount("-o", "remount,ro,bind", root + inside)
    for inside in ("/tmp", "/dev/shm"):  # as an engine's tmpfs mounts: noexec
        _mount("-t", "tmpfs", "-o", "rw,noexec,nosuid,nodev,size=64m", "tmpfs", root + inside)
    _mount("-t", "proc", "proc", root + "/proc")
    _mount("-o", "remount,ro,bind", root)
    _loopback()
    os.chroot(root)
    os.chdir(plan["workdir"])
    user, group = plan["user"]
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    libc = ctypes.CDLL(None)
    # PR_SET_PDEATHSIG, which the change of the user cleared, and PR_SET_NO_NEW_PRIVS
    if libc.prctl(1, int(signal.SIGKILL), 0, 0, 0) or libc.prctl(38, 1, 0, 0, 0):
        raise OSError("prctl failed: PR_SET_PDEATHSIG or PR_SET_NO_NEW_PRIVS")
    os.execvpe(plan["command"][0], plan["command"], plan["env"])


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _loopback() -> None:
    """Brings up the loopback interface: SIOCGIFFLAGS, SIOCSIFFLAGS with IFF_UP (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        name, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, 0x8913, request))
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", name, flags | 1))


if __name__ == "__main__":
    _enter(json.loads(sys.argv[1]))
