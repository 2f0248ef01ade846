"""Completion of `hearthd` in bash, zsh and fish.

The script of a shell runs `hearthd` with `VARIABLE` in its environment, and the command prints the possible next words.
The names of the variables are those in scripts that earlier versions installed.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail
from hearthd.cli.parser import Parser

VARIABLE = "_HEARTHD_COMPLETE"
"""The requesting shell: complete_bash, complete_zsh or complete_fish."""
_LINE = "_TYPER_COMPLETE_ARGS"
"""The command line up to the cursor, from zsh and fish."""
_FISH_ACTION = "_TYPER_COMPLETE_FISH_ACTION"
"""Request of fish: get-args prints the words, is-args reports by the exit status whether there are any."""

_SCRIPTS = {
    "bash": f"""_hearthd_completion() {{
    local IFS=$'\\n'
    COMPREPLY=($(env COMP_WORDS="${{COMP_WORDS[*]}}" COMP_CWORD=$COMP_CWORD {VARIABLE}=complete_bash "$1"))
}}
complete -o default -F _hearthd_completion hearthd
""",
    "zsh": f"""#compdef hearthd
_hearthd_completion() {{
    eval $(env {_LINE}="${{words[1,$CURRENT]}}" {VARIABLE}=complete_zsh hearthd)
}}
compdef _hearthd_completion hearthd
""",
    "fish": f"""set -l hearthd_asked env {VARIABLE}=complete_fish
complete --command hearthd --no-files \\
    --arguments "($hearthd_asked {_FISH_ACTION}=get-args {_LINE}=(commandline -cp) hearthd)" \\
    --condition "$hearthd_asked {_FISH_ACTION}=is-args {_LINE}=(commandline -cp) hearthd"
""",
}
_ZSH_LINE = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"


class _Show(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(_SCRIPTS[_shell()], end="")
        parser.exit()


class _Install(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        shell = _shell()
        try:
            path = install(shell, Path.home())
        except OSError as error:
            fail(f"{error.filename}: cannot be written: {error.strerror}", RUNTIME_ERROR)
        print(f"{shell} completion installed in {path}")
        print("Completion will take effect once you restart the terminal")
        parser.exit()


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options that print and install the script of the current shell."""
    parser.add_argument(
        "--install-completion", action=_Install, nargs=0, help="install completion for the current shell"
    )
    parser.add_argument(
        "--show-completion", action=_Show, nargs=0,
        help="print the completion script of the current shell, to copy it or to customize the installation",
    )  # fmt: skip


def install(shell: str, home: Path) -> Path:
    """Writes the script of a shell into a home directory, and returns its path.

    For bash and zsh it also adds a line to their start-up file, unless the file contains it.

    Args:
        shell: "bash", "zsh" or "fish".
        home: The user's home directory.

    Raises:
        OSError: A file cannot be written.
    """
    folder, name = {
        "bash": (".bash_completions", "hearthd.sh"),
        "zsh": (".zfunc", "_hearthd"),
        "fish": (".config/fish/completions", "hearthd.fish"),
    }[shell]
    path = home / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_SCRIPTS[shell])
    line = {"bash": f"source '{path}'", "zsh": _ZSH_LINE}.get(shell)
    if line is not None:
        start_up = home / f".{shell}rc"
        before = start_up.read_text() if start_up.exists() else ""
        if line not in before:
            start_up.write_text(f"{before}\n{line}\n")
    return path


def answer(parser: Parser, environ: Mapping[str, str]) -> int:
    """Prints the response to the request of a shell's script, and returns the exit status."""
    shell = environ[VARIABLE].removeprefix("complete_")
    if shell not in _SCRIPTS:
        fail(f"{VARIABLE}={environ[VARIABLE]}: use complete_bash, complete_zsh or complete_fish", USAGE_ERROR)
    if shell == "bash":
        words = _split(environ.get("COMP_WORDS", ""))
        index = int(environ.get("COMP_CWORD", "0"))
        before, prefix = words[1:index], "".join(words[index : index + 1])
    else:
        line = environ.get(_LINE, "")
        before = _split(line)[1:]
        prefix = before.pop() if before and not line[-1].isspace() else ""
    matches = candidates(parser, before, prefix)
    if shell == "bash":
        print("\n".join(matches))
    elif shell == "zsh":
        pairs = " ".join(shlex.quote(f"{word}:{text}" if text else word) for word, text in matches.items())
        print(f"local -a found; found=({pairs}); _describe argument found" if matches else "_files")
    elif environ.get(_FISH_ACTION) == "is-args":
        return 0 if matches else 1
    else:
        print("\n".join(f"{word}\t{text}" for word, text in matches.items()))
    return 0


def candidates(parser: Parser, before: Sequence[str], prefix: str) -> dict[str, str]:
    """Returns the possible words at the cursor, with the help of each. Empty: any value, such as a file.

    Args:
        parser: The parser of all commands.
        before: The words between the name of the program and the cursor's word.
        prefix: The part of the word that has been typed.
    """
    pending: argparse.Action | None = None
    for word in before:
        option = parser.options().get(word)
        if pending is None and option is not None and option.nargs != 0:
            pending = option
            continue
        commands = parser.commands()
        if pending is None and commands is not None:
            parser = commands.choices.get(word, parser)
        pending = None
    matches: dict[str, str] = {}
    commands = parser.commands()
    if pending is not None:
        matches = dict.fromkeys(map(str, pending.choices or ()), "")
    elif prefix.startswith("-"):
        matches = {name: option.help or "" for name, option in parser.options().items() if name.startswith("--")}
    elif commands is not None:
        matches = {command.dest: command.help or "" for command in commands._choices_actions}
    return {word: text for word, text in matches.items() if word.startswith(prefix)}


def _split(line: str) -> list[str]:
    """Returns the words of a command line, which may end within a quotation."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _shell() -> str:
    """Returns the shell from which this process was started, or the login shell. Raises `SystemExit`."""
    pid = os.getppid()
    while pid > 1:
        try:
            name, _, fields = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            break
        if name in _SCRIPTS:
            return name
        pid = int(fields.split()[1])
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SCRIPTS:
        fail(f"shell {name or 'unknown'} is not supported; supported are {', '.join(_SCRIPTS)}", RUNTIME_ERROR)
    return name
