"""planish beside its peers in one interleaved run, with the machine's own limits: `python -m benchmarks
-h`.

    workloads.py   what is computed: one record each, in NumPy, torch, JAX and ONNX
    peers.py       who computes it: one function per peer that makes a workload callable
    worker.py      one peer in a process of its own; speaks lines of JSON
    race.py        starts the workers, checks each output, then times them in interleaved rounds
    limits.py      what this machine can do at most: memory traffic and floating-point operations
    report.py      the table, the machine, the versions
"""
