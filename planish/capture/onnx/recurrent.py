"""RNN, GRU and LSTM: one product for all steps' inputs, then a `scan_loop` over the recurrence.

The formulas are those of the ONNX operator specification. Sizes in the comments: T steps, B sequences, H
hidden, G gates of H columns each. Beyond the length of a sequence its state stays and its output is 0; from
the end, it starts at its own end.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.control import while_active
from planish.capture.onnx.movement import broadcast, sliced
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.regions import Carry, Stacked, placeholder, round_numbers, scan
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import INT64, TensorType, is_static

Activation = Callable[[Node], Node]
Step = Callable[[Node, Sequence[Node]], list[Node]]   # the inputs' part and the state -> the next state

# name -> (formula on x, alpha and beta; defaults of those it takes)
ACTIVATIONS: dict[str, tuple[Callable[..., Node], tuple[float, ...]]] = {
    "relu": (ops.relu, ()),
    "tanh": (ops.tanh, ()),
    "sigmoid": (ops.sigmoid, ()),
    "softsign": (lambda x: x / (ops.abs(x) + 1.0), ()),
    "softplus": (ops.softplus, ()),
    "affine": (lambda x, alpha, beta: x * alpha + beta, (1.0, 0.0)),
    "leakyrelu": (lambda x, alpha: ops.leaky_relu(x, alpha=alpha), (0.01,)),
    "thresholdedrelu": (lambda x, alpha: ops.select(ops.gt(x, alpha), x, number(0, x.dtype)), (1.0,)),
    "scaledtanh": (lambda x, alpha, beta: ops.tanh(x * beta) * alpha, (1.0, 1.0)),
    "hardsigmoid": (lambda x, alpha, beta: ops.minimum(ops.maximum(x * alpha + beta, 0.0), 1.0), (0.2, 0.5)),
    "elu": (lambda x, alpha: ops.elu(x, alpha=alpha), (1.0,)),
}


@dataclass(frozen=True, eq=False)
class _Direction:
    """The weights of one direction: w [G*H, inputs], r [G*H, H], biases [G*H] each, or None."""

    call: Call
    x: Node                          # [T, B, inputs]
    w: Node
    r: Node
    w_bias: Node | None
    r_bias: Node | None
    peepholes: Node | None           # [3*H]
    first: tuple[Node, ...]          # the state before the first step: [B, H] each
    lengths: Node | None             # [B, 1]
    activations: Sequence[Activation]
    reverse: bool

    @property
    def hidden(self) -> int:
        hidden = self.r.shape[1]
        assert is_static(hidden)
        return hidden

    def clipped(self, x: Node) -> Node:
        """What goes into an activation."""
        clip = self.call.attribute("clip")
        return x if clip is None else ops.minimum(ops.maximum(x, -clip), clip)

    def gates(self, x: Node) -> list[Node]:
        """The parts of H columns each."""
        h, columns = self.hidden, x.shape[-1]
        assert is_static(columns)
        return [sliced(x, x.ndim - 1, i * h, (i + 1) * h) for i in range(columns // h)]

    def projected(self, *biases: Node | None) -> Node:
        """x w' + biases: [T, B, G*H], one product for all steps."""
        product = ops.matmul(self.x, ops.transpose(self.w, axes=(1, 0)))
        given = [bias for bias in biases if bias is not None]
        return product + reduce(ops.add, given) if given else product

    def recurred(self, h: Node, start: int = 0, stop: int | None = None) -> Node:
        """h r' for the gates from `start` on to before `stop`."""
        size = self.hidden
        r = self.r if stop is None else sliced(self.r, 0, start * size, stop * size)
        return ops.matmul(h, ops.transpose(r, axes=(1, 0)))

    def run(self, inputs: Node, step: Step) -> tuple[list[Node], Node]:
        """The last state, [B, H] each, and the first part of the state after every step, [T, B, H]."""
        length = inputs.shape[0]
        state = [placeholder("state", s.tensor) for s in self.first]
        part = placeholder("inputs", inputs.tensor.with_shape(inputs.shape[1:]))
        following, stacked = step(part, state), [Stacked(part, inputs)]
        carries = [Carry(*values) for values in zip(state, self.first, following, strict=True)]
        pieces: Sequence[Node] = following[:1]
        if self.lengths is not None:
            stacked.append(Stacked(placeholder("step", TensorType(INT64)), round_numbers(length)))
            carries, pieces = while_active(ops.lt(stacked[-1].inside, self.lengths), carries, pieces)
        last, (every,) = scan(carries, stacked, pieces, length, self.call.note_of, reverse=self.reverse)
        return last, every


# --- the three cells

def rnn_cell(d: _Direction) -> tuple[Node, Step]:
    """H' = f(x W' + H R' + Wb + Rb)."""
    (f,) = d.activations
    return d.projected(d.w_bias, d.r_bias), lambda x, state: [f(d.clipped(x + d.recurred(state[0])))]


def gru_cell(d: _Direction) -> tuple[Node, Step]:
    """Gates z, r, h: H' = (1 - z) h + z H. Cho et al. 2014; with linear_before_reset as in cuDNN."""
    f, g = d.activations
    linear = d.call.flag("linear_before_reset")
    outside, inside = d.r_bias, None   # the bias of r, and the part of it that is reset
    if linear and d.r_bias is not None:
        bz, br, inside = d.gates(d.r_bias)
        outside = ops.concat(bz, br, inside * 0.0, axis=0)

    def step(x: Node, state: Sequence[Node]) -> list[Node]:
        (h,) = state
        xz, xr, xh = d.gates(x)
        if linear:
            hz, hr, hh = d.gates(d.recurred(h))
            hh = hh if inside is None else hh + inside
        else:
            hz, hr = d.gates(d.recurred(h, 0, 2))
        z, r = f(d.clipped(xz + hz)), f(d.clipped(xr + hr))
        mixed = xh + (r * hh if linear else d.recurred(r * h, 2, 3))
        return [(1.0 - z) * g(d.clipped(mixed)) + z * h]
    return d.projected(d.w_bias, outside), step


def lstm_cell(d: _Direction) -> tuple[Node, Step]:
    """Gates i, o, f, c: C' = f C + i c, H' = o h(C'). Hochreiter & Schmidhuber 1997; Gers & Schmidhuber 2000
    for the peepholes, which are those of i, o, f."""
    f, g, h = d.activations
    peep = None if d.peepholes is None else d.gates(d.peepholes)

    def seen(x: Node, cell: Node, gate: int) -> Node:
        return f(d.clipped(x if peep is None else x + peep[gate] * cell))

    def step(x: Node, state: Sequence[Node]) -> list[Node]:
        hidden, cell = state
        xi, xo, xf, xc = d.gates(x + d.recurred(hidden))
        i = seen(xi, cell, 0)
        forget = 1.0 - i if d.call.flag("input_forget") else seen(xf, cell, 2)
        new = forget * cell + i * g(d.clipped(xc))
        return [seen(xo, new, 1) * h(new), new]
    return d.projected(d.w_bias, d.r_bias), step


# --- the node

@dataclass(frozen=True)
class _Recurrent:
    """What the three operators have in common. `states`: how many tensors a state is."""

    cell: Callable[[_Direction], tuple[Node, Step]]
    gates: int
    defaults: tuple[str, ...]
    states: int = 1

    def __call__(self, call: Call) -> list[Node]:
        """Y [T, D, B, H], then the last states [D, B, H]; with layout 1, B is the first axis."""
        runs = [d.run(*self.cell(d)) for d in self.directions(call)]
        every = _joined([y for _, y in runs], 1)
        last = [_joined([state[i] for state, _ in runs], 0) for i in range(self.states)]
        if call.flag("layout"):
            last = [ops.transpose(s, axes=(1, 0, 2)) for s in last]
            return [ops.transpose(every, axes=(2, 0, 1, 3)), *last]
        return [every, *last]

    def directions(self, call: Call) -> Iterator[_Direction]:
        kind, batch_first = call.attribute("direction", "forward"), call.flag("layout")
        reverses = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(kind)
        if reverses is None:
            call.invalid(f"direction {kind!r} is not one of forward, reverse, bidirectional")
        x = ops.transpose(call[0], axes=(1, 0, 2)) if batch_first else call[0]
        self.require_shapes(call, x, len(reverses))
        lengths = None if not call.has(4) else cast(ops.reshape(call[4], shape=(x.shape[1], 1)), INT64)
        activations = self.activations(call, len(reverses))
        for i, reverse in enumerate(reverses):
            w, r, bias, peepholes = (_part(call.get(k), i) for k in (1, 2, 3, 7))
            assert w is not None and r is not None
            half = w.shape[0]
            w_bias, r_bias = (None, None) if bias is None else (
                sliced(bias, 0, 0, half), sliced(bias, 0, half, bias.shape[0]))
            yield _Direction(call, x, w, r, w_bias, r_bias, peepholes, self.first(call, x, i), lengths,
                             activations[i], reverse)

    def require_shapes(self, call: Call, x: Node, directions: int) -> None:
        """ModelError for weights that do not belong together."""
        rows = call.shape(1)[1] if call.rank(1) == 3 else 0
        hidden = call.shape(2)[2] if call.rank(2) == 3 else 0
        if not is_static(rows) or not is_static(hidden) or x.ndim != 3:
            call.refuse(f"weights of shape {call.shape(1)} and {call.shape(2)} on an input of shape "
                        f"{call.shape()}", "planish takes static weights and an input of rank 3")
        given = {1: (directions, rows, x.shape[2]), 2: (directions, rows, hidden), 3: (directions, 2 * rows),
                 7: (directions, 3 * hidden)}
        for operand, shape in given.items():
            if call.has(operand) and call.shape(operand) != shape:
                call.invalid(f"operand {operand} has shape {call.shape(operand)}; it is to be {shape}")
        if hidden == 0 or rows != self.gates * hidden or call.attribute("hidden_size", hidden) != hidden:
            call.invalid(f"{rows} rows of weights for {self.gates} gates and a hidden size of {hidden}")

    def first(self, call: Call, x: Node, i: int) -> tuple[Node, ...]:
        """The first state of direction `i`: operands, or zeros."""
        shape = (x.shape[1], call.shape(2)[2])
        states = []
        for operand in range(5, 5 + self.states):
            given = call.get(operand)
            if given is not None and call.flag("layout"):
                given = ops.transpose(given, axes=(1, 0, 2))
            part = _part(given, i)
            states.append(broadcast(number(0, x.dtype), shape) if part is None else part)
        return tuple(states)

    def activations(self, call: Call, directions: int) -> list[list[Activation]]:
        """The functions of each direction. alpha and beta are taken, in order, by those that have them."""
        count = len(self.defaults)
        names = call.attribute("activations") or self.defaults * directions
        if len(names) != count * directions:
            call.invalid(f"{len(names)} activations for {directions} directions of {count}")
        scales = [iter(call.attribute(f"activation_{which}", ())) for which in ("alpha", "beta")]
        found: list[Activation] = []
        for name in names:
            if name.lower() not in ACTIVATIONS:
                call.invalid(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}")
            function, defaults = ACTIVATIONS[name.lower()]
            given = [float(np.float32(next(scale, default))) for scale, default in zip(scales, defaults)]
            found.append(partial(_activated, function, given))
        return [found[i * count:(i + 1) * count] for i in range(directions)]


def _activated(function: Callable[..., Node], scales: Sequence[float], x: Node) -> Node:
    return function(x, *scales)


def _part(x: Node | None, i: int) -> Node | None:
    """x[i]."""
    return None if x is None else ops.reshape(sliced(x, 0, i, i + 1), shape=x.shape[1:])


def _joined(parts: Sequence[Node], axis: int) -> Node:
    """The parts along a new axis."""
    rows = [ops.reshape(p, shape=(*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    return rows[0] if len(rows) == 1 else ops.concat(*rows, axis=axis)


translates("RNN")(_Recurrent(rnn_cell, 1, ("Tanh",)))
translates("GRU")(_Recurrent(gru_cell, 3, ("Sigmoid", "Tanh")))
translates("LSTM")(_Recurrent(lstm_cell, 4, ("Sigmoid", "Tanh", "Tanh"), states=2))
