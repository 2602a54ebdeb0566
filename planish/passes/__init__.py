"""Passes over the graph, and the one list of them."""
from planish.passes.pipeline import PIPELINE, run_pipeline
from planish.passes.protocol import Context, Pass, PassRecord

__all__ = ["PIPELINE", "Context", "Pass", "PassRecord", "run_pipeline"]
