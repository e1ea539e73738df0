#!/usr/bin/env python3
"""Parses the sources of the programs and the library with clang, and generates no code.

    deploy/check_sources.py BUILD_DIRECTORY JOBS [FOLDER…]

BUILD_DIRECTORY is a configured clang build (preset asan) whose generated sources exist. One pass
proves two things: lock annotations hold (-Wthread-safety), and every header compiles on its own.
The second holds because the precompiled header is left out and most sources include their own
header first; a header that no source includes first is parsed by itself. With a FOLDER only files
that lie in it are looked at, those of its subfolders left out.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

FOLDERS = ("proto", "rendezvous", "agent", "launcher", "worker_runtime")
FIRST_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def main(build, jobs, folders):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    folders = {os.path.normpath(folder) for folder in folders}

    def wanted(path):
        return not folders or os.path.dirname(path) in folders

    commands = {}  # by path from the root; a source compiled several times is parsed once
    for entry in entries:
        path = os.path.relpath(entry["file"], root)
        if path.startswith(tuple(f"{folder}/" for folder in FOLDERS)) and path.endswith(".cc"):
            command = parse_only(shlex.split(entry["command"]))
            commands.setdefault(path, (entry["directory"], command))

    included_first = set()
    for path in filter(wanted, commands):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            first = FIRST_INCLUDE.search(file.read())
        if first:
            included_first |= {first.group(1), f"worker_runtime/include/{first.group(1)}"}
    checks = [(path, directory, command + [os.path.join(root, path)], None)
              for path, (directory, command) in commands.items() if wanted(path)]
    num_sources = len(checks)
    for header in sorted(set(filter(wanted, headers(root)))):
        if header not in included_first:
            directory, command = nearest(header, commands)
            text = f'#include "{header}"\n'
            checks.append((header, directory, command + ["-x", "c++", "-"], text))

    print(f"{num_sources} sources, {len(checks) - num_sources} headers by themselves")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for path, output in pool.map(lambda check: (check[0], run(*check[1:])), checks):
            if output is not None:
                failed += 1
                print(f"--- {path}\n{output}", flush=True)
    return 1 if failed else 0


def parse_only(command):
    """The compile command without launcher, source, object file and precompiled header."""
    names = [os.path.basename(word) for word in command]
    command = command[next(i for i, name in enumerate(names) if name.startswith("clang")):]
    for option in ("-o", "-c", "-include"):
        while option in command:
            place = command.index(option)
            del command[place:place + 2]
    return command + ["-fsyntax-only"]


def headers(root):
    """Headers in a CMakeLists.txt: not those for a GPU's compiler or one instruction set only."""
    for folder in FOLDERS:
        for directory, _, files in os.walk(os.path.join(root, folder)):
            if "CMakeLists.txt" in files:
                with open(os.path.join(directory, "CMakeLists.txt"), encoding="utf-8") as file:
                    for name in re.findall(r"[\w/.]+\.h\b", file.read()):
                        if os.path.exists(os.path.join(directory, name)):
                            yield os.path.relpath(os.path.join(directory, name), root)


def nearest(header, commands):
    """The command of the source nearest to the header, which has the same include folders."""
    path = max(commands, key=lambda source: (len(os.path.commonprefix([source, header])), source))
    return commands[path]


def run(directory, command, text):
    result = subprocess.run(command, cwd=directory, input=text, capture_output=True, text=True,
                            timeout=600)
    return None if result.returncode == 0 else result.stderr or f"exit code {result.returncode}"


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
