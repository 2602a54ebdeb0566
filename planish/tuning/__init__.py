"""max-autotune: what the schedule decides by rules, measured.

    pairs.py       which of two is faster, on a machine that others use too
    candidates.py  what is tried for a kernel
    trial.py       one kernel alone, made and run; whether two answers are the same
    search.py      the best of a handful
    library.py     ops by the kernels of NumPy and torch
    decisions.py   what was decided for a program
    database.py    findings on disk, by kernel and machine
    tune.py        all of it for one program
"""
