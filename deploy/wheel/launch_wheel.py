#!/usr/bin/env python3
"""Makes the wheel `muster-launch` from programs that are built: what `deploy/dev wheel` runs.

    deploy/wheel/launch_wheel.py --build BUILD_DIRECTORY --out FOLDER

The wheel holds muster, musterd and the Python modules of deploy/python. The same build gives the
same bytes: every file has the time stamp 1980-01-01, and their order is that of their names. What
is linked into the programs is found from the build's own link commands: its licences go into
dist-info/licenses, and a CycloneDX list of it into dist-info/sboms. Prints the wheel's path.
"""
import argparse
import base64
import glob
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAME = "muster_launch"
GLIBC = (2, 34)
TAG = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}"
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF header
# What the system of every wheel of this kind has: PEP 600.
ALLOWED_LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2",
                     "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# Libraries of headers alone, which no link command names: Debian packages.
HEADER_PACKAGES = ("libasio-dev", "libspdlog-dev", "libfmt-dev", "nlohmann-json3-dev")
PRELOAD = ("import os; os.environ.get('MUSTER_PRELOAD') in (None, '', '0') "
           "or __import__('muster')\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="directory of a built tree")
    parser.add_argument("--out", required=True, help="folder for the wheel")
    options = parser.parse_args()
    programs = {name: strip(os.path.join(options.build, "bin", name))
                for name in ("muster", "musterd")}
    for name, program in programs.items():
        check_runs_on_older_systems(name, program)
    described = subprocess.run([os.path.join(options.build, "bin", "muster"), "--version"],
                               check=True, capture_output=True, text=True).stdout
    version = version_of(described)
    packages = linked_packages(options.build)
    info = f"{NAME}-{version}.dist-info"
    tag = f"{TAG}_{MACHINES[int.from_bytes(programs['muster'][18:20], 'little')]}"
    files = {f"{NAME}-{version}.data/scripts/{name}": program for name, program in programs.items()}
    files.update(python_modules())
    files[f"{NAME}.pth"] = PRELOAD.encode()
    shared = f"{NAME}-{version}.data/data/share"
    for path, content in pages_and_completions(options.build, version).items():
        files[f"{shared}/{path}"] = content.encode()
    files[f"{info}/METADATA"] = metadata(version, described).encode()
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: muster\n"
                              f"Root-Is-Purelib: false\nTag: {tag}\n").encode()
    files[f"{info}/sboms/muster.cdx.json"] = bill_of_materials(version, packages).encode()
    for package in packages:
        files[f"{info}/licenses/{package['name']}.txt"] = package["licence"]
    print(write_wheel(os.path.join(options.out, f"{NAME}-{version}-{tag}.whl"), files, info))


def strip(path):
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "stripped")
        subprocess.run(["strip", "-o", stripped, path], check=True)
        with open(stripped, "rb") as file:
            return file.read()


def check_runs_on_older_systems(name, program):
    """Ends with a sentence where the program needs more than the wheel's tag promises."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(program)
        file.flush()
        dynamic = subprocess.run(["objdump", "-p", file.name], check=True, capture_output=True,
                                 text=True).stdout
    needed = set(re.findall(r"^ +NEEDED +(\S+)", dynamic, re.MULTILINE))
    versions = {tuple(map(int, number.split(".")))
                for number in re.findall(r"\bGLIBC_(\d+(?:\.\d+)+)", dynamic)}
    newer = [".".join(map(str, version)) for version in sorted(versions) if version[:2] > GLIBC]
    if needed - ALLOWED_LIBRARIES or newer:
        sys.exit(f"launch_wheel: {name} would not start everywhere: it needs "
                 f"{', '.join(sorted(needed - ALLOWED_LIBRARIES)) or 'no other library'} and glibc "
                 f"{', '.join(newer) or 'no newer than ' + '.'.join(map(str, GLIBC))}")


def version_of(described):
    """`0.1.0` of a working tree, `0.1.0+g1234567890ab` of a commit: what muster --version says."""
    number = re.search(r"^muster (\S+)", described).group(1)
    commit = re.search(r"^built from commit (\w+)", described, re.MULTILINE)
    return f"{number}+g{commit.group(1)[:12]}" if commit else number


def python_modules():
    files = {}
    folder = os.path.join(ROOT, "deploy", "python")
    for path in glob.glob(f"{folder}/*.py") + glob.glob(f"{folder}/muster/*.py"):
        with open(path, "rb") as file:
            files[os.path.relpath(path, folder)] = file.read()
    return files


def pages_and_completions(build, version):
    """What the programs say of their options, where shells and man look for it."""
    def ask(*words):
        words = [os.path.join(build, "bin", words[0])] + list(words[1:])
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    files = {}
    for program, commands in (("muster", (["run"], ["stop"], ["drain"], ["plan"])),
                              ("musterd", ([],))):
        for shell, place in (("bash", f"bash-completion/completions/{program}"),
                             ("fish", f"fish/vendor_completions.d/{program}.fish")):
            files[place] = "".join(ask(program, *words, "--print_completion", shell)
                                   for words in commands)
        helps = [(" ".join([program] + words), ask(program, *words, "--help"))
                 for words in commands]
        files[f"man/man1/{program}.1"] = manual_page(program, version, helps)
    return files


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


def metadata(version, described):
    with open(os.path.join(ROOT, "deploy", "wheel", "README.md"), encoding="utf-8") as file:
        readme = file.read()
    build = " ".join(described.split("\n")[1:]).strip()
    return "\n".join([
        "Metadata-Version: 2.4",
        f"Name: {NAME.replace('_', '-')}",
        f"Version: {version}",
        "Summary: Launches, watches and restarts multi-node GPU training: torchrun's options, with "
        "a verdict that names the rank that hangs",
        f"Keywords: distributed,training,launcher,elastic,rendezvous,torchrun,NCCL,Slurm",
        "Classifier: Development Status :: 4 - Beta",
        "Classifier: Environment :: Console",
        "Classifier: Intended Audience :: Developers",
        "Classifier: Intended Audience :: Science/Research",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: C++",
        "Classifier: Programming Language :: Python :: 3",
        "Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Classifier: Topic :: System :: Distributed Computing",
        "Requires-Python: >=3.8",
        "Description-Content-Type: text/markdown",
        "",
        readme,
        f"This wheel: {build}.",
        "",
    ])


def linked_packages(build):
    """The Debian packages whose archives and headers are in the programs."""
    archives = set()
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", "bin/muster"], check=True,
                              capture_output=True, text=True).stdout.splitlines()
    for word in shlex.split(commands[-1]):
        if word.startswith("/") and word.endswith(".a"):
            archives.add(os.path.realpath(word))
    compiler = next(word for word in shlex.split(commands[-1]) if word.endswith("++"))
    for name in ("libstdc++.a", "libgcc.a"):
        found = subprocess.run([compiler, f"-print-file-name={name}"], check=True,
                               capture_output=True, text=True).stdout.strip()
        archives.add(os.path.realpath(found))
    packages = set(HEADER_PACKAGES)
    for archive in sorted(archives):
        owner = subprocess.run(["dpkg", "-S", archive], capture_output=True, text=True)
        if owner.returncode != 0:
            sys.exit(f"launch_wheel: no package owns {archive}, so its licence is not known")
        packages.add(owner.stdout.split(":")[0])
    return [describe_package(package) for package in sorted(packages)]


def describe_package(package):
    fields = "${Version}\n${source:Package}\n${source:Version}"
    version, source, source_version = subprocess.run(
        ["dpkg-query", "-W", "-f", fields, package], check=True, capture_output=True,
        text=True).stdout.split("\n")[:3]
    with open(f"/usr/share/doc/{package}/copyright", "rb") as file:
        return {"name": package, "version": version, "source": source,
                "source_version": source_version, "licence": file.read()}


def bill_of_materials(version, packages):
    """CycloneDX 1.5, without a serial number and a time: they would differ from build to build."""
    components = [{"type": "library", "name": package["source"],
                   "version": package["source_version"],
                   "bom-ref": f"{package['name']}@{package['version']}",
                   "purl": f"pkg:deb/debian/{package['name']}@{package['version']}",
                   "licenses": [{"license": {"name": f"see licenses/{package['name']}.txt"}}]}
                  for package in packages]
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
                       "metadata": {"component": {"type": "application", "name": "muster-launch",
                                                  "version": version}},
                       "components": components}, indent=1) + "\n"


def write_wheel(path, files, info):
    record = f"{info}/RECORD"
    lines = []
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    files = {**files, record: "".join(lines + [f"{record},,\n"]).encode()}
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if "/scripts/" in name else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            entry.create_system = 3  # Unix, whose modes these are
            wheel.writestr(entry, content, compresslevel=9)
    return path


if __name__ == "__main__":
    main()
