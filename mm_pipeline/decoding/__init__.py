"""A video's or a sound's bytes to decoded parts. Knows no encoder.

Free of torch, so that a process that only decodes is small and starts fast.
"""

from mm_pipeline.decoding.decoder import MediaDecoder
from mm_pipeline.decoding.parts import DecodedPart, FramePart, MelPart, PlanPart, ReportPart

__all__ = ["DecodedPart", "FramePart", "MediaDecoder", "MelPart", "PlanPart", "ReportPart"]
