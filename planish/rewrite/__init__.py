"""Rewriting: patterns, rules, the driver that applies them, and the check that admits them."""
from planish.rewrite.driver import apply_steps
from planish.rewrite.pattern import any_op, const, result_of, several, uniform_value, variables
from planish.rewrite.rule import ADMITS, Match, Numerics, Rule, Rules, rule

__all__ = ["ADMITS", "Match", "Numerics", "Rule", "Rules", "any_op", "apply_steps", "const", "result_of",
           "rule", "several", "uniform_value", "variables"]
