"""Tells the agent of `muster run` what a training program does, and of which step. One file without
dependencies.

    import muster_marks
    muster_marks.mark(step, "forward")

The agent reads it without the program's help, also once it hangs: it says which rank has stopped
where, and ends a job in which nobody has moved for --hang_timeout. A program that marks does so in
every step.

Phases: forward, backward, reduce, update; save, load and evaluate, which may take longer; end,
which is what is left to do behind the last step, and may take as long; and idle, which is waiting
for the work of the step that comes next: ranks that are all idle are never taken for hung. A rank
in phase reduce is assumed to wait for the others: one that takes longer than they do for the rest
of a step is named as slow.

Costs about two microseconds, without a system call; nothing happens without `muster run`. One
process per rank marks: the first.
"""
import ctypes
import mmap
import os
import time

_PHASES = {name: number for number, name in enumerate(
    ("starting", "forward", "backward", "reduce", "update", "save", "load", "idle", "evaluate",
     "end"))}
# Of proto/base/progress_board.h.
_MAGIC, _VERSION = 0x6472616F4273754D, 2
_PID, _PROGRESS, _MARKED_NS, _NUM_STEPS, _WAITED_NS = 24, 32, 40, 48, 4168


class _Board:
    def __init__(self, path):
        with open(path, "r+b", buffering=0) as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        magic = ctypes.c_uint64.from_buffer(self._memory, 0).value
        version = ctypes.c_uint32.from_buffer(self._memory, 8).value
        if (magic, version) != (_MAGIC, _VERSION):
            raise OSError(f"{path} is not a progress board of version {_VERSION}")
        self.pid = ctypes.c_int32.from_buffer(self._memory, _PID)
        # Aligned words: the agent sees each whole.
        self.progress = ctypes.c_uint64.from_buffer(self._memory, _PROGRESS)
        self.marked_ns = ctypes.c_int64.from_buffer(self._memory, _MARKED_NS)
        self.num_steps = ctypes.c_int64.from_buffer(self._memory, _NUM_STEPS)
        self.waited_ns = ctypes.c_int64.from_buffer(self._memory, _WAITED_NS)


def _open():
    path = os.environ.get("MUSTER_BOARD")
    try:
        board = _Board(path) if path else None
    except OSError:  # of another version, or of a job that has ended
        return None
    if board is not None and board.pid.value == 0:
        board.pid.value = os.getpid()
    return board if board is not None and board.pid.value == os.getpid() else None


_board = _open()


def reopen():
    """Marks go to the board that MUSTER_BOARD names now: to another in the job's next round
    (muster_job.next_round)."""
    global _board
    _board = _open()


def mark(step, phase):
    """From now on this rank is in `phase` of step `step` (from 0)."""
    number = _PHASES[phase]
    if _board is None or _board.pid.value != os.getpid():  # a child of the rank's process
        return
    count = step + 1
    now = time.monotonic_ns()
    if _board.progress.value & 0xFF == _PHASES["reduce"]:
        _board.waited_ns.value += now - _board.marked_ns.value
    _board.marked_ns.value = now
    if count != _board.progress.value >> 8:
        _board.num_steps.value += 1
    _board.progress.value = count << 8 | number
