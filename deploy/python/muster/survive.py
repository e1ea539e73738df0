"""A DDP program that goes on in the same processes where a rank dies: the others keep theirs, and
what replaces the dead one gets the state of a survivor.

    from muster import survive

    job = survive.Job(model, optimizer)            # joins the group, and wraps the model in DDP

    def train(step):                               # one step, done by all ranks or by none
        loss = loss_of(job.model(batch(step, job.rank, job.size)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step, loss in job.run(train, steps=1000):
        print(step, loss.item())

Under `muster run` (with --warm=auto the replacement needs a tenth of a second) and the back end
gloo. Under another launcher, and over other back ends, the program trains as ever, and a rank that
dies ends the round for all of them.

A step is done again where a rank is lost in its midst, so

* what it draws, it draws from its number, the rank and the size (a survivor's state of torch's
  generator and the buffers of its model are put back);
* collective operations belong into the step, before the optimizer's: a rank that fails behind it
  has half a step, and takes the whole state from another;
* what else keeps count (a scheduler, a sampler) is moved on behind the optimizer's step.
"""
import atexit
import contextlib
import gc
import os
import socket
import struct
import sys
import threading
import traceback
import zlib

import muster_job
import muster_marks
import torch
import torch.distributed as dist
from muster_job import commit_checkpoint, should_stop, stop_reason  # noqa: F401
from muster_marks import mark  # noqa: F401

try:
    # DDP imports it as it wraps a module, for more than a second. Imported here, it is among what a
    # warm process has imported (--warm=auto) before it forks a replacement.
    import torch._dynamo  # noqa: F401
except ImportError:
    pass

# Between the failure of an operation and the agent's word that the round is over. A node that has
# vanished is missed after its lease.
_PATIENCE_S = 20


class DamagedState(Exception):
    """After a recovery this rank's parameters are not those of the others."""


class LostState(Exception):
    """No rank has a whole state: those that had are lost, or in the midst of a step."""


def _names(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


class _Slot:
    """The place of a tensor in a state whose tensors travel by themselves."""

    def __init__(self, tensor):
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device.type


def _apart(value, tensors):
    """`value` with slots for its tensors, which are added to `tensors` in order."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return _Slot(value)
    if isinstance(value, dict):
        return {key: _apart(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_apart(item, tensors) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _together(value, tensors):
    """The inverse of _apart; `tensors` is an iterator."""
    if isinstance(value, _Slot):
        return next(tensors)
    if isinstance(value, dict):
        return {key: _together(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_together(item, tensors) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _slots(value):
    if isinstance(value, _Slot):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _slots(item)


def _checksum(tensors):
    sum_so_far = 0
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        sum_so_far = zlib.crc32(flat.numpy(), sum_so_far)
    return sum_so_far


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


def _listening_ports():
    return {found.getsockname()[1] for found in _tcp_sockets()
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)}


class _Links:
    """What this process may wait at for another rank of its round: the connections of its group
    over gloo, those that gloo has yet to accept, and the store's. The program's own are not among
    them. `size`: how many ranks the round has; `store_port`: of the launcher's store."""

    def __init__(self, size, store_port):
        self._size, self._store_port = size, store_port
        self._before = _listening_ports()
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
        return _listening_ports() - self._before if own is None else own

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


class Job:
    """The ranks that train together, in whichever round of the job.

    `stateful`: what has state_dict() and load_state_dict(), and must be alike on all ranks: the
    optimizer, a scheduler, a sampler. `step`: the first that is to be done, as a checkpoint says.
    `wrap`: makes what `model` is from the module; PyTorch's DistributedDataParallel by default.

    One thread uses it: the one that has made it."""

    def __init__(self, module, *stateful, step=0, backend="gloo", wrap=None):
        self._module, self._stateful = module, stateful
        self._backend = backend
        self._wrap = wrap or torch.nn.parallel.DistributedDataParallel
        self._result = None  # of the last step
        self._links = None
        self._hooks = None, None
        self._is_over = threading.Event()
        self._survives = False
        self._has_entered = False  # a round, whole
        self._has_state = False  # and the optimizer is not in the midst of a step
        self._is_in_step = False  # the program's
        for item in stateful:
            if isinstance(item, torch.optim.Optimizer):
                item.register_step_pre_hook(self._on_update)
        self.step = step
        self.model = None
        try:
            self._enter()
        except RuntimeError as error:
            if not self._may_be_a_loss(error):
                raise
            self._recover(error)
        atexit.register(self._end)

    def _end(self):
        """A thread of gloo that only now lets go of the last operation needs the interpreter for
        it, and would abort the process once that has gone; so it ends before."""
        if self._is_in_step or not dist.is_initialized():
            return  # it may wait for another rank
        self.model = None
        gc.collect()  # the wrapper holds the group
        dist.destroy_process_group()

    def _on_update(self, *_):
        self._has_state = False

    @property
    def rank(self):
        return dist.get_rank()

    @property
    def size(self):
        return dist.get_world_size()

    def run(self, train, steps):
        """Calls train(step) for each step that is left before `steps`, and yields the step and what
        it has returned. A step during which a rank is lost is done again, and not yielded before it
        is done. A step that only some ranks have finished is taken over from one of them, with what
        it returned there."""
        while self.step < steps:
            before = self._changed_by_a_forward_pass()
            self._is_in_step = True
            try:
                self._result = train(self.step)
                self.step += 1
                self._has_state = True
            except RuntimeError as error:
                if not self._may_be_a_loss(error):
                    raise
                self._put_back(before)
                begun = self.step
                self._recover(error)
                if self.step == begun:
                    continue
            self._is_in_step = False
            yield self.step - 1, self._result

    def _changed_by_a_forward_pass(self):
        buffers = [buffer.clone() for buffer in self._module.buffers()]
        return torch.get_rng_state(), buffers

    def _put_back(self, before):
        generator, buffers = before
        torch.set_rng_state(generator)
        with torch.no_grad():
            for buffer, value in zip(self._module.buffers(), buffers):
                buffer.copy_(value)

    def _may_be_a_loss(self, error):
        """Whether another rank may be behind it: what fails between ranks says so."""
        if not self._survives:
            return False
        return (self._is_over.is_set() or isinstance(error, dist.DistError)
                or "gloo" in str(error).lower())

    def _recover(self, error):
        """Goes on in the next round; a failure on the way leads to the round after that."""
        while True:
            traceback.clear_frames(error.__traceback__)
            self._let_go()
            try:
                muster_job.next_round(_PATIENCE_S)
            except TimeoutError:
                raise error from None  # nobody is lost: it is the program's own
            muster_marks.reopen()
            renew = getattr(dist.distributed_c10d, "_muster_renew", None)  # of our sitecustomize
            if renew is not None:
                renew()
            try:
                self._enter()
                return
            except RuntimeError as again:
                if not self._may_be_a_loss(again):
                    raise
                error = again

    def _let_go(self):
        """Nothing of the round is left: gradients and hooks of half a step neither."""
        self._links.cut()
        self.model = None
        for parameter in self._module.parameters():
            parameter.grad = None
        gc.collect()  # the wrapper's hooks at the parameters go with it
        if dist.is_initialized():
            dist.destroy_process_group()
        else:
            # PyTorch names groups in the store by their count, in which one that has failed half
            # made stays. Ranks that have not tried it would wait for this one at another name.
            dist.distributed_c10d._world.group_count = 0
        self._links.leave()
        before, of_round = self._hooks
        if sys.excepthook is of_round:  # and not one that the program has set meanwhile
            sys.excepthook = before

    def _enter(self):
        """Joins the ranks of this round, and agrees with them on one state."""
        links = _Links(int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("MASTER_PORT", 0)))
        is_over = threading.Event()
        self._links, self._is_over = links, is_over

        def on_round_over():
            is_over.set()
            links.cut()

        self._survives = self._backend == "gloo" and muster_job.survive_rounds(on_round_over)
        before = sys.excepthook
        dist.init_process_group(self._backend)
        self._hooks = before, sys.excepthook  # PyTorch's puts the rank in front of a traceback
        if self._survives:
            own = sorted(links.own())
            of_all = [None] * self.size
            dist.all_gather_object(of_all, own)
            links.found(own, [port for ports in of_all for port in ports])
        self._agree()
        self.model = self._wrap(self._module)
        self._has_entered = self._has_state = True

    def _agree(self):
        """The newest state that a survivor has whole becomes everyone's."""
        claims = [None] * self.size
        dist.all_gather_object(claims, (self._has_state, self._has_entered, self.step))
        holders = [rank for rank, claim in enumerate(claims) if claim[0]]
        if not holders:
            self._begin_alike(claims)
            return
        newest = max(claims[rank][2] for rank in holders)
        stale = [rank for rank, claim in enumerate(claims) if not claim[0] or claim[2] != newest]
        source = next(rank for rank in holders if claims[rank][2] == newest)
        if stale:
            self._take_over(source, is_stale=self.rank in stale)
        sums = [None] * self.size
        dist.all_gather_object(sums, _checksum(self._module.parameters()))
        if sums[self.rank] != sums[source]:
            raise DamagedState(f"muster.survive: rank {self.rank} has other parameters than rank "
                               f"{source}, whose state it should have")
        if self.rank == 0:
            taken = f"; from rank {source} to {_names(stale)}" if stale else ""
            print(f"muster.survive: {self.size} ranks go on at step {newest}{taken}",
                  file=sys.stderr, flush=True)

    @staticmethod
    def _begin_alike(claims):
        if any(has_entered for _, has_entered, _ in claims):
            raise LostState("muster.survive: every rank that is left was in the midst of the "
                            "optimizer's step; the next attempt begins from a checkpoint")
        steps = sorted({step for _, _, step in claims})
        if len(steps) > 1:
            raise ValueError(f"muster.survive: ranks would begin at different steps ({steps}); "
                             "load the same checkpoint on all of them")

    def _take_over(self, source, is_stale):
        tensors, holder = [], [None]
        if self.rank == source:
            state = {"module": self._module.state_dict(), "step": self.step,
                     "stateful": [item.state_dict() for item in self._stateful],
                     "result": self._result}
            holder = [_apart(state, tensors)]
        dist.broadcast_object_list(holder, src=source)
        received = []
        for index, slot in enumerate(_slots(holder[0])):
            if self.rank == source:
                tensor = tensors[index].contiguous()
            else:
                tensor = torch.empty(slot.shape, dtype=slot.dtype, device=slot.device)
            dist.broadcast(tensor, src=source)
            if is_stale:
                received.append(tensor)
        if is_stale:
            state = _together(holder[0], iter(received))
            self._module.load_state_dict(state["module"])
            for item, its_state in zip(self._stateful, state["stateful"]):
                item.load_state_dict(its_state)
            self.step, self._result, self._has_state = state["step"], state["result"], True
