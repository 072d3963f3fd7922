"""Time work in an environment of its own and print one line of JSON. Needs the standard library only."""

import json
import time
from collections.abc import Callable
from typing import Any


def report(work: Callable[[], Any], repeats: int, **more: Any) -> Any:
    """Print the least clock and processor times of several runs, and ``more``; return what the last run returned.

    With several runs one more goes before them: it may compile, or fill caches.
    """
    clock, processor, found = [], [], None
    for number in range(repeats + (repeats > 1)):
        start, before = time.perf_counter(), time.process_time()
        found = work()
        if number or repeats == 1:
            clock.append(time.perf_counter() - start)
            processor.append(time.process_time() - before)
    print(json.dumps({"clock": min(clock), "processor": min(processor), **more}))
    return found
