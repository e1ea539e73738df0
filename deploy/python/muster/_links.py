"""For survive.py: what a process may wait at for another rank, and how such waits are ended."""
import contextlib
import os
import socket
import struct
import threading

import torch.distributed as dist

# Back ends whose groups have abort(): what waits for the device goes on then, as if all were done.
ABORTABLE = {"nccl"}

# These variables keep a process whose group over NCCL has lost a rank. By default the group waits
# 15 seconds for a file of its recorder and ends the process, and NCCL tries for 60 to connect.
SURVIVING_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
                  "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0", "NCCL_SOCKET_RETRY_CNT": "8"}


def can_be_cut(backend):
    return backend == "gloo" or backend in ABORTABLE and hasattr(dist.ProcessGroup, "abort")


def _tcp_sockets():
    """This process's TCP sockets: duplicates, which are closed behind each."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if (found.type == socket.SOCK_STREAM
                        and found.family in (socket.AF_INET, socket.AF_INET6)):
                    yield found
        except OSError:  # closed meanwhile
            pass


def listening_ports():
    return {found.getsockname()[1] for found in _tcp_sockets()
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)}


def _abort(group):
    try:
        group.abort()
    except RuntimeError:
        pass  # it has failed by itself


class Links:
    """What this process may wait at for another rank of its round: the connections of its group
    over gloo, those that gloo has yet to accept, the store's, and groups over NCCL. The program's
    own are not among them. `size`: how many ranks the round has; `store_port`: of the launcher's
    store."""

    def __init__(self, size, store_port):
        self._size, self._store_port = size, store_port
        self._before = listening_ports()
        self._is_left = threading.Event()
        self._quiet = getattr(dist.distributed_c10d, "_muster_quiet", contextlib.nullcontext)()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._own, self._of_all = None, set()
        self._is_connecting = False
        self._aborts = {}  # threads, by group
        self._knocked = set()
        self._thread = None

    def own(self):
        """The ports on which gloo listens here: those that were not there before."""
        with self._lock:
            own = self._own
        return listening_ports() - self._before if own is None else own

    def found(self, own, of_all):
        """All ranks have met over gloo. From here to connected() NCCL is what listens anew."""
        with self._lock:
            self._own, self._of_all = set(own), set(of_all)
            self._is_connecting = True

    def connected(self):
        with self._lock:
            self._is_connecting = False

    def cut(self):
        """Ends every wait for another rank, at both ends, from now until leave(). May be called at
        any time."""
        if self._is_left.is_set():
            return
        with self._lock:
            if self._thread is None:
                self._quiet.__enter__()  # of the store PyTorch would print a page of C++ frames
                self._thread = threading.Thread(target=self._cut_what_comes, daemon=True)
                self._thread.start()
        self._cut_what_is_there()

    def await_aborts(self):
        """Behind cut(): no kernel waits for another rank any more. PyTorch gives an abort the
        group's time-out; the agent ends a process that has not let go sooner."""
        with self._lock:
            aborts = list(self._aborts.values())
        for abort in aborts:
            abort.join()

    def leave(self):
        """Behind cut(): none of this group is left."""
        self._is_left.set()
        self._thread.join()
        self._aborts = {}
        self._quiet.__exit__(None, None, None)

    def _cut_what_comes(self):
        """A group that is being made connects to the store, and to others, a little later."""
        while not self._is_left.wait(0.05):
            self._cut_what_is_there()

    def _cut_what_is_there(self):
        self._abort_groups()
        own = self.own()
        with self._lock:
            of_all, is_connecting = self._of_all, self._is_connecting
        of_nccl = listening_ports() - self._before - own if is_connecting else ()
        for found in _tcp_sockets():
            try:
                port = found.getsockname()[1]
                if port in of_nccl:
                    found.shutdown(socket.SHUT_RDWR)
                elif found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    if port in own:
                        self._knock(found)
                else:
                    peer = found.getpeername()[1]
                    if port in own or peer in of_all or peer == self._store_port:
                        found.shutdown(socket.SHUT_RDWR)
            except OSError:  # not connected any more
                pass

    def _abort_groups(self):
        """Aborts all at once: the end of one waits for the device, and so for another's kernels."""
        with self._lock:
            for group, (backend, _) in list(dist.distributed_c10d._world.pg_map.items()):
                if backend in ABORTABLE and group not in self._aborts:
                    abort = threading.Thread(target=_abort, args=(group,), daemon=True)
                    self._aborts[group] = abort
                    abort.start()

    def _knock(self, listener):
        """Comes in the place of each rank that has not come, and leaves: gloo waits without end for
        a connection whose first eight bytes are the number of the pair, counted from 0."""
        address = listener.getsockname()[:2]
        with self._lock:
            if address in self._knocked:
                return
            self._knocked.add(address)
        for pair in range(self._size):
            with socket.create_connection(address, timeout=1) as connection:
                connection.sendall(struct.pack("=q", pair))
