"""For survive.py: what a rank holds of a model and of what trains with it, such that it outlives
the process group and can be sent to another rank.

A sharded tensor (DTensor, of FSDP2) belongs to a mesh, which ends with its group. The shard itself
is a tensor like any other, and joins a mesh of the next group."""
import functools
import gc
import zlib

import torch
import torch.distributed as dist

try:
    from torch.distributed.tensor import DTensor, _redistribute
except ImportError:  # before 2.5
    DTensor = ()


class _Slot:
    """The place of a tensor in a state whose tensors travel by themselves."""

    def __init__(self, tensor, meshes):
        local = _local(tensor)
        self.shape, self.dtype, self.device = local.shape, local.dtype, local.device.type
        self.whole = None
        if isinstance(tensor, DTensor):
            self.whole = {"shape": tensor.shape, "stride": tensor.stride(),
                          "placements": tensor.placements}
            self.mesh = meshes.index(tensor.device_mesh)

    def filled(self, local, meshes):
        if self.whole is None:
            return local
        return DTensor.from_local(local, meshes[self.mesh], run_check=False, **self.whole)


def _local(tensor):
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _changed(value, kind, change):
    """`value` with change(item) for each item of the kind, in an order that is always the same."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: _changed(item, kind, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_changed(item, kind, change) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _meshes(parameters):
    """Of the sharded among the parameters: each once, and in the same order on all ranks."""
    return list(dict.fromkeys(parameter.device_mesh for parameter in parameters
                              if isinstance(parameter, DTensor)))


def shard_of(parameters):
    """Which part of the parameters this rank holds, in words that are alike on all ranks that hold
    the same: "shard 0 of 2", or "the state" where it holds them whole."""
    shards = {}
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            for dim, placement in enumerate(parameter.placements):
                if not placement.is_replicate():
                    shards[f"{mesh.get_coordinate()[dim]} of {mesh.size(dim)}"] = None
    return "shard " + " and ".join(shards) if shards else "the state"


def forget_meshes():
    """PyTorch keeps what it has worked out for a mesh, with the mesh, for the next that is equal to
    it. Equal is also one of other groups, in which this rank has another place."""
    if DTensor == ():
        return
    for found in gc.get_objects():
        if (type(found) is functools._lru_cache_wrapper
                and (found.__module__ or "").startswith("torch.distributed.tensor")):
            found.cache_clear()
    for owner, name in ((torch._C, "_clear_DTensor_sharding_propagator_cache"),
                        (_redistribute, "clear_redistribute_planner_cache")):
        getattr(owner, name, lambda: None)()  # of newer versions


def checksum(parameters):
    sums = [_sum_of(_local(parameter)) for parameter in parameters]
    return zlib.crc32(str([int(a_sum) for a_sum in sums]).encode())


def _sum_of(tensor):
    """The sum of the bits, each weighed by its place. The host does not wait for it."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size(),
                                                                   torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in tensor.contiguous().flatten().view(integer).split(1 << 24):
        places = torch.arange(len(part), device=tensor.device)
        total = total * 31 + (part * (2 * places + 1)).sum()  # no odd factor hides a change
    return total


def _carry(operation, tensor, rank, meeting):
    if meeting and tensor.is_cuda:  # as a batch, which the group's own communicator carries
        work, = dist.batch_isend_irecv([dist.P2POp(operation, tensor, rank)])
    else:
        work = operation(tensor, rank, group=meeting)
    work.wait()


class State:
    """A structure with the tensors of this rank, which it shares with those that train."""

    def __init__(self, structure, parameters):
        meshes, self._tensors = _meshes(parameters), []

        def apart(tensor):
            self._tensors.append(_local(tensor))
            return _Slot(tensor, meshes)

        self._structure = _changed(structure, torch.Tensor, apart)

    def copy(self):
        self._tensors = [tensor.clone() for tensor in self._tensors]
        return self

    def structure(self, parameters):
        """What it was made of, on the meshes of these parameters."""
        meshes, tensors = _meshes(parameters), iter(self._tensors)
        return _changed(self._structure, _Slot, lambda slot: slot.filled(next(tensors), meshes))

    def send(self, rank, meeting):
        """`meeting`: a group over gloo beside the default one over NCCL, or None."""
        dist.send_object_list([self._structure], dst=rank, group=meeting)
        for tensor in self._tensors:
            if tensor.numel():
                sent = tensor if meeting else tensor.cpu()  # gloo sends from there alone
                _carry(dist.isend, sent.contiguous(), rank, meeting)

    @classmethod
    def receive(cls, rank, meeting):
        holder = [None]
        dist.recv_object_list(holder, src=rank, group=meeting)
        state = cls.__new__(cls)
        state._structure, state._tensors = holder[0], []

        def receive(slot):
            tensor = torch.empty(slot.shape, dtype=slot.dtype,
                                 device=slot.device if meeting else "cpu")
            if tensor.numel():
                _carry(dist.irecv, tensor, rank, meeting)
            state._tensors.append(tensor.to(slot.device))

        _changed(state._structure, _Slot, receive)
        return state
