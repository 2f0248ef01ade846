"""`hearth completion SHELL`: prints a completion script, generated from the command's parser."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

from hearth.cli.format.printable import printable


class Option(NamedTuple):
    """An option or positional argument."""

    names: tuple[str, ...]
    help: str
    value_name: str
    """Name of the option's value; empty: it takes none."""
    words: tuple[str, ...]
    """Possible values, if they are known."""

    @property
    def is_file(self) -> bool:
        """True if the value is a file name."""
        return self.value_name.startswith("FILE")


class Command(NamedTuple):
    """Options and positional arguments of one command."""

    name: str
    help: str
    options: tuple[Option, ...]
    positionals: tuple[Option, ...]


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a shell completion script",
        description='Prints a script that completes `hearth` in a shell. bash: eval "$(hearth completion bash)" in '
        "~/.bashrc; zsh: hearth completion zsh > a file named _hearth in a folder of $fpath; fish: hearth completion "
        "fish > ~/.config/fish/completions/hearth.fish.",
    )
    parser.add_argument("shell", choices=sorted(_SHELLS), metavar="SHELL", help=", ".join(sorted(_SHELLS)))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the script for the parser `arguments.parser`."""
    print(script(arguments.parser, arguments.shell), end="")
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns the completion script for `shell`: `bash`, `zsh` or `fish`. Pure."""
    top, commands = describe(parser)
    return _SHELLS[shell](top, commands)


def describe(parser: argparse.ArgumentParser) -> tuple[tuple[Option, ...], list[Command]]:
    """Returns the options before a command, and the commands."""
    subparsers = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in subparsers._choices_actions}
    commands = [
        Command(name, helps.get(name, ""), *_arguments_of(subparser)) for name, subparser in subparsers.choices.items()
    ]
    return tuple(_option(action, parser.prog) for action in parser._actions if action.option_strings), commands


def _option(action: argparse.Action, prog: str) -> Option:
    value_name = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    words = tuple(map(str, action.choices or getattr(action, "completions", None) or ()))
    return Option(
        tuple(action.option_strings), printable((action.help or "") % {**vars(action), "prog": prog}), value_name, words
    )


def _arguments_of(parser: argparse.ArgumentParser) -> tuple[tuple[Option, ...], tuple[Option, ...]]:
    """Returns the options and positional arguments of a command.

    For a command with parts, they are the names of the parts and the options of all parts.
    """
    options: list[Option] = []
    positionals: list[Option] = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            positionals.append(Option((), action.help or "", "PART", tuple(action.choices)))
            for subparser in action.choices.values():
                options += [
                    option
                    for option in _arguments_of(subparser)[0]
                    if option.names not in {earlier.names for earlier in options}
                ]
            continue
        (options if action.option_strings else positionals).append(_option(action, parser.prog))
    return tuple(options), tuple(positionals)


# ---- bash ----


def _bash(top: Sequence[Option], commands: Sequence[Command]) -> str:
    lines = [
        "# hearth: completion for bash; made by `hearth completion bash`",
        "_hearth() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="" index',
        "    COMPREPLY=()",
        "    for ((index = 1; index < COMP_CWORD; index++)); do",
        '        case "${COMP_WORDS[index]}" in',
        "            -*) ;;",
        '            *) command="${COMP_WORDS[index]}"; break ;;',
        "        esac",
        "    done",
        '    local options="" words="" files=""',
        '    case "$command" in',
        f'        "") options="{_names(top)}"; words="{" ".join(command.name for command in commands)}" ;;',
    ]
    for command in commands:
        words = " ".join(word for positional in command.positionals for word in positional.words)
        lines += [f"        {command.name})", f'            options="{_names(command.options)}"; words="{words}"']
        if any(positional.is_file for positional in command.positionals):
            lines.append("            files=1")
        lines.append('            case "$before" in')
        for option in command.options:
            if not option.value_name:
                continue
            reply = 'files=1; words=""' if option.is_file else f'files=""; words="{" ".join(option.words)}"'
            lines.append(f'                {"|".join(option.names)}) options=""; {reply} ;;')
        lines += ["            esac", "            ;;"]
    lines += [
        "    esac",
        '    [[ $word == -* ]] && words="$options"',
        '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")',
        "    if [[ -n $files && $word != -* ]]; then",
        "        compopt -o filenames 2>/dev/null || true",
        '        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")',
        "    fi",
        "}",
        "complete -F _hearth hearth",
    ]
    return "\n".join(lines) + "\n"


def _names(options: Sequence[Option]) -> str:
    return " ".join(name for option in options for name in option.names)


# ---- zsh ----


def _zsh(top: Sequence[Option], commands: Sequence[Command]) -> str:
    lines = [
        "#compdef hearth",
        "# hearth: completion for zsh; made by `hearth completion zsh`",
        "_hearth() {",
        "    local context state state_descr line",
        "    typeset -A opt_args",
        "    local -a commands",
        "    commands=(",
        *(f"        {_quoted(f'{command.name}:{command.help}')}" for command in commands),
        "    )",
        "    _arguments -C \\",
        *(f"        {_zsh_option(option)} \\" for option in top),
        "        '1:command:->command' '*::argument:->argument'",
        "    case $state in",
        "        command) _describe -t commands command commands ;;",
        "        argument)",
        "            case $words[1] in",
    ]
    for command in commands:
        specs = [_zsh_option(option) for option in command.options]
        specs += [_quoted(f"::{option.value_name}:{_zsh_values(option)}") for option in command.positionals]
        lines += [
            f"                {command.name})",
            "                    _arguments \\",
            " \\\n".join(f"                        {spec}" for spec in specs),
            "                    ;;",
        ]
    lines += ["            esac", "            ;;", "    esac", "}"]
    # If the file is autoloaded from $fpath, it is the function; if it is sourced, it registers the function.
    lines.append('if [[ ${funcstack[1]} == _hearth ]]; then _hearth "$@"; else compdef _hearth hearth; fi')
    return "\n".join(lines) + "\n"


def _zsh_option(option: Option) -> str:
    text = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    value = f":{option.value_name}:{_zsh_values(option)}" if option.value_name else ""
    return " ".join(_quoted(f"{name}[{text}]{value}") for name in option.names)


def _zsh_values(option: Option) -> str:
    if option.words:
        return f"({' '.join(option.words)})"
    return "_files" if option.is_file else " "


# ---- fish ----


def _fish(top: Sequence[Option], commands: Sequence[Command]) -> str:
    lines = ["# hearth: completion for fish; made by `hearth completion fish`", "complete -c hearth -f"]
    lines += [_fish_option("__fish_use_subcommand", option) for option in top]
    for command in commands:
        lines.append(f"complete -c hearth -n __fish_use_subcommand -a {command.name} -d {_fish_quoted(command.help)}")
    for command in commands:
        condition = f"__fish_seen_subcommand_from {command.name}"
        lines += [_fish_option(condition, option) for option in command.options]
        for option in command.positionals:
            if option.words:
                lines.append(
                    f"complete -c hearth -n {_fish_quoted(condition)} -a {_fish_quoted(' '.join(option.words))}"
                )
            elif option.is_file:
                lines.append(f"complete -c hearth -n {_fish_quoted(condition)} -F")
    return "\n".join(lines) + "\n"


def _fish_option(condition: str, option: Option) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    value = ""
    if option.value_name:
        value = " -r" + (" -F" if option.is_file else "")
        value += f" -a {_fish_quoted(' '.join(option.words))}" if option.words else ""
    return f"complete -c hearth -n {_fish_quoted(condition)} {names}{value} -d {_fish_quoted(option.help)}"


def _quoted(text: str) -> str:
    """Quotes a text for zsh, so that no character in it is special."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS = {"bash": _bash, "fish": _fish, "zsh": _zsh}
