"""Which rooms a change touches: the folders whose files changed, and those that include them."""
import collections
import os
import re
import subprocess

SOURCES = (".h", ".cc", ".cu", ".c", ".proto")
PRODUCTION = ("agent/", "launcher/", "proto/", "rendezvous/", "worker_runtime/")
INCLUDE = re.compile(r'^#include "([^"]+)/[^/"]+"', re.MULTILINE)
PUBLIC_HEADERS = "worker_runtime/include/"
# A change of these may change how anything is built.
OF_ALL = ("CMakeLists.txt", "CMakePresets.json", "tests/CMakeLists.txt")


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def changed_files(base):
    """Since commit `base`; None where that is not known."""
    if base is None:
        return None
    try:
        return git("diff", "--name-only", base, "HEAD").splitlines()
    except subprocess.CalledProcessError:
        return None


def commits_since(base):
    """How many that touch C++."""
    return int(git("rev-list", "--count", f"{base}..HEAD", "--", *(f"*{end}" for end in SOURCES)))


def tree():
    """The text of each source, by its path."""
    texts = {}
    for path in git("ls-files").splitlines():
        if path.endswith(SOURCES) and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                texts[path] = file.read()
    return texts


def rooms_touched(files, texts):
    """The folders of `files` with those that include them; None, for all, where `files` is None."""
    if files is None or any(file in OF_ALL for file in files):
        return None
    included_by = collections.defaultdict(set)
    for path, text in texts.items():
        for room in INCLUDE.findall(text):
            public = room == "muster" or room.startswith("muster/")
            included_by[PUBLIC_HEADERS + room if public else room].add(os.path.dirname(path))
    changed = {os.path.dirname(file) for file in files}
    return changed.union(*(included_by[room] for room in changed))


def production_folders(files, texts):
    """The folders of production code with a file among `files`; all for None."""
    return {os.path.dirname(path) for path in texts
            if path.startswith(PRODUCTION) and (files is None or path in files)}


def lines_of_production(texts):
    return sum(text.count("\n") for path, text in texts.items() if path.startswith(PRODUCTION))


def folders_of_tests(rooms, all_folders):
    """The folders below tests/ whose tests are of `rooms`, among `all_folders`, sorted."""
    if rooms is None:
        return sorted(all_folders)
    found = set()
    for room in rooms:
        folder = room if room.startswith("tests/") else f"tests/unit/{room}"
        while folder and folder not in all_folders:  # its tests may lie in its parent's folder
            folder = os.path.dirname(folder)
        found.add(folder)
    return sorted(found - {""})


def test_folders():
    """Those below tests/ that build unit and simulation tests."""
    found = set()
    listed = git("ls-files", *(f"tests/{folder}/*CMakeLists.txt"
                               for folder in ("unit", "support", "simulation")))
    for path in listed.splitlines():
        with open(path, encoding="utf-8") as file:
            if re.search(r"^ *muster_test\(", file.read(), re.MULTILINE):
                found.add(os.path.dirname(path))
    return found


def programs_of_process_tests(files, texts):
    """The test programs of tests/integration that changed, or whose programs did; all for None."""
    if files is None:
        return {"integration_" + os.path.basename(path)[:-len(".cc")] for path in texts
                if path.startswith("tests/integration/") and path.endswith("_test.cc")}
    changed = [os.path.basename(file) for file in files if file.startswith("tests/integration/")]
    words = [word for name in changed
             for word in (name, f"MUSTER_{os.path.splitext(name)[0].upper()}")]
    return {"integration_" + os.path.basename(path)[:-len(".cc")] for path, text in texts.items()
            if path.startswith("tests/integration/") and path.endswith("_test.cc") and
            (os.path.basename(path) in changed or any(word in text for word in words))}
