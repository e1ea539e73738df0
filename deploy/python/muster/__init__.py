"""Lets Python programs that launch with PyTorch's torchrun launch with Muster instead.

    python -m muster --nproc_per_node=2 train.py      is `muster run --nproc_per_node=2 train.py`
    import muster                                     replaces torch.distributed.run.run in this
                                                      process

Without touching a program, by one variable where pip has installed this:

    MUSTER_PRELOAD=1 accelerate launch --multi_gpu train.py
    MUSTER_PRELOAD=1 python -m torch.distributed.run --nproc_per_node=2 train.py

and elsewhere by the folder `preload`, where a link to this file is called sitecustomize.py:

    PYTHONPATH=.../deploy/python/preload accelerate launch --multi_gpu train.py

Workers run in the interpreter that this runs in; $PYTHON_EXEC changes it. muster.job and
muster.marks are for the training programs themselves.
"""
import importlib.util
import os
import sys

_RUN = "torch.distributed.run"


def find_program():
    """The path of the program muster: $MUSTER_BINARY, the one that pip installed with this module,
    or the one on PATH; None without any."""
    if os.environ.get("MUSTER_BINARY"):
        return os.environ["MUSTER_BINARY"]
    import shutil
    import sysconfig

    above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    schemes = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")]
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("purelib", "posix_user")}
    # pip --target and --prefix put programs beside and above the packages.
    folders = schemes if above in packages else []
    folders += [os.path.join(above, "bin"), os.path.join(above, "..", "..", "..", "bin")]
    for folder in folders:
        path = os.path.join(folder, "muster")
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.normpath(path)
    return shutil.which("muster")


def _become_muster(arguments):
    """This process goes on as `muster run`: signals, output and the exit code are its own."""
    path = find_program()
    if not path:
        sys.exit("muster: there is no program muster on PATH; set MUSTER_BINARY to its path")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(path, [path, "run"] + arguments)
    except OSError as error:
        sys.exit(f"muster: cannot run {path}: {error.strerror}")


def _arguments(args, defaults):
    """What `muster run` must be told to do what torchrun would do with its parsed options `args`.

    Options at their default are left out: what PET_* variables say is in the defaults too, and
    `muster` reads it itself."""
    options = []
    for name, default in sorted(vars(defaults).items()):
        value = getattr(args, name, default)
        if name in ("training_script", "training_script_args"):
            continue
        if value is None or str(value) == str(default):
            continue
        if isinstance(value, bool):
            options += [f"--{name}"] if value else []
        elif isinstance(value, (list, tuple)):  # filters: commas divide them, two stand for one
            options.append(f"--{name}=" + ",".join(str(item).replace(",", ",,") for item in value))
        else:
            options.append(f"--{name}={value}")
    script = [args.training_script]
    if not getattr(args, "use_env", True):  # torch.distributed.launch
        script.append("--local-rank=${local_rank}")
    return options + ["--"] + script + list(args.training_script_args or [])


def run(args):
    """In the place of torch.distributed.run.run."""
    from torch.distributed.run import get_args_parser

    _become_muster(_arguments(args, get_args_parser().parse_args(["script"])))


class _Finder:
    """Replaces `run` when torch.distributed.run is imported, and costs nothing before."""

    is_of_muster = True

    def __init__(self):
        self._is_looking = False

    def find_spec(self, name, path=None, target=None):
        if name != _RUN or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        loader = spec.loader if spec else None
        if loader is None or not hasattr(loader, "get_code"):
            return spec
        execute, get_code = loader.exec_module, loader.get_code

        def execute_and_replace(module):
            loader.get_code = get_code
            execute(module)
            module.run = run

        # `python -m torch.distributed.run` alone asks for it, and would run a copy of the module.
        loader.exec_module = execute_and_replace
        program = f"import {_RUN} as run\nrun.main()\n"
        loader.get_code = lambda _: compile(program, "<muster>", "exec")
        return spec


def install():
    """Replaces torch.distributed.run.run in this process, now or when it is imported."""
    if _RUN in sys.modules:
        sys.modules[_RUN].run = run
    elif not any(getattr(finder, "is_of_muster", False) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _run_the_next_sitecustomize():
    """As sitecustomize this file hides the one that the machine may have."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in sys.path:
        other = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder) != here and os.path.isfile(other):
            spec = importlib.util.spec_from_file_location("sitecustomize", other)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


install()
if __name__ == "sitecustomize":
    _run_the_next_sitecustomize()
