"""A module for a warm process: it says that it is imported, and sets a variable as some do."""
import os

PID = os.getpid()
os.environ.setdefault("SET_BY_BANK", "yes")
print("the bank opens", flush=True)
