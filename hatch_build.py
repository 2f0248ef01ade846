"""Build hook of the wheel: compiles the modules that `pyproject.toml` lists, with mypyc.

`tool.hatch.build.targets.wheel.hooks.custom.compiled` maps each package to its compiled modules. The modules of a
package share one library, which is loaded when the first of them is imported. The wheel also contains the sources, so
that tracebacks show lines; Python prefers a compiled module to its source.

A wheel is compiled if `HEARTH_COMPILED=1` is set, which needs a C compiler. An editable installation is always pure.

    python hatch_build.py FOLDER    # copies the packages into FOLDER, and adds the compiled modules: `make compiled`
    python hatch_build.py --check   # exits with 1 and a message if there is no C compiler
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface as Hook

COMPILERS = ["mypy==2.4.1", "setuptools>=68"]
"""Requirements of a compiled build. mypyc is part of mypy."""

SOURCES = {"hearth": "client", "hearthd": "server", "hearth_proto": "proto"}
"""The source directory of each package."""

TYPES = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", "--explicit-package-bases"]
"""Options of mypy. `make lint` checks the types strictly; here mypy only needs to resolve them."""


def compiler() -> str | None:
    """Returns the C compiler for extensions of this interpreter; None if it, or Python.h, is not installed."""
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(command) if headers.exists() else None


def compile_modules(root: Path, modules: dict[str, list[str]]) -> Path:
    """Compiles `modules`, given by package. Reuses objects of an earlier build whose C code has not changed.

    Returns the directory of the extension modules, in which each has its path in the wheel.
    """
    build = Path("build", f"mypyc-{sysconfig.get_config_var('SOABI')}")
    complete = root / build / "complete"
    sources = [file for folder in SOURCES.values() for file in (root / folder).rglob("*.py")]
    if not outdated(complete, [str(file) for file in (*sources, root / "pyproject.toml", Path(__file__))]):
        return root / build / "lib"
    complete.unlink(missing_ok=True)
    began = time.time()
    # Translates all modules again: for a module in its cache, mypyc does not know which C files it needs.
    shutil.rmtree(root / build / "types", ignore_errors=True)
    # Both variables are read when mypy and setuptools are imported.
    os.environ["MYPYPATH"] = os.pathsep.join(str(root / folder) for folder in SOURCES.values())
    os.environ.setdefault("SETUPTOOLS_USE_DISTUTILS", "local")
    import setuptools
    from mypyc.build import mypycify

    groups = [([source(package, module) for module in listed], package) for package, listed in modules.items()]
    before = Path.cwd()
    os.chdir(root)
    try:
        extensions = mypycify(
            [*TYPES, f"--cache-dir={build / 'types'}", *(file for files, _ in groups for file in files)],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            separate=groups,
            target_dir=str(build / "c"),
        )
        for extension in extensions:
            extension.extra_compile_args.append(
                "-fcommon"
            )  # each file of a package declares the tables of other packages
        command: Any = setuptools.Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(build / "lib"), str(build / "objects")
        command.ensure_finalized()
        command.build_extensions = partial(build_extensions, command)
        command.run()
    finally:
        os.chdir(before)
    outputs = {root / output for output in command.get_outputs()}
    for file in (root / build / "lib").rglob("*.*"):
        if file not in outputs:  # the module is no longer listed
            file.unlink()
    complete.touch()
    os.utime(complete, (began, began))  # older than files that changed during the build
    return root / build / "lib"


def build_extensions(command: Any) -> None:
    """Runs the C compiler for all changed files, a process for each core, and then the linker."""
    compile_all = command.compiler.compile

    def compile_changed(sources: list[str], *, output_dir: str, depends: list[str], **options: Any) -> list[str]:
        objects: list[str] = command.compiler.object_filenames(sources, output_dir=output_dir)
        changed = [
            file for file, target in zip(sources, objects, strict=True) if outdated(Path(target), [file, *depends])
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda file: compile_all([file], output_dir=output_dir, **options), changed))
        return objects

    command.compiler.compile = compile_changed
    type(command).build_extensions(command)


def outdated(target: Path, files: list[str]) -> bool:
    """Returns True if a file is newer than `target`, or if `target` does not exist."""
    return not target.exists() or any(Path(file).stat().st_mtime > target.stat().st_mtime for file in files)


def source(package: str, module: str) -> str:
    """Returns the path of the source of a module of `package`, relative to the root."""
    return f"{SOURCES[package]}/{package}/{module.replace('.', '/')}.py"


class Build(Hook):  # type: ignore[misc, valid-type]
    """Adds the compiled modules to a wheel."""

    def dependencies(self) -> list[str]:
        """Returns the requirements of the build in addition to hatchling; none for editable and pure builds."""
        editable = "get_requires_for_build_editable" in sys.argv  # how build front ends call the backend
        return [] if editable or pure() else COMPILERS

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles the modules; `version` is "editable" for an editable installation."""
        if version == "editable" or pure():
            return
        root = Path(self.root)
        libraries = compile_modules(root, self.config["compiled"])
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for file in sorted(libraries.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}")):
            build_data["force_include"][str(file)] = str(file.relative_to(libraries))


def pure() -> bool:
    """Returns True if the wheel is built without compiled modules."""
    if os.environ.get("HEARTH_COMPILED", "0") in ("", "0"):
        return True
    if compiler() is None:
        raise SystemExit("HEARTH_COMPILED=1: there is no C compiler or no Python.h. Fix: install them, or unset it.")
    return False


def check_compiler() -> None:
    """Raises SystemExit, with a message, if extensions cannot be built here."""
    if compiler() is None:
        raise SystemExit("there is no C compiler, or no Python.h. Fix: install them (on Debian: gcc, python3-dev).")


def main() -> None:
    """Copies the packages and their compiled modules into the directory named on the command line.

    `--check` instead of a directory only checks that there is a compiler.
    """
    check_compiler()
    if sys.argv[1] == "--check":
        return
    root, target = Path(__file__).resolve().parent, Path(sys.argv[1])
    hooks = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    libraries = compile_modules(root, hooks["custom"]["compiled"])
    shutil.rmtree(target, ignore_errors=True)
    for package, folder in SOURCES.items():
        shutil.copytree(root / folder / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(libraries, target, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
