"""The hybrid decoder as torch modules, and the batch it reads."""

from llm_core.model.batch import ForwardBatch, KVCaches, TokenRange
from llm_core.model.decoder import HybridDecoder

__all__ = ["ForwardBatch", "HybridDecoder", "KVCaches", "TokenRange"]
