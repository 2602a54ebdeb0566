"""What `enable_profiling` records: one event per step of a session, in the form of Chrome's trace viewer."""
from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path


class Profile:
    """Events of one session, in memory until `write`. Safe from many threads."""

    def __init__(self, prefix: str):
        self.prefix, self.start_ns = prefix, time.monotonic_ns()
        self._events: list[dict[str, object]] = []

    @contextmanager
    def event(self, name: str) -> Iterator[None]:
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            start, duration = begin - self.start_ns, time.monotonic_ns() - begin
            self._events.append({"cat": "Session", "ph": "X", "name": name, "pid": os.getpid(),
                                 "tid": threading.get_native_id(), "ts": start // 1000,
                                 "dur": duration // 1000, "args": {}})

    def write(self) -> str:
        """Write the events to a file in the working folder, and give its name."""
        path = Path(f"{self.prefix}{datetime.now():%Y-%m-%d_%H-%M-%S}.json")
        path.write_text(json.dumps(self._events))
        return str(path)
