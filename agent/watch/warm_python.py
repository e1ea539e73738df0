# A warm process: a worker's Python that has imported what workers import, and forks them from
# then on. It is started like a worker, with the same interpreter, arguments and folder, and stops
# in sitecustomize.py (torch_hook.py), before its script: so what it forks goes on into the script
# as a fresh interpreter does.
#
# $MUSTER_WARM names the file of modules to import, one a line, $MUSTER_WARM_OF_ONE the variables
# that each worker has for itself, and $MUSTER_WARM_WORKERS how many are likely to be asked for.
# Descriptor 3 is the socket of the guardian (guardian/warm_parent.h), which asks for workers. They
# are forked in advance, since a fork takes some 15 ms. Raises nothing into a worker.
import os
import sys

_CONTROL = 3
_LENGTH_BYTES = 4
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_PATIENCE_S = 10  # until a forked process belongs to the guardian, and until the trial has ended
_IMPORT_PATIENCE_S = 60  # until a forked process has imported what may be left out
_QUIET_S = 2  # after workers have been handed out, until others are forked
_TRUST_S = 1  # so long are files that were looked at taken for unchanged
_OF_ONE_WORKER = os.environb.pop(b"MUSTER_WARM_OF_ONE").split(b",")
_NUM_WORKERS = int(os.environb.pop(b"MUSTER_WARM_WORKERS"))
_PREFIXES_OF_ONE_WORKER = tuple(name[:-1] for name in _OF_ONE_WORKER if name.endswith(b"*"))
_OF_ENVIRON = ("os", "_collections_abc", "collections.abc")
# Modules that may read one all the same, and how each takes it anew in a worker. For each a test
# compares workers (tests/integration/warm_frameworks_test.cc).
_READ_ANEW = {
    name: lambda module: setattr(module.rank_zero_only, "rank", module._get_rank() or 0)
    for name in ("lightning.fabric.utilities.rank_zero", "lightning_fabric.utilities.rank_zero")
}
_READ_ANEW["torchmetrics.utilities.prints"] = lambda module: setattr(
    module.rank_zero_only, "rank", int(os.environ.get("LOCAL_RANK", 0))
)
# The module that a package imports at its first use, in nearly every program: torch's optimizers
# take a second and more for it.
_LATER = {"torch": "torch._dynamo"}
# Steps of a start that can fail, as worker_process.cc numbers them.
_STREAMS, _AFFINITY, _DIRECTORY = 0, 1, 2


class _CannotFork(Exception):
    """Why workers of this process must start as ever."""


class _Reads(dict):
    """The data of os.environ; notes who asks for what belongs to one worker: a module that does so
    as it is imported would hold it of nobody, or of another worker."""

    def __init__(self, data):
        super().__init__(data)
        self.importing = ""  # the package that was asked for
        self.found = {}  # by that package: why it must not be there

    def __getitem__(self, name):
        is_of_one = name in _OF_ONE_WORKER or name.startswith(_PREFIXES_OF_ONE_WORKER)
        if is_of_one and self.importing:
            reader, is_own = self._reader(sys._getframe(1))
            if not is_own or reader not in _READ_ANEW:
                why = "%s reads %s when it is imported" % (reader, os.fsdecode(name))
                self.found.setdefault(self.importing, why)
        return super().__getitem__(name)

    @staticmethod
    def _reader(frame):
        """The module that reads, and whether it does so for itself, not for one that calls it."""
        while frame is not None and frame.f_globals.get("__name__") in _OF_ENVIRON:
            frame = frame.f_back
        reader = frame.f_globals.get("__name__", "?") if frame is not None else "?"
        outermost = frame
        while frame is not None and frame.f_globals.get("__name__") == reader:
            outermost, frame = frame, frame.f_back
        return reader, outermost is not None and outermost.f_code.co_name == "<module>"


class _Output:
    """What modules print as they are imported. Each worker prints it, as if it had imported."""

    def __init__(self):
        self.ends = [os.open("/proc/self/fd/%d" % fd, os.O_RDONLY | os.O_NONBLOCK) for fd in (1, 2)]
        self.texts = [b"", b""]

    def collect(self):
        sys.stdout.flush()
        sys.stderr.flush()
        for i, end in enumerate(self.ends):
            try:
                while True:
                    part = os.read(end, 1 << 16)
                    if not part:
                        break
                    self.texts[i] += part
            except BlockingIOError:
                pass

    def forget(self):
        self.collect()
        self.texts = [b"", b""]

    def close(self):
        for end in self.ends:
            os.close(end)

    def repeat(self):
        for fd, text in zip((1, 2), self.texts):
            while text:
                text = text[os.write(fd, text) :]


class _Files:
    """The source files of the modules, which must not change while workers are forked."""

    def __init__(self):
        self.seen = {}
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str):
                self.seen[path] = self._look(path)
        self.looked = 0.0

    @staticmethod
    def _look(path):
        try:
            info = os.stat(path)
        except OSError:
            return None
        return info.st_mtime_ns, info.st_size

    def changed(self):
        """A file that has changed; None: there is none."""
        import time

        if time.monotonic() - self.looked < _TRUST_S:
            return None
        for path, seen in self.seen.items():
            if self._look(path) != seen:
                return path
        self.looked = time.monotonic()
        return None


def _receive(control):
    """The next request: its fields, and the descriptors beside it. None: the guardian is gone."""
    import array

    def fill(size, descriptors):
        data = b""
        while len(data) < size:
            part, beside, _, _ = control.recvmsg(size - len(data), 256)
            if not part:
                return None
            for level, kind, value in beside:
                if (level, kind) == (1, 1):  # SOL_SOCKET, SCM_RIGHTS
                    numbers = array.array("i")
                    numbers.frombytes(value[: len(value) - len(value) % numbers.itemsize])
                    descriptors.extend(numbers)
            data += part
        return data

    descriptors = []
    header = fill(_LENGTH_BYTES, descriptors)
    if header is None:
        return None
    body = fill(int.from_bytes(header, "little"), descriptors)
    return None if body is None else (body.split(b"\0"), descriptors)


def _send(control, text):
    body = text.encode("utf-8", "replace")
    control.sendall(len(body).to_bytes(_LENGTH_BYTES, "little") + body)


def _package(name):
    return name.partition(".")[0]


def _import(names):
    """The packages that are there now, those that must not be, and the variables that they set."""
    import importlib

    data = os.environ._data  # which os.environb has, too
    before = dict(data)
    reads = os.environ._data = _Reads(before)
    imported = set()
    brought = {}  # to be read anew: by which package it came
    for name in names:
        reads.importing = _package(name)
        try:
            importlib.import_module(name)
            imported.add(reads.importing)
        except Exception:
            pass  # a worker meets it by itself, and says so
        for module in _READ_ANEW.keys() & sys.modules.keys():
            brought.setdefault(module, reads.importing)
    data.clear()
    data.update(reads)
    os.environ._data = data
    for module, package in brought.items():
        try:
            _READ_ANEW[module](sys.modules[module])
        except Exception as error:
            reads.found.setdefault(package, "this version of %s is unknown: %s" % (module, error))
    own = {name for name in before.keys() | data.keys() if before.get(name) != data.get(name)}
    return imported, reads.found, own


def _num_threads_of_blas():
    """Threads that OpenBLAS keeps, which it ends before a fork and makes again after it."""
    import ctypes

    paths = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rpartition(" ")[2].strip()
            if "openblas" in os.path.basename(path):
                paths.add(path)
    extra = 0
    for path in paths:
        library = ctypes.CDLL(path)
        for name in ("openblas_get_num_threads", "scipy_openblas_get_num_threads",
                     "openblas_get_num_threads64_", "scipy_openblas_get_num_threads64_"):
            if hasattr(library, name):
                extra += max(0, getattr(library, name)() - 1)
                break
    return extra


def _check_threads():
    num_others = len(os.listdir("/proc/self/task")) - 1
    if num_others > _num_threads_of_blas():
        raise _CannotFork("%d threads run after the imports, and would be lost" % num_others)


def _opened():
    """What is open here, by descriptor."""
    paths = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            paths[fd] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            pass  # the folder itself
    return paths


def _check_devices():
    for path in _opened().values():
        if path.startswith(("/dev/nvidia", "/dev/kfd")):
            raise _CannotFork("they have opened %s, which a forked process could not use" % path)


def _check_shared(before):
    """What each fresh worker has for itself, and all that are forked would have together. `before`
    was open before the imports; a file is not meant."""
    for fd, what in _opened().items():
        if not what.startswith("/") and before.get(fd) != what:
            raise _CannotFork("they have opened %s, which all workers would share" % what)
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.split()[1].startswith("rw-s") and line.endswith(" (deleted)\n"):
                path = line[line.index("/") : -len(" (deleted)\n")]
                raise _CannotFork("they hold %s, memory that all workers would share" % path)


def _check(before):
    _check_threads()
    _check_devices()
    _check_shared(before)


def _multiply():
    """A product on all the threads of a library: a pool that is lost in a fork hangs here."""
    torch = sys.modules.get("torch")
    if torch is not None:
        of_ones = torch.ones(256, 256)
        if float((of_ones @ of_ones).sum()) != 256.0**3:
            return 1
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        of_ones = numpy.ones((256, 256))
        if float((of_ones @ of_ones).sum()) != 256.0**3:
            return 1
    return 0


def _status_of(work, patience_s):
    """Does `work` in a forked process; returns its wait status, or None if it does not end in
    time."""
    import time

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = work()
        finally:
            os._exit(status)
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    os.kill(pid, _SIGKILL)
    os.waitpid(pid, 0)
    return None


def _try():
    """One forked process computes, so that none that cannot is handed out."""
    status = _status_of(_multiply, _PATIENCE_S)
    if status is None:
        raise _CannotFork("a forked process hangs in a product of matrices")
    if status != 0:
        raise _CannotFork("a forked process ends with status %d in a product" % status)


def _import_later(packages, before):
    """Imports what those packages leave to their first use, if a forked process shows that workers
    can be forked afterwards. Returns the variables that it sets."""
    names = [_LATER[package] for package in _LATER.keys() & packages]
    names = [name for name in names if name not in sys.modules]

    def work():
        nothing = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(nothing, fd)
        os.close(nothing)
        imported, found, _ = _import(names)
        _check(before)
        return 0 if imported and not found else 1

    if not names or _status_of(work, _IMPORT_PATIENCE_S) != 0:
        return set()
    return _import(names)[2]


def _become(fields, descriptors, control, output, libc, guardian, own):
    """In the forked process: what worker_process.cc does between fork and exec."""
    import atexit
    import gc
    import socket
    import struct
    import time

    _, folder, cpus, streams = fields[:4]
    variables = fields[4:]
    deadline = time.monotonic() + _PATIENCE_S
    while os.getppid() != guardian and time.monotonic() < deadline:
        time.sleep(0.0002)
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != guardian:
        os._exit(127)
    os.setsid()
    result = socket.socket(fileno=descriptors[0])
    result.sendall(b"!")
    if result.recv(1) != b"!":
        os._exit(127)
    step = _STREAMS
    try:
        for target, fd in zip(streams, descriptors[1:]):
            os.dup2(fd, target - ord("0"))
            os.close(fd)
        step = _AFFINITY
        if cpus:
            os.sched_setaffinity(0, [int(cpu) for cpu in cpus.split(b",")])
        step = _DIRECTORY
        if folder:
            os.chdir(folder)
    except OSError as error:
        result.sendall(struct.pack("ii", error.errno, step))
        os._exit(127)
    control.close()
    output.close()
    wanted = dict(variable.partition(b"=")[::2] for variable in variables)
    for name in set(os.environb) - set(wanted) - own:
        del os.environb[name]
    for name in set(wanted) - own:
        if os.environb.get(name) != wanted[name]:
            os.environb[name] = wanted[name]
    for name in _READ_ANEW.keys() & sys.modules.keys():
        _READ_ANEW[name](sys.modules[name])
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    # Python's own generator is seeded again by fork.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch.random" in sys.modules:
        sys.modules["torch.random"].default_generator.seed()
    # What was frozen is shared until Python's end, which collects it as it does elsewhere.
    atexit.register(gc.unfreeze)
    output.repeat()
    result.close()


def _fork(waiting, *state):
    """Forks a process that waits to be a worker. Returns the socket for its request; in the worker
    that it becomes: None. `waiting`: the sockets of others.

    A process in between forks it and waits. The worker kills that one when its request comes, and
    is then the guardian's child. Both end when the warm process does."""
    import socket
    import warnings

    ours, its = socket.socketpair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's of threads, which were looked at
        if os.fork() != 0:
            its.close()
            return ours
        try:
            between = os.getpid()
            is_between = os.fork() != 0
            for end in (ours, *waiting):
                end.close()
            if is_between:
                its.close()
                os.wait()
                os._exit(0)
            request = _receive(its)
            its.close()
            if request is None:
                os._exit(0)
            if os.getppid() == between:
                os.kill(between, _SIGKILL)
            _become(*request, *state)
        except BaseException:
            os._exit(127)


def _hand_over(request, end):
    """Whether the process at that end of a socket is there to take it."""
    import socket

    fields, descriptors = request
    body = b"\0".join(fields)
    try:
        socket.send_fds(end, [len(body).to_bytes(_LENGTH_BYTES, "little")], descriptors)
        end.sendall(body)
        return True
    except OSError:
        return False
    finally:
        end.close()


def _reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def _resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _prepare(path):
    """Imports, and proves that what is imported can be forked. Returns what is to be said of it,
    and the variables that modules have set."""
    import gc
    import json
    import time

    begin = time.monotonic()
    left_out = json.loads(os.environ.pop("MUSTER_WARM_WITHOUT", "{}"))
    with open(path) as file:
        names = [name for name in file.read().split() if _package(name) not in left_out]
    before = _opened()
    imported, found, own = _import(names)
    left_out.update(found)
    if not imported - found.keys():
        reasons = "; ".join(left_out[package] for package in sorted(left_out))
        raise _CannotFork(reasons or "none of the modules can be imported")
    if found:
        os.environ["MUSTER_WARM"] = path
        os.environb[b"MUSTER_WARM_OF_ONE"] = b",".join(_OF_ONE_WORKER)
        os.environ["MUSTER_WARM_WORKERS"] = str(_NUM_WORKERS)
        os.environ["MUSTER_WARM_WITHOUT"] = json.dumps(left_out)
        os.set_inheritable(_CONTROL, True)
        os.execv(sys.executable, sys.orig_argv)
    _check(before)
    own |= _import_later(imported, before)
    gc.collect()
    gc.freeze()
    _try()
    said = "%s imported in %.1f s, %d MB" % (
        ", ".join(sorted(imported)),
        time.monotonic() - begin,
        _resident_bytes() >> 20,
    )
    for package in sorted(left_out):
        said += "; without %s: %s" % (package, left_out[package])
    return said, own


def _serve(path):
    import ctypes
    import select
    import socket

    guardian = os.getppid()
    libc = ctypes.CDLL(None)
    control = socket.socket(fileno=_CONTROL)
    control.set_inheritable(False)
    output = _Output()
    output.forget()  # what an earlier program of this process has printed
    try:
        said, own = _prepare(path)
    except _CannotFork as reason:
        _send(control, "failed\0" + str(reason))
        os._exit(1)
    files = _Files()
    output.collect()
    _send(control, "ready\0" + said)
    waiting = []
    pause_s = 0
    while True:
        _reap()
        is_short = len(waiting) < _NUM_WORKERS
        ready = select.select([control, *waiting], [], [], pause_s if is_short else None)[0]
        for end in [end for end in waiting if end in ready]:  # it has been killed
            waiting.remove(end)
            end.close()
            pause_s = _QUIET_S
        # A process that is forked while a request is open here would hold its descriptors.
        if not ready or control in ready and not waiting:
            end = _fork(waiting, control, output, libc, guardian, own)
            if end is None:
                return
            waiting.append(end)
            pause_s = 0
        if control not in ready:
            continue
        request = _receive(control)
        if request is None:
            os._exit(0)
        changed = files.changed()
        if changed is not None:
            _send(control, "failed\0%s has changed since it was imported" % changed)
            os._exit(1)
        while waiting and not _hand_over(request, waiting.pop()):
            pass
        for fd in request[1]:
            os.close(fd)
        pause_s = _QUIET_S


def serve(path):
    """Returns in a worker that was forked, and in no other process."""
    try:
        _serve(path)
    except BaseException:
        os._exit(1)  # the guardian sees it end, and starts workers afresh
