"""Runs: programs whose position survives anything.

Rules 1 to 12 in docs/guarantees.md say what a run may rely on; decision 0013 says why. `define` has
the decorators, `context` what a body can do, `steps`, `blocks` and `waits` how each operation is
performed, `operation` what it asks its driver for, `journal` what was recorded of them, `execution`
a run that this process owns, `engine` all runs of a store in this process.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.runs.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.runs.api")
