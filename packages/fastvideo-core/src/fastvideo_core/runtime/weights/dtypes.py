"""The number formats that safetensors files use, without torch.

Source: the safetensors format, version 0.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

DTypeLike: TypeAlias = "str | torch.dtype"

Kind = Literal["float", "integer", "bool", "complex"]


@dataclass(frozen=True, slots=True)
class DType:
    """One number format.

    Attributes:
        bits: Bits an element; below 8 several elements share a byte.
        kind: What the numbers are; weights are never converted from one kind to another.
        torch_name: The attribute of `torch` that names it; None where torch has no type of one element.
    """

    bits: int
    kind: Kind
    torch_name: str | None


DTYPES: dict[str, DType] = {
    "BOOL": DType(8, "bool", "bool"),
    "U8": DType(8, "integer", "uint8"),
    "I8": DType(8, "integer", "int8"),
    "U16": DType(16, "integer", "uint16"),
    "I16": DType(16, "integer", "int16"),
    "U32": DType(32, "integer", "uint32"),
    "I32": DType(32, "integer", "int32"),
    "U64": DType(64, "integer", "uint64"),
    "I64": DType(64, "integer", "int64"),
    "F4": DType(4, "float", None),
    "F6_E2M3": DType(6, "float", None),
    "F6_E3M2": DType(6, "float", None),
    "F8_E4M3": DType(8, "float", "float8_e4m3fn"),
    "F8_E4M3FNUZ": DType(8, "float", "float8_e4m3fnuz"),
    "F8_E5M2": DType(8, "float", "float8_e5m2"),
    "F8_E5M2FNUZ": DType(8, "float", "float8_e5m2fnuz"),
    "F8_E8M0": DType(8, "float", "float8_e8m0fnu"),
    "F16": DType(16, "float", "float16"),
    "BF16": DType(16, "float", "bfloat16"),
    "F32": DType(32, "float", "float32"),
    "F64": DType(64, "float", "float64"),
    "C64": DType(64, "complex", "complex64"),
}

_BY_TORCH_NAME = {dtype.torch_name: dtype for dtype in DTYPES.values() if dtype.torch_name is not None}


def torch_dtype_name(dtype: DTypeLike) -> str:
    """Return `float32` for `torch.float32` and for `"float32"`."""
    return str(dtype).removeprefix("torch.")


def dtype_bits(dtype: DTypeLike) -> int:
    """Return the bits of one element of a torch dtype, given as the dtype or by name.

    Raises:
        KeyError: If there is no such dtype in safetensors files.
    """
    return _BY_TORCH_NAME[torch_dtype_name(dtype)].bits
