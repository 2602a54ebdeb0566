"""What tuning found: who was tried, who won, by how much."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["kernel", "op", "program"]


@dataclass(frozen=True)
class Tried:
    """One candidate: `ratio` is its time over the incumbent's (0: not timed); `verdict` is won, slower,
    undecided, unsteady, behind another, out of time, or why it was refused."""

    candidate: str
    ratio: float
    verdict: str


@dataclass(frozen=True)
class Finding:
    """What became of one kernel, op or program.

    what        it in words
    winner      the way that runs from now on; `value` the same as plain data
    speedup     the time of the way chosen without measuring, over the winner's
    us          microseconds of the way chosen without measuring
    remembered  whether it is from the database, and nothing was measured
    """

    kind: Kind
    what: str
    winner: str
    value: Any
    speedup: float
    us: float
    tried: tuple[Tried, ...] = ()
    remembered: bool = False

    def to_json(self) -> dict[str, Any]:
        """A value that json.dumps takes; `from_json` reads it back."""
        tried = [[t.candidate, round(t.ratio, 4), t.verdict] for t in self.tried]
        return {"kind": self.kind, "what": self.what, "winner": self.winner, "value": self.value,
                "speedup": round(self.speedup, 4), "us": round(self.us, 3), "tried": tried}

    @staticmethod
    def from_json(value: Any) -> Finding:
        """The finding of a `to_json` value, remembered. ValueError for anything else."""
        try:
            tried = tuple(Tried(str(c), float(r), str(v)) for c, r, v in value["tried"])
            if value["kind"] not in get_args(Kind):
                raise ValueError(f"no finding is about a {value['kind']!r}")
            return Finding(value["kind"], str(value["what"]), str(value["winner"]), value["value"],
                           float(value["speedup"]), float(value["us"]), tried, remembered=True)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a finding: {error!r}") from None
