#!/usr/bin/env python3
"""Makes the wheel `muster-train` from a build: what `deploy/dev wheel` runs.

    deploy/wheel/train_wheel.py --build BUILD_DIRECTORY --out FOLDER

The wheel holds the ready-made trainer and, in lib/muster of the environment that it is installed
in, the shared libraries that it needs and that not every system has: oneDNN, Gloo, and what these
need. Debian has no archives of them. The program finds them by its DT_RPATH, which counts for their
own needs, too. C++'s library is the system's: two of them in one process do not share exceptions,
and Debian's needs a newer glibc than the wheel's tag promises. Prints the wheel's path.
"""
import argparse
import os
import re
import struct
import sys
import tempfile

import parts

NAME = "muster_train"
SUMMARY = "Trains GPT models under DDP, ZeRO, FSDP, pipeline and hybrid plans, started by Muster"
README = """# muster-train

The ready-made trainer of Muster: `muster --nproc_per_node=2 muster-train --data *.txt`. It needs
Linux 5.10, glibc 2.34 and the libstdc++ of GCC 11 or newer. NCCL, cuBLASLt and cuDNN are not in it:
on a GPU it opens those of the machine, else those of PyTorch's packages in the same environment;
`muster-train --version` names the files.
"""
# Functions that GCC 12's libstdc++ has at a newer version and, for programs of before, at the older
# one, too. Here the older is as good: it differs in what it may throw when a thread is cancelled.
OLDER_VERSIONS = {"_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE":
                  ("GLIBCXX_3.4.30", "GLIBCXX_3.4.11")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="directory of a built tree")
    parser.add_argument("--out", required=True, help="folder for the wheel")
    options = parser.parse_args()
    path = os.path.join(options.build, "bin", "muster-train")
    libraries = libraries_of(path)
    program = asks_for_older_versions(parts.strip(path))
    check(("muster-train", program), libraries)
    files = {"{data}/scripts/muster-train": program}
    for soname, library in libraries.items():
        content = asks_for_older_versions(parts.content_of(library))
        check((soname, content), libraries)
        files[f"{{data}}/data/lib/muster/{soname}"] = content
    described = parts.output_of(os.path.join(options.build, "bin", "muster"), "--version")
    version = parts.version_of(described)
    files["{info}/METADATA"] = parts.metadata(NAME, version, SUMMARY, README, described,
                                              ["Requires-Dist: muster-launch"]).encode()
    print(parts.write_wheel(options.out, NAME, version, parts.tag_of(program), files,
                            parts.linked_packages(options.build, "muster-train",
                                                  libraries.values())))


def libraries_of(program):
    """Paths of the shared libraries, by name, that the wheel has to bring."""
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", parts.output_of("ldd", program), re.MULTILINE))
    return {soname: path for soname, path in sorted(found.items())
            if soname not in parts.SYSTEM_LIBRARIES | {"libstdc++.so.6"}}


def check(named, libraries):
    name, content = named
    parts.check_runs_on_older_systems(name, content, {"libstdc++.so.6"} | set(libraries))


def asks_for_older_versions(elf):
    """The same program or library, which asks for OLDER_VERSIONS where it asks for newer ones.

    An entry of .gnu.version_r is a version that is needed of a library: its name in .dynstr and the
    hash of that. System V ABI, "Symbol Versioning" in the Linux Standard Base."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(elf)
        file.flush()
        symbols = parts.output_of("objdump", "-T", file.name)
    content = bytearray(elf)
    strings, versions = dynamic_strings(elf), needed_versions(elf)
    for newer, older in set(OLDER_VERSIONS.values()):
        asking = set(re.findall(rf"\({re.escape(newer)}\)\s+(\S+)$", symbols, re.MULTILINE))
        if not asking <= {name for name, pair in OLDER_VERSIONS.items() if pair[0] == newer}:
            continue  # check_runs_on_older_systems says what is asked for
        place = elf.find(b"\0" + older.encode() + b"\0", strings[0], strings[0] + strings[1])
        for entry, name in versions:
            if name == newer and place >= 0:
                struct.pack_into("<I", content, entry, hash_of(older))
                struct.pack_into("<I", content, entry + 8, place + 1 - strings[0])
    return bytes(content)


def sections(elf):
    """Type, offset, size and linked section of each."""
    offset, = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    for index in range(count):
        _, kind, _, _, begin, length, link = struct.unpack_from("<IIQQQQI", elf,
                                                                offset + index * size)
        yield kind, begin, length, link


VERSIONS_NEEDED = 0x6FFFFFFE  # SHT_GNU_verneed


def dynamic_strings(elf):
    all_sections = list(sections(elf))
    for kind, _, _, link in all_sections:
        if kind == VERSIONS_NEEDED:
            return all_sections[link][1:3]
    return 0, 0


def needed_versions(elf):
    """Where each needed version's entry is, and the version's name."""
    strings, _ = dynamic_strings(elf)
    for kind, library, _, _ in sections(elf):
        while kind == VERSIONS_NEEDED:
            _, count, _, first, following = struct.unpack_from("<HHIII", elf, library)
            entry = library + first
            for _ in range(count):
                _, _, _, name, step = struct.unpack_from("<IHHII", elf, entry)
                begin = strings + name
                yield entry, elf[begin:elf.index(b"\0", begin)].decode()
                entry += step
            if not following:
                break
            library += following


def hash_of(name):
    """System V ABI, "Hash Table"."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


if __name__ == "__main__":
    sys.exit(main())
