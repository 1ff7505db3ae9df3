"""Settings of all tests: Hypothesis prints what it needs to replay a failure."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline: how long one example takes says more about the machine's disk than about the code.
settings.register_profile(
    "dev",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("ci", parent=settings.get_profile("dev"), max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
