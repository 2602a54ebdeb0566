"""The rules, in files by algebraic family."""
from planish.rewrite.rule import Rule
from planish.rewrite.rules.attention import RECOGNISE
from planish.rewrite.rules.cast import CAST
from planish.rewrite.rules.contract import CONTRACT_TRANSPOSES, FOLD_SCALE
from planish.rewrite.rules.identities import IDENTITIES
from planish.rewrite.rules.integers import INTEGERS
from planish.rewrite.rules.movement import MOVEMENT
from planish.rewrite.rules.reduce import REDUCE
from planish.rewrite.rules.saturating import SATURATING
from planish.rewrite.rules.substitute import SUBSTITUTE

FAMILIES: dict[str, tuple[Rule, ...]] = {
    "identities": IDENTITIES,
    "integers": INTEGERS,
    "cast": CAST,
    "movement": MOVEMENT,
    "reduce": REDUCE,
    "saturating": SATURATING,
    "contract": CONTRACT_TRANSPOSES + FOLD_SCALE,
    "substitute": SUBSTITUTE,
    "attention": RECOGNISE,
}
ALGEBRA = IDENTITIES + INTEGERS + CAST + MOVEMENT + REDUCE + SATURATING + CONTRACT_TRANSPOSES
ALL_RULES = tuple(one for rules in FAMILIES.values() for one in rules)

__all__ = ["ALGEBRA", "ALL_RULES", "CAST", "CONTRACT_TRANSPOSES", "FAMILIES", "FOLD_SCALE", "IDENTITIES",
           "INTEGERS", "MOVEMENT", "RECOGNISE", "REDUCE", "SATURATING", "SUBSTITUTE"]
