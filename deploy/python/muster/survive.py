"""A program under DDP, or under FSDP2 with replicas, that goes on in the same processes where a
rank dies: the others keep theirs, and what replaces the dead one gets the state of a survivor.

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

A sharded model is made by a function, which job = survive.Job(build) calls in each round; what it
returns is job.model and job.stateful.

Under `muster run` (with --warm=auto the replacement needs a tenth of a second, and what its device
takes to start) and over gloo or NCCL. Under another launcher, and over other back ends, the program
trains as ever, and a rank that dies ends the round for all of them.

What a rank that is lost leaves undone over NCCL ends on the device, where nothing tells it from
what is done. Therefore each step waits for its gradients before the optimizer uses them.

A step is done again where a rank is lost in its midst, so

* what it draws, it draws from its number, the rank and the size (a survivor's state of torch's
  generator and the buffers of its model are put back);
* collective operations belong into the step, before the optimizer's: a rank that fails behind it
  has half a step, and takes the whole state from another;
* what else keeps count (a scheduler, a sampler) is moved on behind the optimizer's step.
"""
import atexit
import collections
import contextlib
import functools
import gc
import os
import sys
import threading
import traceback

import muster_job
import muster_marks
import torch
import torch.distributed as dist
from muster_job import commit_checkpoint, should_stop, stop_reason  # noqa: F401
from muster_marks import mark  # noqa: F401

from ._links import ABORTABLE, SURVIVING_NCCL, Links, can_be_cut
from ._state import State, checksum, forget_meshes, shard_of

try:
    # DDP imports it as it wraps a module, for more than a second. Imported here, it is among what a
    # warm process has imported (--warm=auto) before it forks a replacement.
    import torch._dynamo  # noqa: F401
except ImportError:
    pass

# The time from the failure of an operation to the agent's word that the round is over. A node that
# has vanished is missed after its lease.
_PATIENCE_S = 20


class DamagedState(Exception):
    """After a recovery this rank's parameters are not those of the others."""


class LostState(Exception):
    """No rank has a whole state: those that had are lost, or in the midst of a step."""


def _clear_frames(error):
    """What failed holds nothing of its round any more, nor do those that it came of."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _names(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


# What a rank says as it joins: where its gloo listens; the states that it holds, by shard and step;
# the shard that it is to have; whether it was in a round before; its step.
_Claim = collections.namedtuple("_Claim", "ports held shard has_entered step")


def _has_state(claims):
    """Whether a rank was in a round before, so that its state becomes that of all."""
    return any(claim.held or claim.has_entered for claim in claims)


def _newest(claims):
    """The newest step of which all shards are held, and for each rank one that holds its own."""
    steps = sorted({step for claim in claims for _, step in claim.held}, reverse=True)
    shards = sorted({claim.shard for claim in claims})
    for step in steps:
        holders = {shard: [rank for rank, claim in enumerate(claims) if (shard, step) in claim.held]
                   for shard in shards}
        if all(holders.values()):
            return step, [rank if rank in holders[claim.shard]
                          else holders[claim.shard][rank % len(holders[claim.shard])]
                          for rank, claim in enumerate(claims)]
    lost = [shard for shard in shards
            if not any((shard, step) in claim.held for claim in claims for step in steps[:1])]
    raise LostState(f"muster.survive: no whole copy of {' or '.join(lost)} is left: each rank that "
                    "had one is lost, or was in the midst of the optimizer's step; the next "
                    "attempt begins from a checkpoint")


def _takers(sources):
    """By the source: the ranks that take their state from it."""
    takers = {}
    for rank, source in enumerate(sources):
        if source != rank:
            takers.setdefault(source, []).append(rank)
    return takers


def _alone(claims):
    """The ranks whose shard no other rank has."""
    shards = [claim.shard for claim in claims]
    return [rank for rank, shard in enumerate(shards) if shards.count(shard) == 1]


class Job:
    """The ranks that train together, in whichever round of the job.

    `module`: a module that every rank holds whole, or a function that makes one that is sharded
    (FSDP2) and returns it with what is stateful. The function is called in each round, since a
    group that has ended takes its meshes with it; what this rank holds is put into what it returns.
    `stateful`: what has state_dict() and load_state_dict(), and must be alike on all ranks: the
    optimizer, a scheduler, a sampler, a GradScaler.
    `step`: the first that is to be done, as a checkpoint says.
    `backend`: of the group; where it is None, NCCL for a model on a GPU, and gloo for others.
    `wrap`: makes what `model` is from the module; PyTorch's DistributedDataParallel by default.

    One thread uses it: the one that has made it."""

    def __init__(self, module, *stateful, step=0, backend=None, wrap=None):
        self._build = None if isinstance(module, torch.nn.Module) else module
        if self._build and (stateful or wrap):
            raise TypeError("muster.survive: a function that makes the model returns what is "
                            "stateful with it, and wraps the model itself")
        self._backend = backend or self._usual_backend(module)
        self._wrap = wrap
        self._links = None
        self._meeting = None  # a group over gloo beside one over NCCL
        self._hooks = None, None
        self._is_over = threading.Event()
        self._survives = False
        self._has_copies = False  # of each shard of this round
        self._has_entered = False  # a round, whole
        self._has_state = False  # and the optimizer is not in the midst of a step
        self._is_in_step = False  # the program's
        self._held = {}  # between rounds: states, by shard and step
        self._before = None  # the step in flight: what a forward pass changes
        self._doubt = None  # why it is not known whether all ranks update, as this one does
        self._result = None  # of the last step
        self.step = step
        self.model = None
        if self._build is None:
            self._take_in(module, *stateful)
        try:
            self._enter()
        except RuntimeError as error:
            if not self._may_be_a_loss(error):
                raise
            self._recover(error)
        atexit.register(self._end)

    def _end(self):
        """A thread of gloo that only now lets go of the last operation needs the interpreter for
        it, and would abort the process once that has gone; so it ends before. A group that the
        program has destroyed lives on while a model holds it."""
        if self._is_in_step:
            return  # it may wait for another rank
        self.model = self._module = self._parameters = self._before = self._meeting = None
        self.stateful = ()
        forget_meshes()
        gc.collect()  # all that holds the group is gone
        if dist.is_initialized():
            dist.destroy_process_group()

    def _usual_backend(self, module):
        on_gpu = (torch.cuda.is_available() if self._build
                  else any(parameter.is_cuda for parameter in module.parameters()))
        return "nccl" if on_gpu else "gloo"

    def _take_in(self, module, *stateful):
        self._module, self.stateful = module, stateful
        # A module of FSDP2 that has failed amid a pass has whole parameters in the place of some.
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._shard = shard_of(self._parameters.values())
        for item in stateful:
            if isinstance(item, torch.optim.Optimizer):
                item.register_step_pre_hook(self._on_update)
        for scaler in self._scalers():
            self._guard(scaler)

    def _scalers(self):
        return [item for item in self.stateful if hasattr(item, "unscale_")]

    def _guard(self, scaler):
        """A GradScaler takes what was aborted for an overflow, skips the update and scales less."""
        step = type(scaler).step.__get__(scaler)

        def step_with_gradients(*arguments, **more):
            self._await_device()
            return step(*arguments, **more)

        scaler.step = step_with_gradients

    def _on_update(self, *_):
        """Shards are of one step only if all ranks update theirs or none does: the first update of
        a step waits for all ranks. Where one is lost meanwhile, the others may have begun or not,
        so that this one updates, and keeps what it had."""
        self._await_device()
        if self._survives and self._has_state and self._build and self._has_copies:
            try:
                dist.barrier(group=self._meeting)
            except RuntimeError as error:
                if not self._may_be_a_loss(error):
                    raise
                now = self._changed_by_a_forward_pass()
                self._put_back(self._before)
                self._held[self._shard, self.step] = self._state().copy()
                self._put_back(now)
                self._doubt = error
        self._has_state = False

    def _await_device(self):
        """Behind it, what NCCL has been asked for is done, and not merely aborted."""
        if self._survives and self._backend in ABORTABLE:
            if self._backend == "nccl":
                torch.cuda.current_stream().synchronize()
            if self._is_over.is_set():
                raise dist.DistError("muster.survive: another rank of this round is lost")

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
            begun, failure = self.step, None
            self._before = self._changed_by_a_forward_pass()
            self._is_in_step = True
            try:
                self._result = train(begun)
                if self._has_state:  # without an update, which waits
                    self._await_device()
                self.step += 1
                self._has_state = True
                failure = self._doubt
            except Exception as error:
                if not self._may_be_a_loss(error):
                    raise
                failure = error
                self._put_back(self._before)
            if failure:
                now = self._generators()
                self._recover(failure)
                is_left = self.step == begun
                self._set_generators(self._before[0] if is_left else now)
                if is_left:
                    continue
            self._is_in_step = False
            yield self.step - 1, self._result

    def _generators(self):
        """The states of torch's generators: the host's, and that of the GPU in use."""
        return [torch.get_rng_state()] + (
            [torch.cuda.get_rng_state()] if self._backend == "nccl" else [])

    @staticmethod
    def _set_generators(states):
        torch.set_rng_state(states[0])
        if states[1:]:
            torch.cuda.set_rng_state(states[1])

    def _changed_by_a_forward_pass(self):
        buffers = [buffer.clone() for buffer in self._module.buffers()]
        return self._generators(), buffers

    def _put_back(self, before):
        generators, buffers = before
        self._set_generators(generators)
        with torch.no_grad():
            for buffer, value in zip(self._module.buffers(), buffers):
                buffer.copy_(value)

    def _may_be_a_loss(self, error):
        """Whether another rank may be behind it: what fails between ranks says so, and whatever
        fails in a round that is over may have worked on rubbish."""
        if not self._survives:
            return False
        return (self._is_over.is_set() or isinstance(error, dist.DistError)
                or isinstance(error, RuntimeError) and "gloo" in str(error).lower())

    def _recover(self, error):
        """Goes on in the next round; a failure on the way leads to the round after that."""
        while True:
            _clear_frames(error)
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

    def _state(self):
        module = {name: self._parameters.get(name, value)
                  for name, value in self._module.state_dict().items()}
        return State({"module": module, "step": self.step, "result": self._result,
                      "stateful": [item.state_dict() for item in self.stateful]},
                     self._parameters.values())

    def _let_go(self):
        """Nothing of the round is left: gradients and hooks of half a step neither."""
        self._links.cut()
        self._links.await_aborts()
        for scaler in self._scalers():
            with contextlib.suppress(AssertionError):  # it has scaled nothing yet
                scaler.update(scaler.get_scale())  # and what it has unscaled is gone
        if self.model is not None and self._has_state:
            self._held[self._shard, self.step] = self._state()
        self.model = self._meeting = self._doubt = None
        if self._build:
            self._module, self._parameters, self.stateful = None, None, ()
            forget_meshes()
        else:
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
        links = Links(int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("MASTER_PORT", 0)))
        is_over = threading.Event()
        self._links, self._is_over = links, is_over

        def on_round_over():
            is_over.set()
            links.cut()

        def survives():
            return can_be_cut(self._backend) and muster_job.survive_rounds(on_round_over)

        # Whether others hold what this one does is known once the model is made.
        self._survives = (self._has_entered or not self._build) and survives()
        may_abort = (self._backend in ABORTABLE and can_be_cut(self._backend)
                     and "MUSTER_AGENT_SOCKET" in os.environ)
        if may_abort:
            os.environ.update(SURVIVING_NCCL)
        before = sys.excepthook
        dist.init_process_group(self._backend)
        self._hooks = before, sys.excepthook  # PyTorch's puts the rank in front of a traceback
        if may_abort:
            self._meeting = dist.new_group(backend="gloo")
        if self._build:
            built = self._build()
            if not isinstance(built, tuple):
                raise TypeError("muster.survive: the function that makes the model returns a tuple "
                                "of it and what is stateful")
            self._take_in(*built)
        claims = self._agree()
        alone = _alone(claims) if self._build else []
        self._has_copies = not alone
        if self._has_copies:
            self._survives = self._survives or survives()
        elif self.rank == 0:
            self._say(f"no other rank holds the shard of {_names(alone)}: where one of them dies, "
                      "all processes restart from the last checkpoint")
        self.model = self._module if self._build else self._wrapped(_has_state(claims))
        links.connected()
        self._has_entered = self._has_state = True
        self._held = {}

    def _wrapped(self, is_alike):
        """Ranks that have compared their parameters copy none from rank 0: an operation that is
        aborted would write to them."""
        wrap = self._wrap or functools.partial(torch.nn.parallel.DistributedDataParallel,
                                               init_sync=not is_alike)
        try:
            model = wrap(self._module)
            self._await_device()
            return model
        except RuntimeError as error:
            writes = self._wrap or not is_alike
            if writes and self._backend in ABORTABLE and self._may_be_a_loss(error):
                raise LostState("muster.survive: a rank was lost while parameters were copied from "
                                "rank 0, so that this one has neither its own nor those") from error
            raise

    def _agree(self):
        """The newest step that the survivors have whole becomes everyone's."""
        claims = [None] * self.size
        ports = sorted(self._links.own())
        dist.all_gather_object(claims, _Claim(ports, list(self._held), self._shard,
                                              self._has_entered, self.step), group=self._meeting)
        self._links.found(ports, [port for claim in claims for port in claim.ports])
        if self._meeting:
            # Now that all are there they connect; else some would in pairs, to send a state.
            dist.all_reduce(torch.zeros(1, device="cuda" if self._backend == "nccl" else "cpu"))
        if not _has_state(claims):
            steps = sorted({claim.step for claim in claims})
            if len(steps) > 1:
                raise ValueError("muster.survive: ranks would begin at different steps "
                                 f"({steps}); load the same checkpoint on all of them")
            return claims
        step, sources = _newest(claims)
        self._take_over(claims, step, sources)
        self._compare(claims, sources)
        if self.rank == 0:
            taken = [f"; from {_names([source])} to {_names(ranks)}"
                     for source, ranks in sorted(_takers(sources).items())]
            self._say(f"{self.size} ranks go on at step {step}" + "".join(taken))
        return claims

    def _take_over(self, claims, step, sources):
        state = self._held.get((self._shard, step))
        for rank, source in enumerate(sources):  # one order on all ranks
            if source == rank:
                continue
            if source == self.rank:
                self._held[claims[rank].shard, step].send(rank, self._meeting)
            elif rank == self.rank:
                state = State.receive(source, self._meeting)
        self._await_device()
        if self._build or sources[self.rank] != self.rank:
            structure = state.structure(self._parameters.values())
            self._module.load_state_dict(structure["module"])
            for item, its_state in zip(self.stateful, structure["stateful"]):
                item.load_state_dict(its_state)
            self.step, self._result = structure["step"], structure["result"]
        self._held = {(self._shard, step): state}

    def _compare(self, claims, sources):
        sums = [None] * self.size
        dist.all_gather_object(sums, checksum(self._parameters.values()), group=self._meeting)
        alike = [rank for rank, claim in enumerate(claims) if claim.shard == self._shard]
        first = next((rank for rank in alike if sources[rank] == rank), alike[0])
        if sums[self.rank] != sums[first]:
            raise DamagedState(f"muster.survive: rank {self.rank} has other parameters than rank "
                               f"{first}, whose state it should have")

    @staticmethod
    def _say(text):
        print("muster.survive: " + text, file=sys.stderr, flush=True)
