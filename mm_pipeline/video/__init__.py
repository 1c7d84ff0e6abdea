"""Video: files to sampled frames, free of torch; `video.patches` makes patches of them. Knows no encoder."""

from mm_pipeline.video.decode import DecodeReport, FrameChunk, VideoDecoder, decode_video
from mm_pipeline.video.info import VideoInfo
from mm_pipeline.video.plan import FramePlan, plan_frames
from mm_pipeline.video.probe import check_limits, probe_video
from mm_pipeline.video.settings import VideoSettings

__all__ = [
    "DecodeReport",
    "FrameChunk",
    "FramePlan",
    "VideoDecoder",
    "VideoInfo",
    "VideoSettings",
    "check_limits",
    "decode_video",
    "plan_frames",
    "probe_video",
]
