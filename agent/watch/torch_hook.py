# Runs in the workers' Python, as sitecustomize.py on their PYTHONPATH. Shows for which keys of a
# store a program waits, does two things when a process of a worker calls init_process_group or
# init_rpc, and never raises:
#
# * The ranks of the job meet at the launcher's store ($MUSTER_TORCH_GROUP says where), even where
#   the script has written another address into MASTER_ADDR and MASTER_PORT. The script's own groups
#   meet where the script says.
# * The first process of a worker starts PyTorch's own worker server on the Unix socket
#   $MUSTER_TORCH_SERVER, which the agent reads. Nothing happens where PyTorch has no such server or
#   the variable is unset.
#
# It waits for the call of init_process_group, or of init_rpc, and not for the import of
# torch.distributed, because `import torch` imports that too.
import os
import sys
from _thread import _local

_HERE = os.path.dirname(__file__)
_STOPS = []  # what ends this process's servers
_MODULE = "torch.distributed.distributed_c10d"


# By PyTorch's functions, the argument that names the rank at the other end, or the root.
_ENDS = {
    "send": "dst",
    "recv": "src",
    "broadcast": "src",
    "scatter": "src",
    "reduce": "dst",
    "gather": "dst",
}


def _is_of_python(file):
    """Whether it is of Python's own library."""
    library = os.path.dirname(os.__file__) + os.sep
    return file.startswith((library, "<frozen")) and "-packages/" not in file


_looked_at = None, None, None  # a place in a frame's code, and what it has looked up


def _looked_up(frame):
    """The attribute that the frame has looked up last, and by which name of its own: of C++ there
    are no frames, so its code is read."""
    global _looked_at
    import dis

    if _looked_at[:2] == (frame.f_code, frame.f_lasti):
        return _looked_at[2]
    of, name, before = "", "", ("", "")
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti:
            break
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            name = str(instruction.argval)
            of = before[1] if before[0].startswith("LOAD_") else ""
        if instruction.opname not in ("CACHE", "NOP"):
            before = instruction.opname, str(instruction.argval)
    _looked_at = frame.f_code, frame.f_lasti, (of, name)
    return of, name


def _held(frame):
    """The variables of a frame of the program's.

    Before Python 3.13 a look keeps alive what a function's hold, in a dict that is emptied here; it
    is left alone where it may be the program's, too."""
    is_function = frame.f_code.co_flags & 1  # CO_OPTIMIZED
    if not is_function or sys.version_info >= (3, 13):
        return frame.f_locals
    shares = {"dir", "eval", "exec", "locals", "vars"}.intersection(frame.f_code.co_names)
    if shares or frame.f_trace is not None:
        return {}
    kept = frame.f_locals
    held = dict(kept)
    kept.clear()
    return held


def _awaits_work(frame):
    """Whether the frame is in wait() of a Work; None: of something, and of what is not known."""
    if _is_of_python(frame.f_code.co_filename):
        return False
    of, name = _looked_up(frame)
    if name != "wait":
        return False
    held = _held(frame)
    if of not in held:
        held = frame.f_globals
    work = getattr(sys.modules[_MODULE], "Work", None)
    return isinstance(held[of], work) if of in held and work is not None else None


def _awaits_work_of(held):
    """The same of a frame of PyTorch's, by its variables."""
    work = getattr(sys.modules[_MODULE], "Work", ())
    lists = [value[:256] for value in held.values() if isinstance(value, (list, tuple))]
    return any(isinstance(each, work) for of in [held.values()] + lists for each in of)


def _global_rank(held, end):
    """The rank of the job that arguments name as `end`; None: any."""
    module = sys.modules[_MODULE]
    rank = held.get(end)
    if rank is None and held.get("group_" + end) is not None:
        group = held.get("group") or module._get_default_group()
        rank = module.get_global_rank(group, held["group_" + end])
    return rank


def _rpc_agent():
    api = sys.modules.get("torch.distributed.rpc.api")
    try:
        return api._get_current_rpc_agent() if api is not None else None
    except RuntimeError:
        return None  # not initialized


def _awaits_rpc():
    agent = _rpc_agent()
    return agent is not None and agent.get_debug_info().get("agent.client_active_calls", "0") != "0"


def _rpc_call(held):
    """A call at another rank, which the main thread awaits. Ranks of RPC are the job's where this
    one's is."""
    agent, to, function = _rpc_agent(), held.get("to"), held.get("func")
    words = "rpc_sync of " + str(getattr(function, "__qualname__", function))
    call = {"kind": "answer", "name": words}
    if agent is not None and str(agent.get_worker_info().id) == os.environ.get("RANK"):
        to = agent.get_worker_info(to) if isinstance(to, (int, str)) else to
        call["peer"] = to.id
    return call


def _show_keys(store):
    """Calls of a store that wait for keys get a frame of Python, which has these."""
    import functools

    def show(wait):
        @functools.wraps(wait)
        def await_keys(self, *args, **kwargs):
            return wait(self, *args, **kwargs)

        return await_keys

    for name in ("get", "multi_get", "queue_pop", "wait"):
        if hasattr(store, name):
            setattr(store, name, show(getattr(store, name)))


def _keys_in_words(held):
    keys = [*held["args"], *held["kwargs"].values()][0]
    keys = [keys] if isinstance(keys, (bytes, str)) else list(keys)
    if not keys:
        return "no key"
    return ascii(keys[0][:40]) + (" or %d more" % (len(keys) - 1) if len(keys) > 1 else "")


def _call_of(frame):
    """The call that the main thread awaits, where PyTorch's recorder does not have it or has no
    root of it: from the variables of PyTorch's own frames, innermost first."""
    module = sys.modules[_MODULE]
    folder = os.path.dirname(module.__file__) + os.sep
    if frame.f_code.co_filename == __file__ and frame.f_code.co_name == "await_keys":
        held, frame = frame.f_locals, frame.f_back
        if not frame.f_code.co_filename.startswith(folder):
            return {"kind": "key", "name": _keys_in_words(held)}
    awaits = _awaits_work(frame)
    futures = os.path.join(os.path.dirname(folder[:-1]), "futures/__init__.py")
    while frame is not None and (
        _is_of_python(frame.f_code.co_filename) or frame.f_code.co_filename == futures
    ):
        frame, awaits = frame.f_back, False
    while frame is not None and frame.f_code.co_filename.startswith(folder):
        name, held = frame.f_code.co_name, frame.f_locals
        place = frame.f_code.co_filename[len(folder) :]
        if place == "distributed_c10d.py" and name in _ENDS:
            group = module._world.pg_names.get(held.get("group") or module._get_default_group())
            end = _global_rank(held, _ENDS[name])
            kind = "transfer" if name in ("send", "recv") else "rooted"
            return {"kind": kind, "name": name, "group": group, "peer": end}
        if place == "distributed_c10d.py" and name == "monitored_barrier":
            group = module._world.pg_names.get(held.get("group") or module._get_default_group())
            return {"kind": "meeting", "name": name, "group": group}
        if place == "distributed_c10d.py" and name == "destroy_process_group":
            if held.get("group") in (None, module.GroupMember.WORLD):
                return {"kind": "meeting", "name": name}
        if place == "rpc/api.py" and name == "_all_gather":
            name = "rpc.shutdown" if _is_below(frame, "shutdown") else "rpc barrier"
            return {"kind": "meeting", "name": name}
        if place == "rpc/api.py" and name == "rpc_sync" and not _is_below(frame, "_all_gather"):
            return _rpc_call(held)
        lists = [value for value in held.values() if isinstance(value, list)]
        calls = {
            (op.op.__name__, op.peer) for ops in lists for op in ops if isinstance(op, module.P2POp)
        }
        if awaits is not False and len(calls) == 1:
            name, peer = calls.pop()
            return {"kind": "transfer", "name": name[1:], "peer": peer}  # of isend, irecv
        if awaits is None:
            awaits = True if calls or _awaits_work_of(held) else None
        frame = frame.f_back
    if awaits is None and _awaits_rpc():
        return {"kind": "answer", "name": "a call of RPC"}
    words = "a send or receive" if awaits else "a send or receive, or something else"
    return {} if awaits is False else {"kind": "transfer", "name": words}


def _is_below(frame, name):
    """Whether a function of the same file has called it, or one that it has called."""
    file, frame = frame.f_code.co_filename, frame.f_back
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == file


def _stack_of(frame):
    stack = []
    while frame is not None and len(stack) < 48:
        if frame.f_code.co_filename != __file__:
            stack.append([frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return stack


def _threads_of(frames, main):
    """The other threads that are in the program's own files or in torch.distributed."""
    import threading

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = []
    for ident, frame in frames.items():
        stack = _stack_of(frame)
        if ident not in (main, threading.get_ident()) and any(
            "/torch/distributed/" in file or not (_is_of_python(file) or "-packages/" in file)
            for _, file, _ in stack
        ):
            if stack[-1][0] == "_run_function" and "/rpc/" in stack[-1][1]:  # for another rank
                names[ident], stack = "of RPC", stack[:-1] or stack
            threads.append({"name": names.get(ident, "?"), "stack": stack})
    return threads[:8]


def _state():
    """What only Python knows: the ranks of each process group, and where its threads are."""
    import json
    import threading

    module = sys.modules[_MODULE]
    world = module._world
    names = dict(world.pg_names)
    ranks = dict(world.pg_group_ranks).items()  # also of groups that this rank is not in
    groups = {names[group]: sorted(of, key=of.get) for group, of in ranks if group in names}
    frames = sys._current_frames()
    main = threading.main_thread().ident
    try:
        call = _call_of(frames[main])
    except Exception:
        call = {}
    state = {
        "groups": groups,
        "stack": _stack_of(frames.get(main)),
        "threads": _threads_of(frames, main),
        "call": call,
        "has_groups": module.GroupMember.WORLD is not None,
        "has_rpc": _rpc_agent() is not None,
    }
    return json.dumps(state).encode()


def _tell(listener):
    """Serves the state on a daemon thread: PyTorch's server does not survive Python's exit."""
    import time

    try:
        with open("/proc/thread-self/comm", "w") as name:
            name.write("muster_hook")  # its time is not the program's (process_look.cc)
    except Exception:
        pass
    while True:
        try:
            with listener.accept()[0] as connection:
                connection.settimeout(1)
                connection.recv(4096)
                body = _state()
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
        except Exception:
            if listener.fileno() < 0:
                return
            time.sleep(1)


class _Quiet:
    """PyTorch greets at its level of warnings; nobody is to read that in the output of a rank."""

    def __enter__(self):
        import ctypes

        try:
            self.level = ctypes.c_int.in_dll(
                ctypes.CDLL("libc10.so", mode=os.RTLD_NOLOAD), "FLAGS_caffe2_log_level"
            )
            self.before = self.level.value
            self.level.value = max(self.before, 2)
        except (OSError, ValueError):
            self.level = None

    def __exit__(self, *_):
        if self.level is not None:
            self.level.value = self.before


def _keep_last():
    """Keeps the recorder's dump when the process ends by an exception.

    Another rank may have aborted. The agent then asks what this rank called last, and the server
    is already gone."""
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.5)
        connection.connect(_PATH)
        connection.sendall(
            b"POST /handler/fr_trace_json HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        answer = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    with open(_PATH + ".part", "wb") as file:
        file.write(answer)
    os.rename(_PATH + ".part", _PATH + ".last")


def _serve():
    import _thread
    import atexit
    import fcntl
    import socket

    from torch._C import _distributed_c10d as c10d

    # Of the processes of one worker the first serves. It holds the lock until the round is over;
    # each process that it forks holds it to its own end.
    lock = os.open(_PATH + ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.exists(_PATH):
            raise OSError
        with _Quiet():
            server = c10d._WorkerServer(_PATH)
    except BaseException:
        os.close(lock)
        raise
    own = os.getpid()

    # Threads of PyTorch must not read what the end of the process destroys.
    def stop():
        if os.getpid() != own:
            return
        if getattr(sys, "last_type", None) is not None:
            try:
                _keep_last()
            except Exception:
                pass
        with _Quiet():
            server.shutdown()

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(_PATH + "p")
    listener.listen(8)
    _thread.start_new_thread(_tell, (listener,))
    atexit.register(stop)

    def stop_here():
        atexit.unregister(stop)
        with _Quiet():
            server.shutdown()
        listener.shutdown(socket.SHUT_RDWR)  # which wakes its thread
        listener.close()
        os.close(lock)

    _STOPS.append(stop_here)


def _renew(todo, meetings):
    """For muster.survive: this process goes on in the job's next round, whose variables are there.
    What the recorders hold of the round before would be taken for calls of this one: where they
    cannot be emptied (PyTorch 2.11), nobody reads them."""
    global _PATH
    while _STOPS:
        _STOPS.pop()()
    _PATH = os.environ.get("MUSTER_TORCH_SERVER", "")
    if _PATH:
        from torch._C import _distributed_c10d as c10d

        if hasattr(c10d, "_reset_fr_trace"):
            c10d._reset_fr_trace()
            getattr(c10d, "_reset_fr_recording_nccl", lambda: None)()
            todo.append(_serve)
    if meetings is not None:
        import json

        meetings.given = json.loads(os.environ["MUSTER_TORCH_GROUP"])
        meetings.count(0)


class _Variables:
    """Sets variables, and sets them back."""

    def __init__(self, **changes):
        self.changes = changes

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.changes}
        os.environ.update(self.changes)

    def __exit__(self, *_):
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _is_worker():
    """The first process of a worker that makes a group is it, also after an exec; what it starts
    from then on is not."""
    own = str(os.getpid())
    return os.environ.setdefault("MUSTER_TORCH_WORKER", own) == own


class _Meetings:
    """Where the process groups of this process meet, and what the agent is told of it."""

    def __init__(self, given):
        self.given = given
        self.serve = lambda: None
        self.is_in_init = False
        self.is_told = False  # of a call that has not returned
        self.is_at_launcher = False  # the last store that was made
        # Groups that met at the launcher's store, one after the other; an exec does not begin anew.
        is_worker = os.environ.get("MUSTER_TORCH_WORKER") == str(os.getpid())
        self.num_made = int(os.environ.get("MUSTER_TORCH_MEETINGS", "0")) if is_worker else 0

    def is_launchers(self, host, port, rank, world_size):
        """Whether a call with these values meets at the launcher's store."""
        given = self.given
        if (host, port) == (given["host"], given["port"]):
            return True
        if (rank, world_size) != (given["rank"], given["world_size"]):
            return False
        spawned = sys.modules.get("multiprocessing.process")
        is_child = spawned is not None and spawned.parent_process() is not None
        if is_child or not _is_worker():
            return False  # The worker started this process; equal numbers are chance.
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return False  # It has turned the launcher's store off.
        if self.is_of_environment(host, port):
            return True
        # An explicit tcp:// address is taken at its word, unless it cannot be meant.
        is_loopback = host in ("localhost", "::1") or host.startswith("127.")
        return is_loopback and given["num_nodes"] > 1

    @staticmethod
    def is_of_environment(host, port):
        return (host, str(port)) == (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))

    def create(self, create, host, port, rank, world_size, *args, **kwargs):
        """In the place of PyTorch's _create_c10d_store."""
        self.serve()  # of RPC alone, nobody calls init_process_group
        given = self.given
        self.is_at_launcher = self.is_launchers(host, port, rank, world_size)
        asked = [host, port]
        is_written = self.is_of_environment(host, port) or self.is_at_launcher
        if self.is_at_launcher:
            host, port = given["host"], given["port"]
            changes = {
                "MASTER_ADDR": host,
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": str(given["restart_count"]),
            }
        else:
            changes = {"TORCHELASTIC_USE_AGENT_STORE": "False"}
        self.tell(
            is_begun=True,
            rank=rank,
            world_size=world_size,
            host=host,
            port=port,
            asked=asked if is_written else [],
            at_launcher=self.is_at_launcher,
        )
        try:
            with _Variables(**changes):
                store = create(host, port, rank, world_size, *args, **kwargs)
        finally:
            if not self.is_in_init:
                self.tell(is_begun=False)
        if self.is_at_launcher and self.num_made > 0:
            # The keys of the group before are still there, with addresses that nobody has any more.
            from torch.distributed import PrefixStore

            store = PrefixStore("again%d" % self.num_made, store)
        return store

    def init(self, init, *args, **kwargs):
        """In the place of init_process_group."""
        self.is_in_init, self.is_at_launcher = True, False
        _is_worker()  # from now on, wherever this group meets
        try:
            result = init(*args, **kwargs)
            if self.is_at_launcher:
                self.count(self.num_made + 1)
            return result
        finally:
            self.is_in_init = False
            self.tell(is_begun=False)

    def count(self, num_made):
        self.num_made = num_made
        if _is_worker():
            os.environ["MUSTER_TORCH_MEETINGS"] = str(num_made)

    def open(self, opening, store, *args, **kwargs):
        """In the place of TCPStore's __init__: a client of the script's own may wait, too."""
        what = dict(zip(("host_name", "port", "world_size", "is_master"), args), **kwargs)
        is_own = not self.is_told and not self.is_in_init and not what.get("is_master")
        if is_own:
            self.tell(
                is_begun=True,
                rank=self.given["rank"],
                world_size=0,
                host=what.get("host_name"),
                port=what.get("port"),
                asked=[],
                at_launcher=False,
            )
        try:
            opening(store, *args, **kwargs)
        finally:
            if is_own:
                self.tell(is_begun=False)

    def tell(self, is_begun, **what):
        if not is_begun and not self.is_told:
            return
        self.is_told = is_begun
        try:
            import json
            import socket

            note = dict(what, round=self.given["round"], is_begun=is_begun)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1)  # the agent's queue may be full for a moment
                sender.connect(self.given["notes"])
                sender.send(json.dumps(note).encode())
        except Exception:
            pass


def _find_meetings():
    """None in a worker of another launcher that a worker of ours has started."""
    import json

    try:
        given = json.loads(_GROUP)
        if os.environ.get("TORCHELASTIC_ERROR_FILE") == given["error_file"]:
            return _Meetings(given)
    except Exception:
        pass
    return None


def _prepare(module):
    import functools

    init_process_group = module.init_process_group
    todo = [_serve] if _PATH else []
    if "MUSTER_WARM_LIST" in os.environ:
        todo.append(_list_modules)
    meetings = _find_meetings()
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    create = getattr(rendezvous, "_create_c10d_store", None)

    def serve():
        while todo:
            try:
                todo.pop()()
            except Exception:
                pass

    @functools.wraps(init_process_group)
    def wrapper(*args, **kwargs):
        serve()
        if meetings is None:
            return init_process_group(*args, **kwargs)
        return meetings.init(init_process_group, *args, **kwargs)

    module.init_process_group = wrapper
    module._muster_renew = functools.partial(_renew, todo, meetings)
    module._muster_quiet = _Quiet  # for muster.survive, too
    if meetings is not None and create is not None:
        meetings.serve = serve
        rendezvous._create_c10d_store = functools.wraps(create)(
            functools.partial(meetings.create, create)
        )
    c10d = sys.modules.get("torch._C._distributed_c10d")
    for name in ("FileStore", "HashStore", "PrefixStore", "TCPStore") if _PATH else ():
        _show_keys(getattr(c10d, name, None))
    store = getattr(c10d, "TCPStore", None)
    if meetings is not None and store is not None:
        opening = store.__init__

        @functools.wraps(opening)
        def open_store(self, *args, **kwargs):
            meetings.open(opening, self, *args, **kwargs)

        store.__init__ = open_store


class _Finder:
    """Meets the module once, and leaves."""

    _asking = _local()  # of a thread: another finder that asks all, as this one does, asks it too

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != _MODULE or getattr(cls._asking, "is_on", False):
            return None
        cls._asking.is_on = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find and finder is not cls else None
                if spec is not None:
                    cls._watch(spec.loader)
                    return spec
            return None
        finally:
            cls._asking.is_on = False

    @classmethod
    def _watch(cls, loader):
        execute = getattr(loader, "exec_module", None)

        def execute_and_prepare(module):
            execute(module)
            try:
                _prepare(module)
                sys.meta_path.remove(cls)
            except Exception:
                pass

        try:
            if execute is not None:
                loader.exec_module = execute_and_prepare
        except Exception:
            pass


def _run_the_next():
    """The sitecustomize that this one hides, as if this one were not there."""
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


def _list_modules():
    """What this worker has imported of the packages that a warm process may import."""
    path = os.environ["MUSTER_WARM_LIST"]
    packages = set(os.environ["MUSTER_WARM_PACKAGES"].split(","))
    names = [name for name in list(sys.modules) if name.partition(".")[0] in packages]
    with open(path + ".part", "w") as file:
        file.write("\n".join(names))
    os.rename(path + ".part", path)


def _serve_warm():
    """Returns in a worker that this process has forked, with that worker's environment."""
    sys.path.insert(0, _HERE)
    import muster_warm

    sys.path.remove(_HERE)
    muster_warm.serve(os.environ.pop("MUSTER_WARM"))
    del sys.modules["muster_warm"]


def _is_of_a_hook(folder):
    """Also of the job that this worker's job runs in: one hook is enough, and all are alike."""
    return folder == _HERE or os.path.exists(os.path.join(folder, "muster_warm.py"))


sys.path[:] = [folder for folder in sys.path if not _is_of_a_hook(folder)]
_run_the_next()
if "MUSTER_WARM" in os.environ:
    _serve_warm()
_PATH = os.environ.get("MUSTER_TORCH_SERVER", "")
_GROUP = os.environ.get("MUSTER_TORCH_GROUP", "")
if _PATH or _GROUP:
    if _MODULE in sys.modules:  # imported by the warm process
        try:
            _prepare(sys.modules[_MODULE])
        except Exception:
            pass
    else:
        sys.meta_path.insert(0, _Finder)
