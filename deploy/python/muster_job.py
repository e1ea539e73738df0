"""When a training program shall stop, and whether its checkpoint may be published. One file without
dependencies.

    import muster_job
    for step in range(first, last):
        train(step)
        if muster_job.should_stop(step):            # the same answer on all ranks, at the same step
            save(step)
            sys.exit(0)
        ...
        if rank == 0 and muster_job.commit_checkpoint(step) == "yes":
            os.rename(written, published)

The agent of `muster run` answers; without one nothing stops, and every checkpoint may be published.
A program that never asks has promised nothing, and is stopped by SIGTERM. One process per rank
asks: the first that does, and none of its children.

A program may also go on in the job's next round in the same process (survive_rounds, next_round);
muster.survive does that for programs of PyTorch.
"""
import atexit
import os
import socket
import struct
import sys
import threading

_VERSION = 1  # of the messages, which are those of proto/agent.proto


def _varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field, value):
    return _varint(field << 3) + _varint(value)


def _bytes(field, value):
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _pairs(message):
    """The fields of an encoded message, each as its number and its value."""
    at = 0

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(message):
        field, kind = divmod(varint(), 8)
        if kind == 0:
            yield field, varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            yield field, message[at:at + size]
            at += size


def _fields(message):
    """The fields of an encoded message by number; of a repeated one the last."""
    return dict(_pairs(message))


class JobOver(RuntimeError):
    """No round follows, for the reason given: the program should end."""


class _Agent:
    """The connection to the agent; a thread reads it, so that the agent hears how far this rank is
    while a step runs."""

    def __init__(self, path, begun=-1):
        self._write = threading.Lock()
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._lost = False
        self._begun = begun  # the furthest step
        self._stop = None  # (step or None, reason)
        self._obeys = False
        self._replies = {}
        self._asked = 0
        self._on_round_over = None
        self._round_over = None  # (whether another follows, reason)
        self._next_round = None  # its environment
        self._round = int(os.environ["MUSTER_ROUND"])
        self._instance = int(os.environ["MUSTER_INSTANCE"])
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:  # of a job that has ended
            self._lost = True
            return
        hello = (_number(1, _VERSION) + _number(2, self._instance) + _number(3, self._round)
                 + _number(4, int(os.environ["MUSTER_LOCAL_RANK"])) + _number(5, os.getpid()))
        self._send(_bytes(1, hello))
        threading.Thread(target=self._read, name="muster_job", daemon=True).start()
        atexit.register(self._say_goodbye, os.getpid())

    def should_stop(self, step):
        with self._changed:
            while self._stop is not None and self._stop[0] is None:
                self._changed.wait()
            if self._stop is not None and step >= self._stop[0]:
                return True
            self._begun = max(step, -1) + 1
            says_so, self._obeys = not self._obeys, True
        if says_so:
            self._send(_bytes(4, b""))
        return False

    def begun(self):
        with self._changed:
            return self._begun

    def reason(self):
        with self._changed:
            return self._stop[1] if self._stop else ""

    def commit_checkpoint(self, step):
        with self._changed:
            self._asked += 1
            request = self._asked
        commit = _bytes(10, _number(3, step))
        self._send(_bytes(2, _number(1, request) + _number(2, self._round) + commit))
        with self._changed:
            self._changed.wait_for(lambda: self._lost or request in self._replies, timeout=30)
            code = self._replies.pop(request, 14)
        if code == 3:  # kInvalidArgument
            raise ValueError(f"muster_job.commit_checkpoint: {step} is no step; 0 to 10^11 are")
        return {0: "yes", 10: "never"}.get(code, "not now")  # absl::StatusCode: kAborted is 10

    def survive_rounds(self, on_round_over):
        with self._changed:
            self._on_round_over = on_round_over
        self._send(_bytes(6, b""))

    def next_round(self, patience):
        self._send(_bytes(7, b""))
        with self._changed:
            self._changed.wait_for(
                lambda: self._round_over or self._next_round or self._lost, timeout=patience)
            if not (self._round_over or self._next_round or self._lost):
                raise TimeoutError(f"the round was not declared over within {patience:g} s")
            self._changed.wait_for(
                lambda: self._next_round or self._lost
                or (self._round_over and not self._round_over[0]))
            if self._next_round:
                return self._next_round
            raise JobOver(self._round_over[1] if self._round_over else "the agent is gone")

    def _send(self, message):
        try:
            with self._write:
                self._socket.sendall(struct.pack("<I", len(message)) + message)
        except OSError:
            pass  # the reader notices

    def _receive(self, size):
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise OSError("the agent has closed the connection")
            data += part
        return data

    def _read(self):
        try:
            while True:
                size, = struct.unpack("<I", self._receive(4))
                reply = _fields(self._receive(size))
                if 2 in reply:
                    answer = _fields(reply[2])
                    with self._changed:
                        self._replies[answer.get(1, 0)] = answer.get(2, 0)
                        self._changed.notify_all()
                if 3 in reply:
                    self._hear(_fields(reply[3]))
                if 4 in reply:
                    self._end_round(_fields(reply[4]))
                if 6 in reply:
                    why = _fields(reply[6]).get(1, b"").decode(errors="replace")
                    print(f"muster_job: the agent refused this process: {why}", file=sys.stderr)
                if 5 in reply:
                    variables = [value.decode(errors="surrogateescape").partition("=")
                                 for field, value in _pairs(reply[5]) if field == 1]
                    with self._changed:
                        self._next_round = {name: value for name, _, value in variables}
                        self._changed.notify_all()
        except (OSError, IndexError):
            with self._changed:
                self._lost = True
                if self._stop is not None and self._stop[0] is None:
                    self._stop = None
                self._changed.notify_all()
            self._socket.close()

    def _hear(self, stop):
        with self._changed:
            reason = stop.get(3, b"").decode(errors="replace")
            self._stop = (stop.get(2), reason) if stop.get(1) else None
            begun = self._begun
            is_open = self._stop is not None and self._stop[0] is None
            self._changed.notify_all()
        if is_open:  # `begun` cannot grow before a step is named
            self._send(_bytes(5, _number(1, begun)))

    def _end_round(self, over):
        with self._changed:
            self._round_over = (bool(over.get(1)), over.get(2, b"").decode(errors="replace"))
            on_round_over = self._on_round_over
            self._changed.notify_all()
        if on_round_over is not None:
            on_round_over()

    def leave(self):
        """Lets go of what belongs to this round, once the next round's variables are known."""
        atexit.unregister(self._say_goodbye)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # its reader closes it
        except OSError:  # the agent was first
            pass

    def _say_goodbye(self, pid):
        if os.getpid() == pid:
            self._send(_bytes(3, _number(1, max(self._begun, 0))))


_lock = threading.Lock()
_pid = None  # of the process that asked first
_agent = None  # None as well where there is none


def _connect():
    global _agent, _pid
    if _pid is None:
        with _lock:
            if _pid is None:
                path = os.environ.get("MUSTER_AGENT_SOCKET")
                _agent = _Agent(path) if path else None
                _pid = os.getpid()
    return _agent


def should_stop(step):
    """Whether the job stops after `step`, which this rank has just finished; then save, and leave
    with 0.

    All ranks ask alike, after every step or after every k-th. Waits while a stop is under way and
    ranks say how far they are."""
    agent = _connect()
    return agent is not None and _pid == os.getpid() and agent.should_stop(step)


def stop_reason():
    """Why should_stop said yes, for people."""
    return _agent.reason() if _agent is not None else ""


def commit_checkpoint(step):
    """May the checkpoint of `step` be published? Asked by one rank, once all its parts are on disk.

    "yes"; "not now": train on, and ask again at the next checkpoint; "never": another round has
    begun, and this process is about to be stopped. Earlier checkpoints stay."""
    agent = _connect()
    if agent is None:
        return "yes"
    if _pid != os.getpid():
        raise RuntimeError("muster_job.commit_checkpoint: only the process of the rank that asked "
                           "first may ask, and not its children")
    return agent.commit_checkpoint(step)


def survive_rounds(on_round_over):
    """Tells the agent that this program goes on in the job's next round in the same process: where
    a round ends for the sake of another worker or node, this one is not signalled. `on_round_over`
    is called then, on a thread of this module's own. False without an agent.

    The program lets go of what belongs to its round and calls next_round; it has half of
    --shutdown_timeout for that, after the loss of a node at most five seconds."""
    agent = _connect()
    if agent is None or _pid != os.getpid():
        return False
    agent.survive_rounds(on_round_over)
    return True


def next_round(patience):
    """Waits for this process's place in the job's next round, and takes it: the variables that a
    worker started for it would find are those of os.environ afterwards.

    May be called as soon as something has failed, before the agent has heard why. Raises
    TimeoutError where nobody declares the round over within `patience` seconds, so that the failure
    is the program's own; JobOver where no round follows. Say survive_rounds again afterwards."""
    global _agent
    if _agent is None or _pid != os.getpid():
        raise JobOver("this process has no agent")
    os.environ.update(_agent.next_round(patience))
    _agent.leave()
    _agent = _Agent(os.environ["MUSTER_AGENT_SOCKET"], _agent.begun())
