"""Questions one can ask about a compiled program, with answers in numbers.

    explain.py    what the compiler did: passes, rules, kernels, bytes, memory, compile time
    torch_program.py  what torch.compile makes of a function: breaks, recompiles, the share that runs compiled
    profile.py    where the time of a call goes, kernel by kernel
    validate.py   how far the answers are from the float64 reference, output by output
    bench.py      how fast it is, beside its peers; refuses a time to who gives another answer
    nodes.py      the same node by node: the first that diverges
    peers.py      ONNX Runtime and the reference evaluator, where they are installed
    machine.py    what the figures were measured on
    tables.py     all of these as rich tables

The answers are data (dataclasses; `as_json` gives plain dicts and lists); only tables.py needs the package
rich.
"""
