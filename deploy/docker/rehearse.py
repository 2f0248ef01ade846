"""Builds the Dockerfile without a container engine, and runs the image as an engine would.

    python deploy/docker/rehearse.py [--build-arg EXTRA=server] [--installed]

This machine's root file system, under an overlay, replaces the base images. BuildKit's parser (package `dockerfile`)
reads the Dockerfile, and its steps run unchanged. The image's command then runs as process 1 of separate namespaces, as
the image's user, without capabilities, on a read-only root. The rehearsal runs the health check, runs clients through
the mounted socket, causes the loss of a device, checks that no zombie remains, and drains the daemon by SIGTERM.

It does not check that the tags of the base images exist and that these images are sufficient, BuildKit's caching, the
seccomp and AppArmor profiles of an engine, or GPUs. It needs root (for mounts), Linux with overlayfs, and a package
index. With `--installed` it uses the packages of this Python, and downloads only packages that build the wheel.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from image import Builder, Failed, Image
from instance import Instance

ROOT = Path(__file__).parents[2]
_INSIDE = "HEARTH_REHEARSAL"
_COMPILERS = ["g++", "g++-12", "g++-13", "g++-14", "clang"]
"""Compilers that are removed, because the base images have none and the Dockerfile must install what it needs. With
EXTRA=server, which is only for the rehearsal, the compilers of this machine remain."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--installed", action="store_true", help="use the packages of this Python")
    options = parser.parse_args()
    if os.environ.pop(_INSIDE, "") != "1":
        return _in_mounts_of_its_own()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`
    arguments = dict(each.split("=", 1) for each in options.build_arg)
    with _scratch() as folder:
        try:
            builder = Builder(ROOT, folder, arguments)
            # the base images allow that pip installs system-wide; the Python of a distribution may refuse it
            builder.environment[""]["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
            if arguments.get("EXTRA", "cpu") != "server":
                builder.without = _COMPILERS
            image = _packages_of_this_python(builder) if options.installed else builder.build()
            say("built", f"{image.size() / 1e6:.0f} MB above the base, labels {image.labels}")
            _use(image, folder)
        except Failed as failed:
            print(f"rehearse: {failed}", file=sys.stderr)
            return 1
    say("done", "all steps")
    return 0


def say(what: str, text: str) -> None:
    print(f"{what}: {text}", flush=True)


def _in_mounts_of_its_own() -> int:
    """Runs the same command in a mount namespace, so that its mounts are private and end with it."""
    if os.geteuid():
        print("rehearse: root is required, to mount file systems", file=sys.stderr)
        return 2
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
    return subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yields a directory in memory, which ends with the mounts. An overlay cannot be in its own lower layer."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-rehearsal-"))  # short: a socket's path has at most 107 bytes
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(folder)], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
        folder.rmdir()


def _packages_of_this_python(builder: Builder) -> Image:
    """Builds the image with the packages of this Python, and downloads only packages that build the wheel.

    pip installs only the wheel; a .pth file adds the directory of the other packages.
    """
    place = "/opt/installed"
    builder.shared[place] = sysconfig.get_paths()["purelib"]
    builder.environment["packages"] = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    image = builder.build()
    folder = next(image.root.glob("opt/hearth/lib/python3*/site-packages"))
    (folder / "installed.pth").write_text(place + "\n")
    return image


# ---- use of the image ----


def _use(image: Image, folder: Path) -> None:
    with Instance(image, folder) as daemon:
        say("runs", f"{' '.join(daemon.command)}: {daemon.first_line}")
        say("confined", daemon.confinement())
        status, text = daemon.health_check()
        if status or text.strip() != "SERVING":
            raise Failed(f"the health check printed {text!r}, exit status {status}\n{daemon.log()}")
        say("healthy", " ".join(image.health_check))
        began = time.monotonic()
        client = daemon.beside(["python3", "/client.py"], ROOT / "deploy" / "docker" / "client.py")
        say("client", f"in a separate container, as in compose.yml: {client.strip()}")
        say("first", f"with an empty cache, the client took {time.monotonic() - began:.1f} s from its start")
        _work(daemon)
        zombies = daemon.zombies()
        deadline = time.monotonic() + 10
        while zombies and time.monotonic() < deadline:
            time.sleep(0.05)
            zombies = daemon.zombies()
        if zombies:
            raise Failed(f"zombies remain: {zombies}")
        say("reaped", "no zombie after a device was lost")
        code, seconds = daemon.stop()
        if code:
            raise Failed(f"{image.stop_signal} ended it with {code} after {seconds:.1f} s\n{daemon.log()}")
        say("drained", f"{image.stop_signal} ended it with 0 after {seconds:.1f} s")


def _work(daemon: Instance) -> None:
    """Runs a client's first kernel through the mounted socket, and causes the loss of a device."""
    import numpy as np

    import hearth

    source = r"""
extern "C" __global__ void add(float* x, float a, int n) { int i = threadIdx.x; if (i < n) x[i] += a; }
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) { } }
"""
    with hearth.connect(f"unix:{daemon.socket}", launch_timeout=0.5) as node:
        gpu = node.device(0)
        module = gpu.RawModule(code=source)
        x = gpu.zeros(32, np.float32)
        module.get_function("add")((1,), (32,), (x, np.float32(2), np.int32(32)))
        if not (x.get() == 2).all():
            raise Failed("the kernel's result is wrong")
        say("worked", f"a kernel on {gpu.properties.name}")
        module.get_function("endless")((1,), (1,), (gpu.zeros(1, np.int32),))
        try:
            gpu.synchronize()
        except hearth.DeviceLostError as error:
            say("lost", f"a device, on purpose: {error.reason}")


if __name__ == "__main__":
    raise SystemExit(main())
