"""What tuning decided for a program, as plain data: part of the program's key in the cache."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planish.schedule.buffers import Buffers
from planish.schedule.choice import ANALYTIC, Choice, kernel_key
from planish.schedule.kernel import Kernel
from planish.schedule.lower import Chooser


@dataclass(frozen=True)
class Decisions:
    """`kernels`: kernel key -> how it is scheduled, of those that are told; `ops`: op key -> the library that
    runs it; `whole`: the library strategy runs the whole program."""

    kernels: tuple[tuple[str, Choice], ...] = ()
    ops: tuple[tuple[str, str], ...] = ()
    whole: bool = False

    def chooser(self, hint: dict[str, int]) -> Chooser:
        """How a kernel is to be scheduled."""
        told = dict(self.kernels)

        def choose(kernel: Kernel, buffers: Buffers) -> Choice:
            return told.get(kernel_key(kernel, buffers, hint), ANALYTIC) if told else ANALYTIC
        return choose

    def to_json(self) -> dict[str, Any]:
        """A value that json.dumps takes; `from_json` reads it back."""
        return {"kernels": {key: choice.to_json() for key, choice in self.kernels}, "ops": dict(self.ops),
                "whole": self.whole}

    @staticmethod
    def from_json(value: Any) -> Decisions:
        """The decisions of a `to_json` value. ValueError for anything else."""
        try:
            kernels = tuple((str(key), Choice.from_json(told)) for key, told in value["kernels"].items())
            ops = tuple((str(key), str(library)) for key, library in value["ops"].items())
            return Decisions(kernels, ops, bool(value["whole"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the decisions of a program: {error!r}") from None


UNTUNED = Decisions()
