"""Text that scripts of several kinds have in common. It goes in as it stands: nothing in it is filled in."""

from __future__ import annotations

import inspect
from typing import Final

from gradproof_probe.repros.pieces import reseed

RESEED: Final = inspect.getsource(reseed)
EACH: Final = '''\
def each(value, change):
    """The same, with every tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: each(item, change) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(each(item, change) for item in value)
    return value
'''
# 1 where the failure shows, 0 where it doesn't, 2 where the script can't run.
TAIL: Final = """\
if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.exit(2)
"""
