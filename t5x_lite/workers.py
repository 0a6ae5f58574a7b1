"""Worker processes on the same machine."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Make this process, which `multiprocessing` has started, end when its parent ends, even if the
    parent is killed.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was not started by multiprocessing"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
