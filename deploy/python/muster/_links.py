"""For survive.py: what a process may wait at for another rank, and how such waits are ended."""
import contextlib
import enum
import os
import socket
import struct
import sys
import threading

import muster_job
import torch
import torch.distributed as dist

# Back ends whose groups have abort(): what waits for the device goes on then, as if all were done.
ABORTABLE = {"nccl"}

# These variables keep a process whose group over NCCL has lost a rank. By default the group waits
# 15 seconds for a file of its recorder and ends the process, and NCCL tries for 60 to connect.
SURVIVING_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
                  "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0", "NCCL_SOCKET_RETRY_CNT": "8"}


def _can_be_cut(backend):
    return backend == "gloo" or backend in ABORTABLE and hasattr(dist.ProcessGroup, "abort")


def _tcp_sockets():
    """This process's TCP sockets, each a duplicate that is closed behind it, with its port and the
    address of its peer, which is None where it listens."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if not os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if (found.type == socket.SOCK_STREAM
                        and found.family in (socket.AF_INET, socket.AF_INET6)):
                    listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    yield found, found.getsockname()[1], None if listens else found.getpeername()


def ends():
    """The ports and peers of these sockets, without those whose other end has gone."""
    return {(port, peer) for found, port, peer in _tcp_sockets() if peer is None
            or found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\1"}  # ESTABLISHED


def _abort(group):
    with contextlib.suppress(RuntimeError):  # it has failed by itself
        group.abort()


class Stage(enum.Enum):
    """How far this rank is in its round."""
    MEETING = 1  # all ranks come together over gloo
    CONNECTING = 2  # they do over NCCL, and get their states
    WHOLE = 3  # what this rank holds is of one step
    UPDATING = 4  # it is in the midst of the optimizer's step


class Links:
    """The groups of a round, and what this process may wait at in them for another rank: the
    connections over gloo, those that gloo has yet to accept, the store's, and groups over NCCL. The
    program's own are not among them.

    A thread ends such waits: the program's is in their midst, and muster_job's, which hears that
    the round is over, has to hear what follows."""

    def __init__(self, backend):
        self.backend = backend
        self.stage = Stage.MEETING
        self.meeting = None  # a group over gloo beside one over NCCL
        self._size = int(os.environ.get("WORLD_SIZE", 1))
        self._store_port = int(os.environ.get("MASTER_PORT", 0))
        self._hooks = None, None  # sys.excepthook without PyTorch's, and PyTorch's
        self._before = ends()
        self._ports = None  # on which gloo listens: here, and anywhere
        self._connected = set()  # what has been connected over gloo, by its ends
        self._is_cut, self._is_left = threading.Event(), threading.Event()
        self._thread = None
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._aborts = {}  # threads, by group
        self._knocked = set()

    @property
    def survives(self):
        """Whether this process outlives the round."""
        return self._thread is not None

    def survive(self):
        if (not self.survives and _can_be_cut(self.backend)
                and muster_job.survive_rounds(self._is_cut.set)):
            self._thread = threading.Thread(target=self._cut_what_comes, daemon=True)
            self._thread.start()

    def join(self):
        may_abort = (self.backend in ABORTABLE and _can_be_cut(self.backend)
                     and "MUSTER_AGENT_SOCKET" in os.environ)
        if may_abort:
            os.environ.update(SURVIVING_NCCL)
        before = sys.excepthook
        dist.init_process_group(self.backend)
        self._hooks = before, sys.excepthook  # PyTorch's puts the rank in front of a traceback
        if may_abort:
            self.meeting = dist.new_group(backend="gloo")
        self._connected = {(port, peer) for port, peer in ends() - self._before
                           if peer and peer[1] != self._store_port}

    def gather(self, value):
        """The values of all ranks."""
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.meeting)
        return values

    def new_ports(self):
        """The ports on which something listens that did not before, as gloo does."""
        return {port for port, peer in ends() - self._before if peer is None}

    def found(self, own, of_all):
        """All ranks have met over gloo. What begins to listen before connected() is NCCL."""
        self._ports, self.stage = (set(own), set(of_all)), Stage.CONNECTING

    def connected(self):
        own, of_all = self._ports
        self._connected |= {(port, peer) for port, peer in ends()
                            if peer and (port in own or peer[1] in of_all)}
        self.stage = Stage.WHOLE

    def may_have_failed(self, error):
        """Whether another rank may be behind the error: PyTorch says that it is one between ranks,
        or a connection to one has ended. Whatever fails in a round that is over may have worked on
        rubbish."""
        if self._is_cut.is_set() or isinstance(error, dist.DistError):
            return self.survives
        is_whole = len(self._connected) >= self._size - 1 and self._connected <= ends()
        return self.survives and isinstance(error, RuntimeError) and not is_whole

    def await_device(self):
        """Behind it, what NCCL has been asked for is done, and not merely aborted."""
        if self.survives and self.backend in ABORTABLE:
            if self.backend == "nccl":
                torch.cuda.current_stream().synchronize()
            if self._is_cut.is_set():
                raise dist.DistError("muster.survive: another rank of this round is lost")

    def cut(self):
        """Ends every wait for another rank, at both ends, from now until leave(). No kernel waits
        any more. PyTorch gives an abort the group's time-out; the agent ends a process that has not
        let go sooner."""
        self._is_cut.set()
        self._cut_what_is_there()
        for abort in self._aborts.values():  # and of no other group, as this thread makes them
            abort.join()

    def leave(self):
        """Ends the groups, which nothing else holds any more."""
        self.meeting = None
        if dist.is_initialized():
            dist.destroy_process_group()
        else:
            # PyTorch names groups in the store by their count, in which one that has failed half
            # made stays. Ranks that have not tried it would wait for this one at another name.
            dist.distributed_c10d._world.group_count = 0
        self._is_left.set()
        self._is_cut.set()
        if self._thread:
            self._thread.join()
        self._aborts.clear()
        before, of_round = self._hooks
        if sys.excepthook is of_round:  # and not one that the program has set meanwhile
            sys.excepthook = before

    def _cut_what_comes(self):
        """A group that is being made connects to the store, and to others, a little later."""
        self._is_cut.wait()
        # Of the store PyTorch would print a page of C++ frames.
        with getattr(dist.distributed_c10d, "_muster_quiet", contextlib.nullcontext)():
            while not self._is_left.is_set():
                self._cut_what_is_there()
                self._is_left.wait(0.05)

    def _cut_what_is_there(self):
        with self._lock:
            for group, (backend, _) in list(dist.distributed_c10d._world.pg_map.items()):
                if backend in ABORTABLE and group not in self._aborts:
                    # At once: the end of one waits for the device, and so for another's kernels.
                    self._aborts[group] = threading.Thread(target=_abort, args=(group,),
                                                           daemon=True)
                    self._aborts[group].start()
            own, of_all = self._ports or (self.new_ports(), ())
            of_nccl = self.new_ports() - own if self.stage is Stage.CONNECTING else ()
            for found, port, peer in _tcp_sockets():
                with contextlib.suppress(OSError):  # not connected any more
                    if peer is None and port in own:
                        self._knock(found.getsockname()[:2])
                    elif port in own or port in of_nccl or peer and (
                            peer[1] in of_all or peer[1] == self._store_port):
                        found.shutdown(socket.SHUT_RDWR)

    def _knock(self, address):
        """Comes in the place of each rank that has not come, and leaves: gloo waits without end for
        a connection whose first eight bytes are the number of the pair, counted from 0."""
        if address not in self._knocked:
            self._knocked.add(address)
            for pair in range(self._size):
                with socket.create_connection(address, timeout=1) as connection:
                    connection.sendall(struct.pack("=q", pair))
