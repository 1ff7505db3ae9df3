"""Two names of one folder, exchanged in one step: so that what was there can be looked at after.

Who looks at a file and then replaces it loses what another program wrote in between. An exchange
loses nothing: whatever was at the name is at the other name now, and can be put back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import cache
from typing import Any

_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(folder: int, one: str, other: str) -> bool:
    """Exchanges two names of a folder, given by its descriptor; False if that cannot be done here.

    Then nothing was changed. Raises OSError if one of the two is not there.
    """
    import ctypes

    call = _renameat2()
    if call is None:
        return False
    done = call(folder, os.fsencode(one), folder, os.fsencode(other), _RENAME_EXCHANGE)
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), one)


@cache
def _renameat2() -> Callable[..., Any] | None:
    """Returns the C library's call; None on a system that has not got it."""
    import ctypes

    call: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        call.argtypes = [
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_uint,
        ]
        call.restype = ctypes.c_int
    return call
