"""The variants of a function: one compiled program for each signature it is called with.

    signature.py   what a call is compiled for: the structure of its arguments, and a key per leaf
    program.py     one variant: arguments to the compiled graph, its outputs to the function's results
    function.py    `Jitted`: finds the variant of a call, or traces and compiles it
    stages.py      a trace and a compiled graph, to look into
"""
