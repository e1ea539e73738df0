"""What users of PyTorch's frameworks run, under whichever launcher: the ranks say how it went."""

import os
import sys


def say(text):
    with open(os.path.join(os.environ["OUT"], "rank." + os.environ["RANK"]), "w") as file:
        print(text, file=file)


def accelerate_script(name):
    """accelerate's own tests of its programs; they end the process group themselves."""
    import runpy

    from accelerate import PartialState

    # The library's own state, which takes over this one, would have no group on a machine without a
    # GPU, and a rank would end before the other has met it.
    PartialState(cpu=True)
    runpy.run_module("accelerate.test_utils.scripts." + name, run_name="__main__")
    say("passed")


def lightning():
    """Lightning takes ranks and addresses from the launcher, and starts no processes itself."""
    import torch
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    workers = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = int(os.environ["WORLD_SIZE"]) // workers
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=workers, num_nodes=nodes)
    fabric.launch()
    environment = fabric.strategy.cluster_environment
    assert isinstance(environment, TorchElasticEnvironment), type(environment)
    assert environment.creates_processes_externally
    model = torch.nn.Linear(2, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.full((1, 2), 1.0 + fabric.global_rank)).sum())
    optimizer.step()
    # Every rank has stepped with the same mean.
    bias = fabric.all_gather(next(model.parameters()).detach())
    assert all(torch.equal(bias[0], other) for other in bias), bias
    total = int(fabric.all_reduce(torch.tensor(1.0), reduce_op="sum"))
    say(f"{fabric.global_rank} of {fabric.world_size} on node {environment.node_rank()}: {total}")
    torch.distributed.destroy_process_group()


def main():
    try:
        lightning() if sys.argv[1] == "lightning" else accelerate_script(sys.argv[1])
    except ModuleNotFoundError as error:
        say(f"not installed: {error}")


main()
# PyTorch's Gloo may abort while Python ends ("terminate called without an active exception"), under
# any launcher. Only the output counts here.
sys.stdout.flush()
os._exit(0)
