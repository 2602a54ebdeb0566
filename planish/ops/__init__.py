"""What an operation is: one record per op, in files by family. Importing this package registers them all."""
from planish.ops import structure
from planish.ops.record import OPS, NoAttributes, Op, Sample, get_op

__all__ = ["OPS", "NoAttributes", "Op", "Sample", "get_op", "structure"]
