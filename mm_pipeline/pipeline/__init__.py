"""Media from bytes to embeddings. A video or a sound takes two steps, which may run in two processes: bytes to
decoded parts, parts to embeddings. Knows nothing of caches, of batches across requests or of Ray.
"""

from mm_pipeline.pipeline.decoder import MediaDecoder
from mm_pipeline.pipeline.encoder import MediaEncoder
from mm_pipeline.pipeline.image import ImagePipeline
from mm_pipeline.pipeline.media import EncodedMedia
from mm_pipeline.pipeline.parts import DecodedPart, FramePart, MelPart, PlanPart, ReportPart

__all__ = [
    "DecodedPart",
    "EncodedMedia",
    "FramePart",
    "ImagePipeline",
    "MediaDecoder",
    "MediaEncoder",
    "MelPart",
    "PlanPart",
    "ReportPart",
]
