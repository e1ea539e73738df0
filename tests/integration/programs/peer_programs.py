"""PyTorch programs as people write them, one per name: peer_programs.py NAME [DIRECTORY].

Each trains a tiny model on CPUs for a few steps and prints what it computed, so that two launchers
can be compared by their output. Nothing is read from a network. Exit code 77: a library is not
installed.
"""
import gc
import importlib
import os
import sys

NOT_INSTALLED = 77
STEPS = 3
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def need(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"not installed: {error}")
        sys.exit(NOT_INSTALLED)


def say(text):
    """Whole lines: several ranks write to one console."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def report(step, loss):
    say(f"rank {os.environ['RANK']} step {step} loss {float(loss):.6f}")


def model(torch):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def batch(torch, step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 8, generator=generator)


def train(torch, net, optimizer, rank):
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = net(batch(torch, step, rank)).square().mean()
        loss.backward()
        optimizer.step()
        report(step, loss)


@program
def ddp(_):
    torch = need("torch")
    dist = need("torch.distributed")
    dist.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(model(torch))
    train(torch, net, torch.optim.SGD(net.parameters(), lr=0.1), dist.get_rank())
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, dist.get_rank())
    dist.monitored_barrier()
    say(f"rank {dist.get_rank()} gathered {gathered}")
    dist.destroy_process_group()


@program
def fsdp1(_):
    torch = need("torch")
    dist = need("torch.distributed")
    fsdp = need("torch.distributed.fsdp")
    dist.init_process_group("gloo")
    net = fsdp.FullyShardedDataParallel(model(torch), device_id=torch.device("cpu"))
    train(torch, net, torch.optim.Adam(net.parameters(), lr=0.01), dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


@program
def fsdp2(directory):
    torch = need("torch")
    dist = need("torch.distributed")
    fsdp = need("torch.distributed.fsdp")
    checkpoint = need("torch.distributed.checkpoint")
    state_dict = need("torch.distributed.checkpoint.state_dict")
    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    net = model(torch)
    for layer in net:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(net, mesh=mesh)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    train(torch, net, optimizer, dist.get_rank())
    saved = state_dict.get_model_state_dict(net)
    checkpoint.save(saved, checkpoint_id=directory)
    before = net(batch(torch, 9, 0)).sum().item()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    state = state_dict.get_model_state_dict(net)
    checkpoint.load(state, checkpoint_id=directory)
    state_dict.set_model_state_dict(net, state)
    after = net(batch(torch, 9, 0)).sum().item()
    say(f"rank {dist.get_rank()} loaded what was saved: {before == after} {after:.6f}")
    dist.barrier()
    dist.destroy_process_group()


@program
def pipelining(_):
    torch = need("torch")
    dist = need("torch.distributed")
    pipeline = need("torch.distributed.pipelining")
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    part = torch.nn.Linear(8, 8)
    stage = pipeline.PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = pipeline.ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = batch(torch, step, 0)
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            losses = []
            schedule.step(target=torch.zeros(4, 8), losses=losses)
            report(step, torch.stack(losses).mean())
        else:
            schedule.step()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


@program
def accelerate(_):
    torch = need("torch")
    library = need("accelerate")
    accelerator = library.Accelerator(cpu=True)
    net = model(torch)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = net(batch(torch, step, accelerator.process_index)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        report(step, accelerator.gather(loss.detach().reshape(1)).mean())
    accelerator.end_training()


@program
def transformers(directory):
    torch = need("torch")
    need("accelerate")
    library = need("transformers")
    library.set_seed(1)
    config = library.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
    rows = [
        {"input_ids": torch.arange(i, i + 8) % 32, "labels": torch.arange(i, i + 8) % 32}
        for i in range(24)
    ]
    arguments = library.TrainingArguments(
        output_dir=directory,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = library.Trainer(
        model=library.GPT2LMHeadModel(config), args=arguments, train_dataset=rows
    )
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            report(entry["step"], entry["loss"])


@program
def lightning(directory):
    torch = need("torch")
    library = need("lightning.pytorch")

    class Module(library.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model(torch)

        def training_step(self, rows, index):
            loss = self.net(rows).square().mean()
            report(index, loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = torch.utils.data.DataLoader(
        torch.arange(24 * 8, dtype=torch.float32).reshape(24, 8) / 192, batch_size=4
    )
    trainer = library.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=directory,
    )
    trainer.fit(Module(), rows)


@program
def deepspeed(_):
    torch = need("torch")
    os.environ["DS_ACCELERATOR"] = "cpu"
    library = need("deepspeed")
    library.ops.__compatible_ops__.clear()  # Otherwise it compiles its operations for minutes.
    library.init_distributed(dist_backend="gloo")
    net = model(torch)
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1},
              "zero_allow_untested_optimizer": True}
    engine, _, _, _ = library.initialize(
        model=net, optimizer=torch.optim.Adam(net.parameters(), lr=0.01), config=config)
    for step in range(STEPS):
        loss = engine(batch(torch, step, int(os.environ["RANK"]))).square().mean()
        engine.backward(loss)
        engine.step()
        report(step, loss)
    torch.distributed.barrier()


@program
def torchft(_):
    """One replica group of all ranks; rank 0 hosts the lighthouse too."""
    datetime = need("datetime")
    torch = need("torch")
    dist = need("torch.distributed")
    need("torchft")
    coordination = need("torchft.coordination")
    manager_of = need("torchft.manager")
    group_of = need("torchft.process_group")
    rank = int(os.environ["RANK"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
    )
    if rank == 0:
        lighthouse = coordination.LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100
        )
        store.set("lighthouse", lighthouse.address())
    os.environ["TORCHFT_LIGHTHOUSE"] = store.get("lighthouse").decode()
    net = model(torch)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    manager = manager_of.Manager(
        pg=group_of.ProcessGroupGloo(timeout=datetime.timedelta(seconds=60)), min_replica_size=1,
        load_state_dict=net.load_state_dict, state_dict=net.state_dict, replica_id="group_0",
        timeout=datetime.timedelta(seconds=60))
    for step in range(STEPS):
        manager.start_quorum()
        optimizer.zero_grad()
        loss = net(batch(torch, step, rank)).square().mean()
        loss.backward()
        for parameter in net.parameters():
            manager.allreduce(parameter.grad).wait()
        if manager.should_commit():
            optimizer.step()
        report(step, loss)
    store.set(f"done/{rank}", "")
    store.wait([f"done/{i}" for i in range(int(os.environ["WORLD_SIZE"]))])
    manager.shutdown(wait=False)
    say(f"rank {rank} committed {manager.current_step()} steps")
    os._exit(0)  # threads of torchft's servers


@program
def rank_0_ends_early(_):
    """The others go on with groups and keys of their own, through the same store."""
    need("torch")
    dist = need("torch.distributed")
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 0:
        say("rank 0 ends")
        os._exit(0)
    import time
    time.sleep(2)  # so that it has ended
    store.add("went on", 1)
    while store.add("went on", 0) < size - 1:
        time.sleep(0.01)
    say(f"rank {rank} went on")
    os._exit(0)


def end():
    """Ends the process without the interpreter's own shutdown.

    Gloo's threads hold Python objects for a moment after an operation is done. If the interpreter
    shuts down in that moment, the process dies of SIGABRT ("terminate called without an active
    exception"), under every launcher: one run in fifteen on a loaded machine, and fewer where the
    groups are destroyed first. torch_hook_test sees how a process with the hook shuts down."""
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
    end()
