"""What a tensor is, before any operation: element types, sizes, tensor types."""
from planish.types.dim import (
    Dim,
    Expr,
    Symbol,
    bounds,
    evaluate_dim,
    is_static,
    parse_dim,
    substitute,
    symbol,
    symbols_of,
)
from planish.types.dtype import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
    dtype_of,
)
from planish.types.tensor import Shape, TensorType, broadcast_shapes, element_count

__all__ = [
    "BFLOAT16", "BOOL", "DTYPES", "FLOAT16", "FLOAT32", "FLOAT64", "INT8", "INT16", "INT32", "INT64",
    "UINT8", "UINT16", "UINT32", "UINT64", "DType", "Dim", "Expr", "Shape", "Symbol", "TensorType",
    "bounds", "broadcast_shapes", "dtype_of", "element_count", "evaluate_dim", "is_static", "parse_dim",
    "substitute", "symbol", "symbols_of",
]
