"""`python -m muster …` is `muster run …`."""
import sys

from muster import _become_muster

_become_muster(sys.argv[1:])
