"""torchrun, whose agent waits TEST_EXIT_BARRIER seconds for the others when its own trainers have ended, and not torch's 300:
`agent.py` takes what torchrun takes."""

import functools
import os

from torch.distributed import run
from torch.distributed.launcher import api

within = float(os.environ["TEST_EXIT_BARRIER"])
api.LocalElasticAgent = functools.partial(api.LocalElasticAgent, exit_barrier_timeout=within)
run.main()
