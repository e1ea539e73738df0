"""For survive.py: what a process may wait at for another rank, and how such waits are ended."""
import contextlib
import os
import socket
import struct
import threading

import torch.distributed as dist


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


class Links:
    """What this process may wait at for another rank of its round: the connections of its group
    over gloo, those that gloo has yet to accept, and the store's. The program's own are not among
    them. `size`: how many ranks the round has; `store_port`: of the launcher's store."""

    def __init__(self, size, store_port):
        self._size, self._store_port = size, store_port
        self._before = listening_ports()
        self._is_left = threading.Event()
        self._quiet = getattr(dist.distributed_c10d, "_muster_quiet", contextlib.nullcontext)()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._own, self._of_all = None, set()
        self._knocked = set()
        self._thread = None

    def own(self):
        """The ports on which gloo listens here: those that were not there before."""
        with self._lock:
            own = self._own
        return listening_ports() - self._before if own is None else own

    def found(self, own, of_all):
        with self._lock:
            self._own, self._of_all = set(own), set(of_all)

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

    def leave(self):
        """Behind cut(): none of this group is left."""
        self._is_left.set()
        self._thread.join()
        self._quiet.__exit__(None, None, None)

    def _cut_what_comes(self):
        """A group that is being made connects to the store, and to others, a little later."""
        while not self._is_left.wait(0.05):
            self._cut_what_is_there()

    def _cut_what_is_there(self):
        own = self.own()
        with self._lock:
            of_all = self._of_all
        for found in _tcp_sockets():
            try:
                port = found.getsockname()[1]
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    if port in own:
                        self._knock(found)
                    continue
                peer = found.getpeername()[1]
                if port in own or peer in of_all or peer == self._store_port:
                    found.shutdown(socket.SHUT_RDWR)
            except OSError:  # not connected any more
                pass

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
