"""torchrun, but its agent waits TEST_EXIT_BARRIER seconds, not torch's 300, for the others when its own trainers
have ended: `agent.py` takes torchrun's arguments."""

import functools
import os

from torch.distributed import run
from torch.distributed.launcher import api

within = float(os.environ["TEST_EXIT_BARRIER"])
api.LocalElasticAgent = functools.partial(api.LocalElasticAgent, exit_barrier_timeout=within)
run.main()
