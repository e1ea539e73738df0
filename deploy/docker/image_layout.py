#!/usr/bin/env python3
"""Lays out the files of an image that holds the agent and the daemon: what `deploy/dev image` runs.

    deploy/docker/image_layout.py --build BUILD_DIRECTORY --out FOLDER

FOLDER, which must not exist, becomes a root directory: programs, the C library that they need of
this machine, a user, and licences. deploy/docker/Dockerfile makes an image of it.
"""
import argparse
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "wheel"))
import parts

USER = 65532  # the non-root user of images without a distribution
FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/\nmuster:x:{USER}:{USER}:Muster:/home/muster:/\n",
    "etc/group": f"root:x:0:\nmuster:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="directory of a built tree")
    parser.add_argument("--out", required=True, help="folder that becomes the root directory")
    options = parser.parse_args()
    for folder, mode in (("", 0o755), ("home/muster", 0o700), ("tmp", 0o1777)):
        os.makedirs(os.path.join(options.out, folder), exist_ok=folder != "")
        os.chmod(os.path.join(options.out, folder), mode)
    for name in ("muster", "musterd"):
        program = parts.strip(os.path.join(options.build, "bin", name))
        write(options.out, f"usr/bin/{name}", program, 0o755)
    libraries = libraries_of(os.path.join(options.build, "bin", "muster"))
    for library in libraries:
        write(options.out, library.lstrip("/"), parts.content_of(library), 0o755)
    for path, text in FILES.items():
        write(options.out, path, text.encode(), 0o644)
    version = parts.version_of(parts.output_of(f"{options.build}/bin/muster", "--version"))
    packages = parts.linked_packages(options.build, "muster", libraries)
    write(options.out, "usr/share/doc/muster/muster.cdx.json",
          parts.bill_of_materials("muster", version, packages).encode(), 0o644)
    for package in packages:
        write(options.out, f"usr/share/doc/muster/licenses/{package['name']}.txt",
              package["licence"], 0o644)
    print(options.out)


def libraries_of(program):
    """Shared libraries and the loader, where the loader looks for them."""
    found = re.findall(r"(/\S+) \(0x", parts.output_of("ldd", program))
    return [path if "/ld-linux" in path else re.sub("^/lib/", "/usr/lib/", path) for path in found]


def write(root, path, content, mode):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)


if __name__ == "__main__":
    main()
