"""Settings of every test: one thread, no deadlines, and the same examples at every run.

`pytest --hypothesis-profile=search` looks further, with other examples each time.
"""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", deadline=None, derandomize=True, max_examples=60, suppress_health_check=slow)
settings.register_profile("search", deadline=None, max_examples=2000, suppress_health_check=slow)
settings.load_profile("default")
