#!/usr/bin/env python3
"""Jobs of PyTorch over NCCL under `muster run`, all ranks on one GPU: ranks die, and ranks hang.

usage: torch_jobs.py BUNDLE OUTPUT [WORD…]    only the cases whose names have one of the words

BUNDLE holds bin/muster, python/ (deploy/python) and programs/ (tests/integration/programs). Prints
a line for each case, and exits with 1 where one failed. This interpreter has PyTorch."""
import contextlib
import glob
import os
import random
import re
import signal
import subprocess
import sys
import time

BUNDLE, OUTPUT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
STEPS = 12
LIMIT_S = int(os.environ.get("LIMIT_S", 100))


class Failure(Exception):
    pass


def check(is_so, text):
    if not is_so:
        raise Failure(text)


class Run:
    """A job in a folder of its own, which survive_torch.py leaves its files in."""

    def __init__(self, name, program, options, *arguments):
        self.name, self.folder = name, os.path.join(OUTPUT, name)
        os.makedirs(self.folder)
        self.log = os.path.join(OUTPUT, name + ".log")
        environment = dict(
            os.environ, PYTHONPATH=os.path.join(BUNDLE, "python"), PYTHON_EXEC=sys.executable,
            PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
            NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", NCCL_MAX_CTAS="2")
        command = [os.path.join(BUNDLE, "bin", "muster"), "run", "--rdzv_id=" + name,
                   "--log_dir=" + self.folder + ".logs"]
        command += options + [os.path.join(BUNDLE, "programs", program)]
        command += [word.replace("FOLDER", self.folder) for word in arguments]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    @classmethod
    def survivors(cls, name, ranks, *how, steps=STEPS, options=()):
        options = [f"--nproc_per_node={ranks}", "--max_restarts=90", *options]
        return cls(name, "survive_torch.py", options, "FOLDER", str(steps), "cuda", *how)

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if self.process.poll() is None:
            if failure:
                with open(self.log, "a") as log, contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run([os.path.join(BUNDLE, "bin", "muster"), "stacks",
                                    self.name], stdout=log, stderr=log, timeout=20)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def said(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def read(self, name):
        try:
            with open(os.path.join(self.folder, name)) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def touch(self, name):
        open(os.path.join(self.folder, name), "w").close()

    def wait_until(self, what, is_so):
        end = time.monotonic() + LIMIT_S
        while not is_so():
            check(self.process.poll() is None, f"the job ended before {what}")
            check(time.monotonic() < end, f"not within {LIMIT_S} s: {what}")
            time.sleep(0.01)

    def wait_until_warm(self):
        ready = "the warm process is ready"
        self.wait_until(ready, lambda: ready in self.said())

    def pids_at(self, attempt, ranks, step):
        def at(rank):
            words = self.read(f"at.{attempt}.{rank}").split()
            return [int(word) for word in words] if len(words) == 2 else [0, -1]
        self.wait_until(f"step {step} of attempt {attempt}",
                        lambda: all(at(rank)[1] >= step for rank in range(ranks)))
        return [at(rank)[0] for rank in range(ranks)]

    def end(self):
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failure("the job does not end") from None
        check(code == 0, f"the job ended with {code}")

    def losses(self, rank):
        lines = [line.split() for line in self.read(f"losses.{rank}").splitlines()]
        return {int(step): float(loss) for step, loss in lines}

    def expect_losses_of(self, undisturbed, ranks):
        for rank in range(ranks):
            losses = self.losses(rank)
            check(losses, f"rank {rank} has no losses")
            for step, loss in losses.items():
                check(abs(loss - undisturbed[step]) <= 1e-5 * abs(undisturbed[step]),
                      f"rank {rank}, step {step}: loss {loss}, undisturbed {undisturbed[step]}")


def undisturbed(name, ranks, *how, steps=STEPS):
    with Run.survivors(name + "_undisturbed", ranks, *how, steps=steps) as run:
        run.end()
        return run.losses(0)


def each_in_turn(name, ranks, *how):
    """Each rank dies once; the others keep their processes, and no loss changes."""
    expected = undisturbed(name, ranks, *how)
    dies = {2 + 2 * rank: rank for rank in range(ranks)}
    took = []
    with Run.survivors(name, ranks, *how, options=["--warm=auto"]) as run:
        for step in dies:
            run.touch(f"hold.{step}")
        run.wait_until_warm()
        for attempt, (step, rank) in enumerate(dies.items()):
            before = run.pids_at(attempt, ranks, step)
            begin = time.monotonic()
            os.kill(before[rank], signal.SIGKILL)
            run.touch(f"go.{step}")
            after = run.pids_at(attempt + 1, ranks, step)
            took.append(time.monotonic() - begin)
            for other in range(ranks):
                check((after[other] == before[other]) == (other != rank),
                      f"after the death of rank {rank}, rank {other} has pid {after[other]}, "
                      f"and had {before[other]}")
        run.end()
        run.expect_losses_of(expected, ranks)
        check("forked by the warm process" in run.said(), "no worker was forked")
    return "back in " + ", ".join(f"{seconds:.2f}" for seconds in took) + " s"


def at_random(name, ranks, deaths, *how):
    """Ranks die whatever they are at."""
    steps = 400
    expected = undisturbed(name, ranks, *how, steps=steps)
    draw = random.Random(1)
    with Run.survivors(name, ranks, "slow", *how, steps=steps, options=["--warm=auto"]) as run:
        run.wait_until_warm()
        done, attempt, begin = 0, -1, time.monotonic()
        while done < deaths and time.monotonic() - begin < LIMIT_S:
            newest = [0]

            def is_newer():
                attempts = [int(path.split(".")[-2]) for path in
                            glob.glob(os.path.join(run.folder, "at.*.*"))]
                newest[0] = max((one for one in attempts if all(
                    run.read(f"at.{one}.{rank}") for rank in range(ranks))), default=-1)
                return newest[0] > attempt
            run.wait_until(f"an attempt after {attempt}", is_newer)
            attempt = newest[0]
            time.sleep(draw.uniform(0, 3))
            with contextlib.suppress(OSError, IndexError, ValueError):
                os.kill(int(run.read(f"at.{attempt}.{draw.randrange(ranks)}").split()[0]),
                        signal.SIGKILL)
                done += 1
        run.touch(f"go.{steps - 1}")
        run.end()
        run.expect_losses_of(expected, ranks)
        check(done == deaths, f"{done} of {deaths} deaths in {LIMIT_S} s")
        check("has not let go" not in run.said(), "a survivor was slow to let go")
    return f"{done} deaths"


def as_they_join(name, ranks):
    """Replacements die before they have met, as gloo listens, and as NCCL does."""
    expected = undisturbed(name, ranks)
    with Run.survivors(name, ranks, "ill", options=["--warm=auto"]) as run:
        run.touch("hold.3")
        run.wait_until_warm()
        before = run.pids_at(0, ranks, 3)
        os.kill(before[1], signal.SIGKILL)
        run.touch("go.3")
        run.end()
        run.expect_losses_of(expected, ranks)
        check("has not let go" not in run.said(), "a survivor was slow to let go")
        return f"{run.said().count('restart ')} restarts"


def hangs(name, how, expected):
    """The verdict names the rank."""
    options = ["--nproc_per_node=2", "--watch=report", "--hang_timeout=20"]
    with Run(name, "hang_nccl.py", options, how) as run:
        begin = time.monotonic()
        run.wait_until("a verdict", lambda: re.search(r"^muster: .*hang: ", run.said(), re.M))
        verdict = re.search(r"^muster: .*(hang: .*)$", run.said(), re.M).group(1)
        check(re.search(expected, verdict), f"the verdict is «{verdict}»")
        return f"after {time.monotonic() - begin:.0f} s: {verdict[:200]}"


CASES = {
    "ddp": lambda: each_in_turn("ddp", 3),
    "hsdp": lambda: each_in_turn("hsdp", 4, "hsdp"),
    "ill": lambda: as_they_join("ill", 3),
    "random": lambda: at_random("random", 3, 6),
    "hang_sleep": lambda: hangs("hang_sleep", "sleep", "rank 1 has not called all_reduce"),
    "hang_mismatch": lambda: hangs("hang_mismatch", "mismatch", "all_reduce.*broadcast"),
}


def main():
    words, failed = sys.argv[3:], False
    os.makedirs(OUTPUT, exist_ok=True)
    for name, case in CASES.items():
        if words and not any(word in name for word in words):
            continue
        begin = time.monotonic()
        try:
            result = "passed: " + case()
        except (Failure, KeyError) as failure:
            result, failed = f"FAILED: {failure!r}", True
        print(f"{name}: {result} ({time.monotonic() - begin:.0f} s)", flush=True)
    sys.exit(failed)


main()
