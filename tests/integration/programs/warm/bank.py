"""A module for a warm process: it says that it is imported, and sets a variable as some do."""
import multiprocessing  # noqa: F401  as torch does
import os


class Vault:
    """Of a cycle, so that only Python's collector finds it, at the latest as Python ends."""

    def __init__(self):
        self.itself = self

    def __del__(self, write=os.write):
        write(1, b"the vault closes\n")


PID = os.getpid()
VAULT = Vault()
os.environ.setdefault("SET_BY_BANK", "yes")
print("the bank opens", flush=True)
