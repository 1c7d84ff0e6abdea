"""Block-scaled fp8 weights."""

from kernels.fp8.reference import dequantize_blocks

__all__ = ["dequantize_blocks"]
