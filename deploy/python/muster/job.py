"""muster_job, which is one file that may be copied, as a part of the package."""
from muster_job import *  # noqa: F401,F403
