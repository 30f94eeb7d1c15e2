#!/usr/bin/env python3
"""completion.py bash|zsh PROGRAM: completion of a command, made from its --help, on stdout

An argument that is called a|b|c in --help completes to these words, FILE, PATH and the like
to files. Behind the options of ddprun stands another command, which has its own completion.
"""
import os
import re
import subprocess
import sys

OPTION = re.compile(r" {2,6}(-\S*(?:, -\S+)*(?: (?! )\S+)?)(?:  +(\S.*))?$")
FILES = {"FILE", "PATH", "PATTERN", "DIR", "PLACE", "WHERE"}


class Option:
    def __init__(self, spelling, doc):
        self.names = re.findall(r"(?:^|, )(--?[A-Za-z?][\w-]*)", spelling)
        arg = re.search(r"\S(?:\[=(.+)\]|[= ]([^ ,]+))$", re.sub(r"^.*, ", "", spelling))
        self.optional = bool(arg and arg[1])  # only behind '='
        self.arg = (arg[1] or arg[2]).strip("[]") if arg else None
        words = (self.arg or "").split("|")
        self.words = [w for w in words if len(words) > 1 and w.islower()]
        self.files = not FILES.isdisjoint(words)
        self.doc = doc or ""


def options_of(program):
    text = subprocess.run([program, "--help", "all"], check=True, capture_output=True, text=True,
                          timeout=30).stdout
    options = []
    for line in text.splitlines():
        found = OPTION.match(line)
        if found:
            options.append(Option(*found.groups()))
        elif options and line.startswith(" " * 10):
            options[-1].doc = f"{options[-1].doc} {line.strip()}".strip()
    return options


BASH = """\
# bash completion of {name}, made from its --help
_{id}() {{
    local i=1 option= cur=${{COMP_WORDS[COMP_CWORD]}}
    COMPREPLY=()
    while ((i < COMP_CWORD)); do
        option=${{COMP_WORDS[i]}}
        case $option in
        -*) ;;
        *){command}
            return ;;
        esac
        i=$((i + 1))
        if [ "${{COMP_WORDS[i]}}" = = ]; then
            i=$((i + 2))
        else
            case $option in
            {valued}) i=$((i + 1)) ;;
            esac
        fi
        ((i > COMP_CWORD)) || option=
    done
    [ "$cur" != = ] || cur=
    case $option in
    '') [[ $cur != -* ]] || mapfile -t COMPREPLY < <(compgen -W '{all}' -- "$cur") ;;
{choices}    {files}) ;;
    *) compopt +o default +o bashdefault 2>/dev/null ;;
    esac
}}
complete -o bashdefault -o default -F _{id} {name}
"""
COMMAND = """
            if declare -F _command_offset >/dev/null; then _command_offset "$i"; fi"""


def bash(name, ident, options):
    def names(chosen):  # of a long one also "-np"
        found = [n for o in chosen for n in o.names]
        return "|".join(found + [n[1:] for n in found if n.startswith("--")]) or "' '"

    return BASH.format(
        name=name, id=ident, command=COMMAND if name == "ddprun" else "",
        valued=names(o for o in options if o.arg and not o.optional),
        all=" ".join(n for o in options for n in o.names if n.startswith("--")),
        files=names(o for o in options if o.files),
        choices="".join(
            f"    {names([o])}) mapfile -t COMPREPLY < <(compgen -W '{' '.join(o.words)}'"
            ' -- "$cur") ;;\n' for o in options if o.words))


def zsh(name, _, options):
    lines = [f"#compdef {name}", f"# zsh completion of {name}, made from its --help", "_arguments -s -S \\"]
    for o in options:
        doc = re.sub(r"([\[\]:\\])", r"\\\1", o.doc).replace("'", "'\\''")
        what = f"({' '.join(o.words)})" if o.words else "_files" if o.files else ""
        value = f"{':' if o.optional else ''}:{o.arg}:{what}".replace("[", "") if o.arg else ""
        for n in o.names:
            sign = "" if not o.arg else "=-" if o.optional else "=" if n.startswith("--") else "+"
            lines.append(f"    '({' '.join(o.names)}){n}{sign}[{doc}]{value}' \\")
    last = ("    '(-):program:_command_names -e' '*::argument:_normal'" if name == "ddprun"
            else "    '*:argument:_files'")
    return "\n".join(lines + [last, ""])


if __name__ == "__main__":
    program = sys.argv[2]
    own_name = os.path.basename(program)
    found = options_of(program)
    print({"bash": bash, "zsh": zsh}[sys.argv[1]](own_name, own_name.replace("-", "_"), found), end="")
