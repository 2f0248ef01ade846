"""The compiler of CUDA devices: NVRTC for source, an assembler for PTX, and a linker.

Imports no CuPy, so that workers start quickly.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cuda.bindings import nvrtc

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Image, LinkJob, Source
from hearthd.device.compiler import image_headers
from hearthd.device.compiler.options import parse_options
from hearthd.device.compiler.parameter_kinds import parameter_kinds
from hearthd.device.cuda.assembler import Linker, PtxAssembler, is_ptx
from hearthd.device.cuda.nvrtc import NvrtcCompiler


class CudaCompiler:
    """Implements `Compiler` for one device. `driver` is the CUDA version that the device's driver supports."""

    light = False

    def __init__(
        self, compute_capability: tuple[int, int], driver: tuple[int, int], includes: Sequence[str] | None = None
    ) -> None:
        self._capability = compute_capability
        self._driver = driver
        self._nvrtc = NvrtcCompiler(compute_capability, includes)
        self._assembler = PtxAssembler(compute_capability, driver)
        self._linker = Linker(compute_capability)

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any]) -> CudaCompiler:
        """Returns an equal compiler in another process."""
        major, minor = recipe["compute_capability"]
        driver_major, driver_minor = recipe["driver"]
        return cls((major, minor), (driver_major, driver_minor), tuple(recipe["includes"]))

    def recipe(self) -> Mapping[str, Any]:
        return {
            "compute_capability": list(self._capability),
            "driver": list(self._driver),
            "includes": list(self._nvrtc.folders),
        }

    def prepare(self, source: Source) -> None:
        pass  # NVRTC needs no prepared files

    def check_files(self) -> None:
        pass  # compiles read no file of this package

    def load(self) -> None:
        with suppress(Refusal):  # the first compile encounters the same error, and reports it
            # A process's first compile takes longest, because it loads the rest of the library.
            self._nvrtc.compile(Source("__global__ void warm() {}"))

    def sandbox_paths(self) -> tuple[Sequence[str], Sequence[str]]:
        # Parts of the toolkit's libraries, and of the bindings, are loaded on first use.
        bindings = [str(Path(nvrtc.__file__).parents[1])]
        spec = importlib.util.find_spec("nvidia")
        wheels = list(spec.submodule_search_locations or ()) if spec else []
        return [*self._nvrtc.folders, *self._assembler.files(), *bindings, *wheels, *_library_folders()], []

    def identity(self) -> bytes:
        return self._nvrtc.identity()

    def compile(self, source: Source) -> Image:
        image = self._nvrtc.compile(source)
        if not parse_options(source.options).has("fsanitize"):
            return image
        try:
            return dataclasses.replace(image, code=self._assembler.assemble(Assembly(image.code)).code)
        except Refusal as refusal:
            if refusal.reason is Reason.NO_COMPILER:
                return image  # the driver compiles the PTX
            raise Refusal(
                Reason.COMPILE_FAILED,
                f"The code with the checks of -fsanitize=address cannot be assembled: {refusal.message}",
                fix="install nvidia-nvjitlink of NVRTC's version in the daemon's environment, or leave out the option",
                details=refusal.details,
            ) from refusal

    def assembly(self, code: bytes) -> Assembly | None:
        return Assembly(code) if image_headers.check(code, self._capability) else None

    def assembler(self) -> bytes:
        return self._assembler.identity()

    def assemble(self, assembly: Assembly) -> Image:
        return self._assembler.assemble(assembly)

    def linker(self) -> bytes:
        return self._linker.identity() + b"\n" + self._nvrtc.identity()

    def link(self, link: LinkJob) -> Image:
        images = [self._relocatable(index, item) for index, item in enumerate(link.inputs)]
        code = self._linker.link([image.code for image in images], parse_options(link.options))
        kinds: dict[str, str] = {}
        names: dict[str, str] = {}
        for image in images:
            kinds.update(image.kinds)
            names.update(image.names)
        return Image(code, names, "\n".join(image.log for image in images if image.log), kinds)

    def _relocatable(self, index: int, item: Source | Assembly) -> Image:
        """Returns an input of a link as code that can be linked. Raises Refusal, which names the input."""
        try:
            if isinstance(item, Source):
                return self._nvrtc.compile(item, relocatable=True)
            image_headers.check_input(item.code, self._capability)
            return Image(item.code, kinds=parameter_kinds(item.code) if is_ptx(item.code) else {})
        except Refusal as refusal:
            refusal.message = f"input {index}: {refusal.message}"
            raise


def _library_folders() -> list[str]:
    """Returns the directories of the CUDA libraries that this process has loaded."""
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - read line by line
        paths = {line.split(None, 5)[5].strip() for line in maps if "/" in line}
    return sorted({os.path.dirname(path) for path in paths if Path(path).name.startswith("libnv")})  # noqa: PTH120
