"""MatMul, Gemm, Einsum, Conv, ConvTranspose: sums of products."""
from __future__ import annotations

from collections.abc import Sequence

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import broadcast, reshaped, sliced
from planish.capture.onnx.pointwise import number
from planish.capture.onnx.sizes import make_source
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import INT64, Dim, is_static
from planish.types.dim import maximum


@translates("MatMul")
def matmul(call: Call) -> Node:
    return ops.matmul(call[0], call[1])


@translates("Gemm")
def gemm(call: Call) -> Node:
    """alpha A' B' + beta C, A' and B' transposed where transA and transB say so."""
    a, b = call[0], call[1]
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    product = ops.dot_general(
        a,
        b,
        lhs_contract=(0 if call.flag("transA") else 1,),
        rhs_contract=(1 if call.flag("transB") else 0,),
        lhs_batch=(),
        rhs_batch=(),
        alpha=alpha,
    )
    if not call.has(2) or beta == 0:
        return product
    return product + (call[2] if beta == 1.0 else call[2] * beta)


# --- Einsum: operands are contracted from the left, two at a time

@translates("Einsum")
def einsum(call: Call) -> Node:
    inputs, output = _subscripts(call)
    nodes = [_diagonal(call, call[i], labels) for i, labels in enumerate(inputs)]
    x, labels = nodes[0]
    for i, (y, more) in enumerate(nodes[1:], 1):
        later = set(output).union(*inputs[i + 1:])
        x, labels = _contract(x, labels, y, more, later)
    x, labels = _sum_out(x, labels, set(output))
    return ops.transpose(x, axes=tuple(labels.index(c) for c in output))


def _subscripts(call: Call) -> tuple[list[str], str]:
    """Labels of each operand and of the result; "..." becomes the labels ...2, 1, 0."""
    text = call.attribute("equation", "").replace(" ", "")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(call.operands):
        call.invalid(f"equation {text!r} has {len(inputs)} terms for {len(call.operands)} operands")
    ranks = [call.rank(i) - len(term.replace("...", "")) for i, term in enumerate(inputs)]
    dots = "".join(str(i) for i in reversed(range(max(ranks, default=0))))
    terms = [term.replace("...", dots[len(dots) - rank:]) for term, rank in zip(inputs, ranks)]
    if not arrow:
        letters = sorted(c for c in set("".join(inputs)) - {"."} if "".join(terms).count(c) == 1)
        output = "..." * ("..." in left) + "".join(letters)
    return terms, output.replace("...", dots)


def _diagonal(call: Call, x: Node, labels: str) -> tuple[Node, str]:
    """Where a label stands twice, the elements at which both axes have the same index."""
    if len(labels) != x.ndim:
        call.invalid(f"equation term {labels!r} on rank {x.ndim}")
    while len(set(labels)) < len(labels):
        second = next(i for i, c in enumerate(labels) if c in labels[:i])
        first = labels.index(labels[second])
        at = [make_source("iota", shape=x.shape, axis=axis, dtype=INT64) for axis in (first, second)]
        x = ops.reduce_sum(ops.select(ops.eq(*at), x, number(0, x.dtype)), axes=(second,))
        labels = labels[:second] + labels[second + 1:]
    return x, labels


def _sum_out(x: Node, labels: str, keep: set[str]) -> tuple[Node, str]:
    axes = tuple(i for i, c in enumerate(labels) if c not in keep)
    return (ops.reduce_sum(x, axes=axes), "".join(c for c in labels if c in keep)) if axes else (x, labels)


def _contract(x: Node, a: str, y: Node, b: str, later: set[str]) -> tuple[Node, str]:
    """Shared labels are batches where they are needed later, else summed over."""
    x, a = _sum_out(x, a, later | set(b))
    y, b = _sum_out(y, b, later | set(a))
    x, y = _stretched(x, a, y, b)
    batch = [c for c in a if c in b and c in later]
    summed = [c for c in a if c in b and c not in later]
    result = ops.dot_general(
        x,
        y,
        lhs_contract=tuple(map(a.index, summed)),
        rhs_contract=tuple(map(b.index, summed)),
        lhs_batch=tuple(map(a.index, batch)),
        rhs_batch=tuple(map(b.index, batch)),
    )
    free = [c for c in a if c not in b] + [c for c in b if c not in a]
    return result, "".join(batch + free)


def _stretched(x: Node, a: str, y: Node, b: str) -> tuple[Node, Node]:
    """Where a shared label has size 1 in one operand, that operand is broadcast."""
    sizes = {c: d for c, d in (*zip(a, x.shape), *zip(b, y.shape)) if d != 1}
    return tuple(broadcast(n, [sizes.get(c, d) if c in a and c in b else d for c, d in zip(labels, n.shape)])
                 for n, labels in ((x, a), (y, b)))  # type: ignore[return-value]


# --- convolution

Padding = tuple[tuple[Dim, Dim], ...]


def window_padding(call: Call, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int],
                   dilations: Sequence[int]) -> Padding:
    """(before, after) per spatial axis, of pads or auto_pad.

    SAME: ceil(size / stride) results, the odd one by name.
    """
    mode = call.attribute("auto_pad", "NOTSET")
    rank = len(kernel)
    if mode in ("NOTSET", ""):
        pads = call.attribute("pads", (0,) * 2 * rank)
        return tuple(zip(pads[:rank], pads[rank:]))
    if mode == "VALID":
        return ((0, 0),) * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        call.invalid(f"auto_pad {mode!r} is not one of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    return tuple(
        _same(n, k, s, d, mode == "SAME_LOWER") for n, k, s, d in zip(sizes, kernel, strides, dilations)
    )


def _same(size: Dim, kernel: int, stride: int, dilation: int, lower: bool) -> tuple[Dim, Dim]:
    results = (size + stride - 1) // stride
    total = maximum(0, (results - 1) * stride + (kernel - 1) * dilation + 1 - size)
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def per_axis(call: Call, name: str, rank: int) -> tuple[int, ...]:
    """An attribute with one entry per spatial axis, all 1 by default."""
    values = tuple(call.attribute(name, (1,) * rank))
    if len(values) != rank:
        call.invalid(f"{name} has {len(values)} entries for {rank} spatial axes")
    return values


@translates("Conv")
def conv(call: Call) -> Node:
    x, w = call[0], call[1]
    rank = x.ndim - 2
    kernel = static_kernel(call, w.shape[2:])
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    padding = window_padding(call, x.shape[2:], kernel, strides, dilations)
    result = ops.conv(
        x,
        w,
        strides=strides,
        padding=padding,
        lhs_dilation=(1,) * rank,
        rhs_dilation=dilations,
        groups=call.attribute("group", 1),
    )
    return with_bias(call, result)


def static_kernel(call: Call, sizes: Sequence[Dim]) -> tuple[int, ...]:
    if not all(map(is_static, sizes)):
        call.needs_size(f"a kernel of size {tuple(sizes)}", *sizes)
    return tuple(sizes)  # type: ignore[arg-type]


def with_bias(call: Call, result: Node) -> Node:
    """Operand 2, one number per channel, added to [N, C, ...]."""
    if not call.has(2):
        return result
    return result + reshaped(call[2], (1, result.shape[1], *[1] * (result.ndim - 2)))


@translates("ConvTranspose")
def conv_transpose(call: Call) -> Node:
    """The convolution of x, spread out by the strides, with the kernel reversed, channels exchanged."""
    x, w = call[0], call[1]
    rank, groups = x.ndim - 2, call.attribute("group", 1)
    kernel = static_kernel(call, w.shape[2:])
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    pads, extra = _transposed_padding(call, x.shape[2:], kernel, strides, dilations)
    reach = [(k - 1) * d for k, d in zip(kernel, dilations)]
    around = tuple((r - low, r - high + e) for r, (low, high), e in zip(reach, pads, extra))
    padding = tuple((maximum(low, 0), maximum(high, 0)) for low, high in around)
    result = ops.conv(x, _exchanged(w, groups), strides=(1,) * rank, padding=padding, lhs_dilation=strides,
                      rhs_dilation=dilations, groups=groups)
    for axis, (low, high) in enumerate(around, 2):  # padding beyond the kernel's reach cuts the result
        start, stop = maximum(low * -1, 0), result.shape[axis] - maximum(high * -1, 0)
        result = sliced(result, axis, start, stop)
    return with_bias(call, result)


def _exchanged(w: Node, groups: int) -> Node:
    """[C, O/g, *K] -> [O, C/g, *K], reversed along K."""
    c, o, *k = w.shape
    split = reshaped(w, (groups, c // groups, o, *k))
    swapped = ops.transpose(split, axes=(0, 2, 1, *range(3, 3 + len(k))))
    return ops.reverse(reshaped(swapped, (groups * o, c // groups, *k)), axes=tuple(range(2, 2 + len(k))))


def _transposed_padding(call: Call, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int],
                        dilations: Sequence[int]) -> tuple[Padding, tuple[int, ...]]:
    """Padding to take away, and output_padding.

    output_shape and SAME say the result's size, and the padding follows.
    """
    rank = len(kernel)
    extra = tuple(call.attribute("output_padding", (0,) * rank))
    wanted = call.attribute("output_shape")
    mode = call.attribute("auto_pad", "NOTSET")
    if wanted is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
        return window_padding(call, sizes, kernel, strides, dilations), extra
    shape = [n * s for n, s in zip(sizes, strides)] if wanted is None else wanted[-rank:]
    totals = [s * (n - 1) + e + (k - 1) * d + 1 - out
              for n, s, e, k, d, out in zip(sizes, strides, extra, kernel, dilations, shape)]
    # The odd one goes to the end for SAME_UPPER, to the beginning otherwise: the operator's equations.
    halves = [(t // 2, t - t // 2) for t in totals]
    return tuple(h if mode == "SAME_UPPER" else h[::-1] for h in halves), extra
