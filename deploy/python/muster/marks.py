"""muster_marks, which is one file that may be copied, as a part of the package."""
from muster_marks import *  # noqa: F401,F403
