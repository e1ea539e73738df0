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
trains as ever, and a rank that dies ends the round for all of them. What the program promises
stands in deploy/docs/recover.md.
"""
import atexit
import collections
import contextlib
import functools
import sys
import traceback

import muster_job
import muster_marks
import torch
import torch.distributed as dist
from muster_job import commit_checkpoint, should_stop, stop_reason  # noqa: F401
from muster_marks import mark  # noqa: F401

from ._links import ABORTABLE, Links
from ._state import State, checksum
from ._steps import Steps

with contextlib.suppress(ImportError):
    # DDP imports it as it wraps a module, for more than a second. Imported here, it is among what a
    # warm process has imported (--warm=auto) before it forks a replacement.
    import torch._dynamo  # noqa: F401

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


def _newest(claims):
    """The newest step of which all shards are held, and for each rank one that holds its own."""
    steps = sorted({step for claim in claims for _, step in claim.held}, reverse=True)
    shards = sorted({claim.shard for claim in claims})

    def holders(shard, step):
        return [rank for rank, claim in enumerate(claims) if (shard, step) in claim.held]

    for step in steps:
        if all(holders(shard, step) for shard in shards):
            having = [holders(claim.shard, step) for claim in claims]
            return step, [rank if rank in those else those[rank % len(those)]
                          for rank, those in enumerate(having)]
    lost = [shard for shard in shards if not any(holders(shard, step) for step in steps[:1])]
    raise LostState(f"muster.survive: no whole copy of {' or '.join(lost)} is left: each rank that "
                    "had one is lost, or was in the midst of the optimizer's step; the next "
                    "attempt begins from a checkpoint")


def _say(text):
    if dist.get_rank() == 0:
        print("muster.survive: " + text, file=sys.stderr, flush=True)


class Rounds:
    """The rounds that this process is in, one after another: whom it meets, and what state they
    agree on. `backend`, `wrap`: as Job takes them."""

    def __init__(self, steps, backend, wrap):
        self._steps, self._backend, self._wrap = steps, backend, wrap
        self._has_entered = False  # a round, whole

    def enter(self, error=None):
        """Goes on in a round, behind an error in the next. A failure on the way leads to the round
        after that."""
        while True:
            if error:
                self._await_next(error)
            try:
                return self._join()
            except RuntimeError as again:
                if not self._steps.links.may_have_failed(again):
                    raise
                error = again

    def _await_next(self, error):
        _clear_frames(error)
        self._steps.links.cut()
        self._steps.let_go()
        self._steps.links.leave()
        try:
            muster_job.next_round(_PATIENCE_S)
        except TimeoutError:
            raise error from None  # nobody is lost: it is the program's own
        muster_marks.reopen()
        getattr(dist.distributed_c10d, "_muster_renew", lambda: None)()  # of our sitecustomize

    def _join(self):
        """Joins the ranks of this round, and agrees with them on one state."""
        steps = self._steps
        links = steps.links = Links(self._backend)
        # Whether others hold what this one does is known once the model is made.
        if self._has_entered or not steps.build:
            links.survive()
        links.join()
        if steps.build:
            steps.rebuild()
        ports = sorted(links.new_ports())
        claims = links.gather(_Claim(ports, list(steps.held), steps.shard, self._has_entered,
                                     steps.step))
        links.found(ports, [port for claim in claims for port in claim.ports])
        if links.meeting:
            # Now that all are there they connect; else some would in pairs, to send a state.
            dist.all_reduce(torch.zeros(1, device="cuda" if links.backend == "nccl" else "cpu"))
        begins = sorted({claim.step for claim in claims})
        # The state of a rank that was in a round before becomes that of all.
        has_state = any(claim.held or claim.has_entered for claim in claims)
        if has_state:
            self._agree(claims, *_newest(claims))
        elif len(begins) > 1:
            raise ValueError("muster.survive: ranks would begin at different steps "
                             f"({begins}); load the same checkpoint on all of them")
        shards = [claim.shard for claim in claims]
        alone = [rank for rank, shard in enumerate(shards) if shards.count(shard) == 1]
        if alone and steps.build:
            _say(f"no other rank holds the shard of {_names(alone)}: where one of them dies, "
                 "all processes restart from the last checkpoint")
        else:
            links.survive()
        steps.model = steps.module if steps.build else self._wrapped(has_state)
        links.connected()
        self._has_entered = True
        steps.held = {}

    def _wrapped(self, is_alike):
        """Ranks that have compared their parameters copy none from rank 0: an operation that is
        aborted would write to them."""
        wrap = self._wrap or functools.partial(torch.nn.parallel.DistributedDataParallel,
                                               init_sync=not is_alike)
        links = self._steps.links
        try:
            model = wrap(self._steps.module)
            links.await_device()
            return model
        except RuntimeError as error:
            writes = self._wrap or not is_alike
            if writes and self._backend in ABORTABLE and links.may_have_failed(error):
                raise LostState("muster.survive: a rank was lost while parameters were copied from "
                                "rank 0, so that this one has neither its own nor those") from error
            raise

    def _agree(self, claims, step, sources):
        """The newest step that the survivors have whole becomes everyone's."""
        self._take_over(claims, step, sources)
        self._compare(claims, sources)
        takers = {source: [rank for rank, its in enumerate(sources) if its == source != rank]
                  for source in sorted(sources)}
        _say(f"{len(claims)} ranks go on at step {step}" + "".join(
            f"; from {_names([source])} to {_names(ranks)}"
            for source, ranks in takers.items() if ranks))

    def _take_over(self, claims, step, sources):
        steps, own, meeting = self._steps, dist.get_rank(), self._steps.links.meeting
        state = steps.held.get((steps.shard, step))
        for rank, source in enumerate(sources):  # one order on all ranks
            if source == own != rank:
                steps.held[claims[rank].shard, step].send(rank, meeting)
            elif rank == own != source:
                state = State.receive(source, meeting)
        steps.links.await_device()
        steps.take(state, sources[own] != own)

    def _compare(self, claims, sources):
        own, shard = dist.get_rank(), self._steps.shard
        sums = self._steps.links.gather(checksum(self._steps.parameters.values()))
        alike = [rank for rank, claim in enumerate(claims) if claim.shard == shard]
        first = next((rank for rank in alike if sources[rank] == rank), alike[0])
        if sums[own] != sums[first]:
            raise DamagedState(f"muster.survive: rank {own} has other parameters than rank "
                               f"{first}, whose state it should have")


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
        is_whole = isinstance(module, torch.nn.Module)
        if not is_whole and (stateful or wrap):
            raise TypeError("muster.survive: a function that makes the model returns what is "
                            "stateful with it, and wraps the model itself")
        if backend is None:
            on_gpu = (any(parameter.is_cuda for parameter in module.parameters()) if is_whole
                      else torch.cuda.is_available())
            backend = "nccl" if on_gpu else "gloo"
        self._steps = Steps(module, stateful, step)
        self._rounds = Rounds(self._steps, backend, wrap)
        self._rounds.enter()
        atexit.register(self._end)

    def _end(self):
        """A thread of gloo that only now lets go of the last operation needs the interpreter for
        it, and would abort the process once that has gone; so it ends before. A group that the
        program has destroyed lives on while a model holds it."""
        if self._steps.in_flight is None:  # else it may wait for another rank
            self._steps.clear()
            self._steps.links.leave()

    model = property(lambda self: self._steps.model)
    stateful = property(lambda self: self._steps.stateful)
    step = property(lambda self: self._steps.step)
    rank = property(lambda self: dist.get_rank())
    size = property(lambda self: dist.get_world_size())

    def run(self, train, steps):
        """Calls train(step) for each step that is left before `steps`, and yields the step and what
        it has returned. A step during which a rank is lost is done again, and not yielded before it
        is done. A step that only some ranks have finished is taken over from one of them, with what
        it returned there."""
        while self._steps.step < steps:
            if self._steps.do(train, self._rounds.enter):
                yield self._steps.step - 1, self._steps.result
