#!/usr/bin/env python3
"""Makes the wheel `muster-launch` from programs that are built: what `deploy/dev wheel` runs.

    deploy/wheel/launch_wheel.py --build BUILD_DIRECTORY --out FOLDER

The wheel holds muster, musterd, the Python modules of deploy/python, manual pages and completion
for shells. Prints the wheel's path.
"""
import argparse
import glob
import os
import re

import parts

NAME = "muster_launch"
SUMMARY = ("Launches, watches and restarts multi-node GPU training: torchrun's options, with a "
           "verdict that names the rank that hangs")
# Subcommands with options, whose manual pages and completion travel along.
COMMANDS = ("run", "stop", "drain", "plan", "doctor", "status", "stacks", "logs", "top")
PRELOAD = ("import os; os.environ.get('MUSTER_PRELOAD') in (None, '', '0') "
           "or __import__('muster')\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="directory of a built tree")
    parser.add_argument("--out", required=True, help="folder for the wheel")
    options = parser.parse_args()
    programs = {name: parts.strip(os.path.join(options.build, "bin", name))
                for name in ("muster", "musterd")}
    for name, program in programs.items():
        parts.check_runs_on_older_systems(name, program)
    described = parts.output_of(os.path.join(options.build, "bin", "muster"), "--version")
    version = parts.version_of(described)
    readme = parts.content_of(os.path.join(parts.ROOT, "deploy", "wheel", "README.md")).decode()
    files = {f"{{data}}/scripts/{name}": program for name, program in programs.items()}
    files.update(python_modules())
    files[f"{NAME}.pth"] = PRELOAD.encode()
    for path, content in pages_and_completions(options.build, version).items():
        files[f"{{data}}/data/share/{path}"] = content.encode()
    files["{info}/METADATA"] = parts.metadata(NAME, version, SUMMARY, readme, described).encode()
    print(parts.write_wheel(options.out, NAME, version, parts.tag_of(programs["muster"]), files,
                            parts.linked_packages(options.build, "muster")))


def python_modules():
    files = {}
    folder = os.path.join(parts.ROOT, "deploy", "python")
    for path in glob.glob(f"{folder}/*.py") + glob.glob(f"{folder}/muster/*.py"):
        files[os.path.relpath(path, folder)] = parts.content_of(path)
    return files


def pages_and_completions(build, version):
    """What the programs say of their options, where shells and man look for it."""
    def ask(*words):
        return parts.output_of(os.path.join(build, "bin", words[0]), *words[1:])

    files = {}
    for program, commands in (("muster", [[command] for command in COMMANDS]), ("musterd", [[]])):
        for shell, place in (("bash", f"bash-completion/completions/{program}"),
                             ("fish", f"fish/vendor_completions.d/{program}.fish"),
                             ("zsh", f"zsh/site-functions/_{program}")):
            files[place] = "".join(ask(program, *words, "--print_completion", shell)
                                   for words in commands)
            if shell == "zsh":
                files[place] = as_zsh_function(program, files[place])
        helps = [(" ".join([program] + words), ask(program, *words, "--help"))
                 for words in commands]
        files[f"man/man1/{program}.1"] = manual_page(program, version, helps)
    return files


def as_zsh_function(program, commands):
    """What zsh runs as the function `_PROGRAM` when the program's line is completed for the first
    time: it registers the functions that complete it from then on, and completes this line."""
    return f"#compdef {program}\n{commands}_bash_complete -o default -F _{program}\n"


def manual_page(program, version, helps):
    """In roff, from the help texts of the program's subcommands: their headings are lines that end
    with a colon, their options begin with a dash, and what an option is for is indented."""
    def roff(text):
        text = text.replace("\\", "\\e").replace("-", "\\-")
        return "\\&" + text if text.startswith((".", "'")) else text

    lines = [f'.TH {program.upper()} 1 "" "{program} {version}" "Muster"', ".SH NAME",
             f"{program} \\- " + {"muster": "launches, watches and restarts training jobs",
                                  "musterd": "serves the rendezvous of many jobs"}[program]]
    for command, text in helps:
        lines.append(f".SH {roff(command.upper())}")
        for line in text.split("\n"):
            words = line.strip()
            option = re.match(r" {2,6}(-.*?)(?:  +(.*))?$", line)
            if option:
                lines += [".TP", f".B {roff(option.group(1))}", roff(option.group(2) or "")]
            elif line.endswith(":") and not line.startswith(" "):
                lines.append(f".SS {roff(words[:-1])}")
            elif not words:
                lines.append(".PP")
            else:
                lines.append(roff(words))
    return "\n".join(line for line in lines if line) + "\n"


if __name__ == "__main__":
    main()
