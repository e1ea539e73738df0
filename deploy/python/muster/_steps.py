"""For survive.py: what trains on a rank, and how a step is done by all ranks or by none."""
import contextlib
import gc

import torch
import torch.distributed as dist

from ._links import Stage
from ._state import State, forget_meshes, shard_of


class Steps:
    """The model with what trains with it, what is kept of it while a step is in flight, and what is
    kept between rounds. `module`, `stateful`, `step`: as Job takes them."""

    def __init__(self, module, stateful, step):
        self.build = None if isinstance(module, torch.nn.Module) else module
        self.module, self.stateful, self.step = module, stateful, step
        self.model = None
        self.result = None  # of the last step
        self.links = None  # of this round
        self.held = {}  # between rounds: states, by shard and step
        self.parameters = {}
        self.in_flight = None  # of a step: what a forward pass changes, as it was before
        self._doubt = None  # why it is not known whether all ranks update, as this one does
        if not self.build:
            self._take_in()

    def rebuild(self):
        built = self.build()
        if not isinstance(built, tuple):
            raise TypeError("muster.survive: the function that makes the model returns a tuple "
                            "of it and what is stateful")
        self.module, self.stateful = built[0], built[1:]
        self._take_in()

    def _take_in(self):
        # A module of FSDP2 that has failed amid a pass has whole parameters in the place of some.
        self.parameters = dict(self.module.named_parameters(remove_duplicate=False))
        self.shard = shard_of(self.parameters.values())
        for item in self.stateful:
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
            self.links.await_device()
            return step(*arguments, **more)

        scaler.step = step_with_gradients

    def _on_update(self, *_):
        """Shards are of one step only if all ranks update theirs or none does: the first update of
        a step waits for all ranks. Where one is lost meanwhile, the others may have begun or not,
        so that this one updates, and keeps what it had."""
        self.links.await_device()
        if self.links.survives and self.links.stage is Stage.WHOLE and self.build:
            try:
                dist.barrier(group=self.links.meeting)
            except RuntimeError as error:
                if not self.links.may_have_failed(error):
                    raise
                now = self._changed_by_a_forward_pass()
                self._put_back(self.in_flight or now)
                self.held[self.shard, self.step] = self._state().copy()
                self._put_back(now)
                self._doubt = error
        self.links.stage = Stage.UPDATING

    def do(self, train, recover):
        """Does the next step; False where it is to be done again after recover(error)."""
        begun, failure = self.step, None
        self.in_flight = self._changed_by_a_forward_pass()
        try:
            self.result = train(begun)
            if self.links.stage is Stage.WHOLE:  # without an update, which waits
                self.links.await_device()
            self.step += 1
            self.links.stage = Stage.WHOLE
            failure = self._doubt
        except Exception as error:
            if not self.links.may_have_failed(error):
                raise
            failure = error
            self._put_back(self.in_flight)
        if failure:
            generators = self._generators()
            recover(failure)
            self._set_generators(self.in_flight[0] if self.step == begun else generators)
        self.in_flight = None
        return self.step != begun

    def _generators(self):
        """The states of torch's generators: the host's, and that of the GPU in use."""
        of_gpu = [torch.cuda.get_rng_state()] if self.links.backend == "nccl" else []
        return [torch.get_rng_state()] + of_gpu

    @staticmethod
    def _set_generators(states):
        torch.set_rng_state(states[0])
        for of_gpu in states[1:]:
            torch.cuda.set_rng_state(of_gpu)

    def _changed_by_a_forward_pass(self):
        return self._generators(), [buffer.clone() for buffer in self.module.buffers()]

    def _put_back(self, before):
        self._set_generators(before[0])
        with torch.no_grad():
            for buffer, value in zip(self.module.buffers(), before[1]):
                buffer.copy_(value)

    def _state(self):
        module = {name: self.parameters.get(name, value)
                  for name, value in self.module.state_dict().items()}
        return State({"module": module, "step": self.step, "result": self.result,
                      "stateful": [item.state_dict() for item in self.stateful]},
                     self.parameters.values())

    def take(self, state, is_of_another):
        """The one state that all ranks have agreed on."""
        if self.build or is_of_another:
            structure = state.structure(self.parameters.values())
            self.module.load_state_dict(structure["module"])
            for item, its_state in zip(self.stateful, structure["stateful"]):
                item.load_state_dict(its_state)
            self.step, self.result = structure["step"], structure["result"]
        self.held = {(self.shard, self.step): state}

    def let_go(self):
        """Nothing of the round is left: gradients and hooks of half a step neither."""
        for scaler in self._scalers():
            with contextlib.suppress(AssertionError):  # it has scaled nothing yet
                scaler.update(scaler.get_scale())  # and what it has unscaled is gone
        if self.links.stage is Stage.WHOLE:
            self.held[self.shard, self.step] = self._state()
        self._doubt = None
        for parameter in self.parameters.values():
            parameter.grad = None
        if self.build:
            self.clear()
        self.model = None
        gc.collect()  # the wrapper's hooks at the parameters go with it

    def clear(self):
        """Nothing holds the group any more."""
        self.model = self.module = None
        self.parameters, self.stateful = {}, ()
        forget_meshes()
        gc.collect()
