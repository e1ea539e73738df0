"""What the wheels and the image are made of: programs that start on older systems, and what has to
travel with them: licences, and a CycloneDX list of what is linked in. Imported by launch_wheel.py,
train_wheel.py and deploy/docker/image_layout.py.

The same build gives the same bytes: every file has the time stamp 1980-01-01, and their order is
that of their names.
"""
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
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF header
# The newest versions of symbols that the system of every wheel of this kind has: PEP 600.
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
POLICY = "manylinux_%d_%d" % NEWEST["GLIBC"]
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2",
                    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# Libraries of headers alone, which no link command names: Debian packages.
HEADER_PACKAGES = ("libasio-dev", "libspdlog-dev", "libfmt-dev", "nlohmann-json3-dev")


def output_of(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def content_of(path):
    with open(path, "rb") as file:
        return file.read()


def tag_of(program):
    return f"py3-none-{POLICY}_{MACHINES[int.from_bytes(program[18:20], 'little')]}"


def strip(path):
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "stripped")
        subprocess.run(["strip", "-o", stripped, path], check=True)
        return content_of(stripped)


def check_runs_on_older_systems(name, program, libraries=frozenset()):
    """Ends with a sentence where the program needs more than the policy's systems have, but for
    `libraries`, which travel with it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(program)
        file.flush()
        dynamic = output_of("objdump", "-p", file.name)
    needed = set(re.findall(r"^ +NEEDED +(\S+)", dynamic, re.MULTILINE))
    missing = sorted(needed - SYSTEM_LIBRARIES - libraries)
    newer = sorted({f"{kind}_{number}"
                    for kind, number in re.findall(r"\b([A-Z]+)_(\d+(?:\.\d+)+)", dynamic)
                    if tuple(map(int, number.split("."))) > NEWEST.get(kind, (sys.maxsize,))})
    if missing or newer:
        sys.exit(f"{name} would not start on every system of {POLICY}: it needs "
                 f"{', '.join(missing + newer)}")


def version_of(described):
    """`0.1.0` of a working tree, `0.1.0+g1234567890ab` of a commit: what muster --version says."""
    number = re.search(r"^muster (\S+)", described).group(1)
    commit = re.search(r"^built from commit (\w+)", described, re.MULTILINE)
    return f"{number}+g{commit.group(1)[:12]}" if commit else number


def metadata(name, version, summary, readme, described, more=()):
    build = " ".join(described.split("\n")[1:]).strip()
    return "\n".join([
        "Metadata-Version: 2.4",
        f"Name: {name.replace('_', '-')}",
        f"Version: {version}",
        f"Summary: {summary}",
        *more,
        "Keywords: distributed,training,launcher,elastic,rendezvous,torchrun,NCCL,Slurm",
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


def linked_packages(build, program, libraries=()):
    """The Debian packages whose archives and headers are in the program, and those of `libraries`,
    which travel with it."""
    files = {os.path.realpath(library) for library in libraries}
    commands = output_of("ninja", "-C", build, "-t", "commands", f"bin/{program}").splitlines()
    for word in shlex.split(commands[-1]):
        if word.startswith("/") and word.endswith(".a"):
            files.add(os.path.realpath(word))
    compiler = next(word for word in shlex.split(commands[-1]) if word.endswith("++"))
    for name in ("libstdc++.a", "libgcc.a"):
        files.add(os.path.realpath(output_of(compiler, f"-print-file-name={name}").strip()))
    packages = owners_of(files) | set(HEADER_PACKAGES)
    return [describe_package(package) for package in sorted(packages)]


def owners_of(files):
    # /lib is a link to /usr/lib; a package may have been made before it was.
    others = {re.sub("^/usr/lib/", "/lib/", file): file for file in files}
    said = subprocess.run(["dpkg", "-S", *files, *others], capture_output=True, text=True).stdout
    owners = {others.get(path, path): package.split(":")[0]
              for package, path in re.findall(r"^(\S+): (/\S+)$", said, re.MULTILINE)}
    for file in sorted(files - set(owners)):
        owners[file] = pip_package_of(file)
    return set(owners.values())


def pip_package_of(file):
    """Metadata of the pip package that CUDA's library is from."""
    folder = os.path.dirname(file)
    while folder != "/":
        for record in glob.glob(f"{folder}/dist-info/*/RECORD"):
            if f"/{os.path.basename(file)},".encode() in content_of(record):
                return os.path.dirname(record)
        folder = os.path.dirname(folder)
    sys.exit(f"no package owns {file}, so its licence is not known")


def describe_package(package):
    if package.startswith("/"):
        name, version = re.match(r"(\w+)-(.*)\.dist-info$", os.path.basename(package)).groups()
        licences = sorted(glob.glob(f"{package}/licenses/*"))
        return {"name": name, "version": version, "source": name, "source_version": version,
                "purl": f"pkg:pypi/{name.replace('_', '-')}@{version}",
                "licence": b"".join(map(content_of, licences))}
    fields = "${Version}\n${source:Package}\n${source:Version}"
    version, source, source_version = output_of("dpkg-query", "-W", "-f", fields,
                                                package).split("\n")[:3]
    return {"name": package, "version": version, "source": source,
            "source_version": source_version, "purl": f"pkg:deb/debian/{package}@{version}",
            "licence": content_of(f"/usr/share/doc/{package}/copyright")}


def bill_of_materials(name, version, packages):
    """CycloneDX 1.5, without a serial number and a time: they would differ from build to build."""
    components = [{"type": "library", "name": package["source"],
                   "version": package["source_version"],
                   "bom-ref": f"{package['name']}@{package['version']}",
                   "purl": package["purl"],
                   "licenses": [{"license": {"name": f"see licenses/{package['name']}.txt"}}]}
                  for package in packages]
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
                       "metadata": {"component": {"type": "application", "name": name,
                                                  "version": version}},
                       "components": components}, indent=1) + "\n"


def write_wheel(folder, name, version, tag, files, packages):
    """`files` and what makes a wheel of them; returns its path. `METADATA` is among them."""
    info = f"{name}-{version}.dist-info"
    files = {path.replace("{info}", info).replace("{data}", f"{name}-{version}.data"): content
             for path, content in files.items()}
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: muster\n"
                              f"Root-Is-Purelib: false\nTag: {tag}\n").encode()
    files[f"{info}/sboms/muster.cdx.json"] = bill_of_materials(name.replace("_", "-"), version,
                                                               packages).encode()
    for package in packages:
        files[f"{info}/licenses/{package['name']}.txt"] = package["licence"]
    record = f"{info}/RECORD"
    lines = []
    for path, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}\n")
    files[record] = "".join(lines + [f"{record},,\n"]).encode()
    os.makedirs(folder, exist_ok=True)
    wheel_path = os.path.join(folder, f"{name}-{version}-{tag}.whl")
    with zipfile.ZipFile(wheel_path, "w") as wheel:
        for path, content in sorted(files.items()):
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if "/scripts/" in path or ".so" in path else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            entry.create_system = 3  # Unix, whose modes these are
            wheel.writestr(entry, content, compresslevel=9)
    return wheel_path
