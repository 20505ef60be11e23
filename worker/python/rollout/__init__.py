"""What of rollout runs in Python: the process of a vLLM engine.

`python -m rollout.engine_host` is started by `rollout-worker`, never by a person.
"""

__version__ = "0.1.0"
