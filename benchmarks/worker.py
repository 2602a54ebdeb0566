"""One peer in a process of its own: `python -m benchmarks.worker PEER WORKLOAD THREADS`.

In, a line each: `prepare`, `output PATH`, `time COUNT`. Out, a line of JSON each:

    prepare       {"first_call_s": seconds until the first result, "versions": {package: version}}
    output PATH   {} once the output of a call stands in PATH as .npy
    time COUNT    {"seconds": [COUNT timings of one call each]}, after one call that is not timed
    memory        {"peak_bytes": the largest resident set so far}

A failure answers {"error": "Type: message"}, a workload without a program for the peer {"absent": true}, and
the worker goes on. What a framework prints goes to
standard error.
"""
from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import numpy as np

from benchmarks.catalogue import WORKLOADS
from benchmarks.peers import PEERS, NoProgram, Peer, Ready


class Worker:
    def __init__(self, peer: Peer, workload: str, threads: int) -> None:
        self.peer, self.workload, self.threads = peer, WORKLOADS[workload](), threads
        self.ready: Ready | None = None

    def prepare(self) -> dict[str, Any]:
        modules = [importlib.import_module(package) for package in self.peer.packages]
        start = perf_counter()
        try:
            ready = self.peer.prepare(self.workload, self.threads)
        except NoProgram:
            return {"absent": True}
        ready.call()
        seconds = perf_counter() - start
        self.ready = ready
        return {"first_call_s": seconds, "versions": {m.__name__: m.__version__ for m in modules}}

    def output(self, path: str) -> dict[str, Any]:
        assert self.ready, "prepare first"
        np.save(path, self.ready.output(self.ready.call()))
        return {}

    def time(self, count: str) -> dict[str, Any]:
        assert self.ready, "prepare first"
        call, seconds = self.ready.call, []
        call()
        for _ in range(int(count)):
            start = perf_counter()
            call()
            seconds.append(perf_counter() - start)
        return {"seconds": seconds}

    def memory(self) -> dict[str, Any]:
        """Of this process alone: getrusage's figure begins with that of the process that started it."""
        status = Path("/proc/self/status").read_text()
        return {"peak_bytes": 1024 * int(status.partition("VmHWM:")[2].split()[0])}


def answer(worker: Worker, line: str) -> dict[str, Any]:
    command, *arguments = line.split(" ", 1)
    try:
        return getattr(worker, command)(*arguments)
    except Exception as error:
        message = " ".join(str(error).split())
        return {"error": f"{type(error).__name__}: {message[:300]}"}


def private_stdout() -> TextIO:
    """Standard output for the answers alone: everybody else's goes to standard error from now on."""
    private = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return private


def main() -> None:
    peer, workload, threads = PEERS[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    answers = private_stdout()
    worker = Worker(peer, workload, threads)
    for line in sys.stdin:
        print(json.dumps(answer(worker, line.rstrip("\n"))), file=answers)


if __name__ == "__main__":
    main()
