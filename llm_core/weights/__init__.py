"""Checkpoint folders: reading tensors, naming them, and filling a decoder with them."""

from llm_core.weights.folder import CheckpointFolder
from llm_core.weights.loader import load_decoder
from llm_core.weights.mimo_v2 import TensorSpec, decoder_tensors

__all__ = ["CheckpointFolder", "TensorSpec", "decoder_tensors", "load_decoder"]
