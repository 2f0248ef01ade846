"""Main program of a compile worker, which compiles one source after the other in a process without the device.

Started by `hearthd.device.compiler.worker_process`, as a fresh interpreter or as a copy of a process that has not
started any thread. Sources are untrusted, and a fault in a compiler may make it run untrusted code. So a worker has no
CUDA context, no socket except the one to its device process, access to little of the file system
(`hearthd.device.platform.sandbox`), and limited time and memory for each compile. It leads a process group, which ends
when the device process ends for any reason, and adopts the processes that its compilers leave behind.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hearth_proto.reasons import Refusal
from hearthd.device.backend.compiler import Assembly, Compiler, Image, Job, LinkJob
from hearthd.device.compiler import includes, protocol
from hearthd.device.compiler.limits import CompileLimits, CompilerEnded, internal_failure
from hearthd.device.platform import sandbox
from hearthd.shared import disk
from hearthd.shared.lifeline import die_with

Main = Callable[[int, int], None]
"""A worker's entry point, a function at a module's top level. Arguments: the descriptors of its link and its
lifeline."""

OPEN_FILES = 512
_REAP_INTERVAL_S = 0.05
"""Interval at which an idle worker checks whether orphans have ended, in seconds."""

_SYSTEM_READS = (
    "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache", "/dev/urandom",
    "/proc/cpuinfo",
)  # fmt: skip
"""Shared libraries, some of which are loaded only on first use."""
_SYSTEM_WRITES = ("/dev/null",)


def main(link_descriptor: int, lifeline: int, load: Callable[[], type[Any]]) -> None:
    """Serves the device process on `link_descriptor` until that socket closes.

    Args:
        link_descriptor: The socket to the device process.
        lifeline: A pipe that the device process holds open.
        load: Imports the class of the compiler, whose `from_recipe` takes a recipe.
    """
    if not die_with(lifeline, group=True):  # the device process has ended already
        sys.exit(1)
    sandbox.adopt_orphans()
    with socket.socket(fileno=link_descriptor) as link:
        try:
            compiler_class: Any = load()  # takes longest, so it runs before the recipe is received
            setup, _ = protocol.receive(link)
            compiler: Compiler = compiler_class.from_recipe(setup["recipe"])
            limits = CompileLimits(setup["seconds"], setup["memory"], setup["file_bytes"])
            hello = _set_up(compiler, setup, limits)
            protocol.send(link, hello)
            while True:
                _reap_until_request(link)
                head, parts = protocol.receive(link)
                protocol.send(link, {"begun": True})
                _run_request(link, compiler, limits, head, parts)
                _clear(Path(setup["scratch"]))
        except protocol.WorkerConnectionClosed:
            pass


def _set_up(compiler: Compiler, setup: dict[str, Any], limits: CompileLimits) -> dict[str, Any]:
    """Loads everything that a compile needs, then enters the sandbox. Returns the worker's first message."""
    scratch = setup["scratch"]
    os.chdir(scratch)  # NVRTC finds headers in the working directory
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # the daemon has its own cache
    compiler.load()
    sandbox.address_space()
    sandbox.limit(file_bytes=limits.file_bytes, files=OPEN_FILES)
    confined = ""
    if setup["confine"]:
        reads, writes = compiler.sandbox_paths()
        confined = sandbox.confine([*_SYSTEM_READS, *reads], [scratch, *_SYSTEM_WRITES, *writes])
    identity = "" if compiler.light else compiler.identity().hex()
    return {
        "identity": identity,
        "confined": confined,
        "address_space": sandbox.address_space(),
        "resident": sandbox.largest_resident(),
    }


def _run_request(
    link: socket.socket, compiler: Compiler, limits: CompileLimits, head: dict[str, Any], parts: list[bytes]
) -> None:
    try:
        sandbox.allot(memory=limits.memory, seconds=limits.seconds)
        if head["job"] in ("assembler", "linker"):
            identity = compiler.assembler() if head["job"] == "assembler" else compiler.linker()
            protocol.send(link, {"identity": identity.hex()})
            return
        job = protocol.unpack_job(head, parts)
        parts.clear()
        image = _run_job(compiler, job)
        answer, code = protocol.pack_image(image)
        if len(image.code) > limits.file_bytes:
            raise limits.too_large()
        answer["address_space"] = sandbox.address_space()
        protocol.send(link, answer, code)
        return
    except Refusal as error:
        refusal = includes.hint(error)
    except CompilerEnded as error:
        refusal = limits.ended_by_signal(error.number, error.log)
    except MemoryError:
        refusal = limits.out_of_memory()
    except protocol.WorkerConnectionClosed:
        raise
    except Exception as error:  # an internal error: its message goes to the client, the traceback to the log
        refusal = disk.temporary()
        if not disk.is_full(error):
            traceback.print_exc()
            refusal = internal_failure(error)
    protocol.send(link, protocol.pack_refusal(refusal))


def _run_job(compiler: Compiler, job: Job) -> Image:
    if isinstance(job, Assembly):
        return compiler.assemble(job)
    for source in job.sources if isinstance(job, LinkJob) else (job,):
        includes.check(source.code, dict(source.headers), source.options, source.name_expressions)
    return compiler.link(job) if isinstance(job, LinkJob) else compiler.compile(job)


def _reap_until_request(link: socket.socket) -> None:
    """Reaps the worker's children until the next job arrives.

    Between two jobs all children are orphans: processes that a compiler's driver started and left behind.
    """
    while _reap_orphans() and not select.select([link], [], [], _REAP_INTERVAL_S)[0]:
        pass


def _reap_orphans() -> bool:
    """Reaps the orphans that have ended; returns True if others are still running."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
