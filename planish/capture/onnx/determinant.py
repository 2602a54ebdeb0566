"""Det: Gaussian elimination with partial pivoting, all matrices of a batch at once."""
from __future__ import annotations

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import broadcast, reshaped
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.repetition import repeated
from planish.capture.onnx.sizes import make_source, size_node
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import INT64, Dim, element_count


@translates("Det", since=11)
def det(call: Call) -> Node:
    x = call[0]
    *batch, n, columns = x.shape
    if n != columns:
        call.invalid(f"matrices of {n} rows and {columns} columns")
    wide = x.dtype.accumulator
    count = element_count(batch)
    matrices = cast(reshaped(x, (count, n, n)), wide)
    one = broadcast(number(1, wide), (count,))
    product = repeated(size_node(n, INT64), [matrices, one], _eliminated, [])[1]
    return cast(reshaped(product, batch), x.dtype)


def _eliminated(k: Node, a: Node, product: Node) -> list[Node]:
    """Step k: the row with the greatest element of column k becomes row k; those below lose it."""
    count, n, _ = a.shape
    row = make_source("iota", shape=(count, n), axis=1, dtype=INT64)
    column = reshaped(ops.take(a, reshaped(k, (1,)), axis=2), (count, n))
    size = ops.select(ops.ge(row, k), ops.abs(column), number(-1, a.dtype))
    pivot = ops.argmax(size, axis=1, keepdims=True)
    source = ops.select(ops.eq(row, k), pivot, ops.select(ops.eq(row, pivot), k, row))
    a = ops.take_along(a, _along_rows(source, n), axis=1)
    top = ops.take(a, reshaped(k, (1,)), axis=1)
    column = ops.take(a, reshaped(k, (1,)), axis=2)
    head = ops.take(top, reshaped(k, (1,)), axis=2)
    zero = number(0, a.dtype)
    below = ops.bitwise_and(ops.gt(reshaped(row, (count, n, 1)), k), ops.ne(head, zero))
    factor = ops.select(below, column / head, zero)
    sign = ops.select(ops.eq(pivot, k), number(1, a.dtype), number(-1, a.dtype))
    return [a - factor * top, product * reshaped(sign, (count,)) * reshaped(head, (count,))]


def _along_rows(index: Node, n: Dim) -> Node:
    count, rows = index.shape
    return broadcast(reshaped(index, (count, rows, 1)), (count, rows, n))
