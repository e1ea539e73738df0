#!/usr/bin/env python3
"""Holds that kernels share no function with the rest of the program.

    shared_functions.py NM OBJECT…

The objects are those of one instruction set or of several. The linker takes any one of the copies
of an inline function; a copy from a kernel's file may have instructions that other processors
lack. So the only weak symbols of these files are those that the instruction set is an argument of.
"""
import re
import subprocess
import sys

WEAK = re.compile(r" [uvVwW] (.*)$")
OWN = re.compile(r"<\(muster::kernels::Isa\)\d")
ISAS = re.compile(r"muster_runtime_kernels_(\w+)\.dir")


def main(nm, objects):
    shared, found = [], 0
    for path in objects:
        told = subprocess.run([nm, "--demangle", "--defined-only", path], capture_output=True,
                              text=True, check=True).stdout
        weak = [match[1] for match in map(WEAK.search, told.splitlines()) if match]
        found += len(weak)
        shared += [f"{path}: {name}" for name in weak if not OWN.search(name)]
    print("\n".join(shared))
    isas = sorted({match[1] for match in map(ISAS.search, objects) if match})
    print(f"{len(objects)} objects ({', '.join(isas)}), {found} weak symbols, {len(shared)} shared")
    return 1 if shared or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
