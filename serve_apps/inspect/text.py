"""A file report as text for a terminal."""

from __future__ import annotations

from serve_apps.bench import format_table
from serve_apps.inspect.report import FileReport, SoundReport, VideoReport

# Longer tables lose their middle.
_MOST_ROWS = 60


def as_text(report: FileReport) -> str:
    """Facts, the table of sampled frames, totals, damage."""
    lines = [f"{report.path}: {report.container}, {_bytes(report.num_bytes)}"]
    if report.video is not None:
        lines += _video_lines(report.video)
    if report.sound is not None:
        lines.append(_sound_line(report.sound))
    elif report.video is not None:
        lines.append("sound: none")
    if report.video is not None:
        lines += ["", _table(report.video), "", _totals(report.video)]
    lines += ["", *(f"damage or remark: {note}" for note in report.damage or ("none",))]
    return "\n".join(lines)


def _video_lines(video: VideoReport) -> list[str]:
    size = f"{video.width} x {video.height}"
    stored = []
    if (video.coded_width, video.coded_height) != (video.width, video.height):
        stored.append(f"stored {video.coded_width} x {video.coded_height}")
    if video.rotation:
        stored.append(f"turned {video.rotation} degrees clockwise")
    if video.pixel_aspect != "1:1":
        stored.append(f"pixels {video.pixel_aspect}")
    if video.interlaced:
        stored.append("interlaced")
    shape = f"{size} ({', '.join(stored)})" if stored else size
    span = "full range" if video.full_range else "limited range"
    return [
        f"video: {video.codec}, {shape}, {video.bits} bits {video.matrix} {span}, {video.transfer.upper()}",
        f"       {video.duration_s:.3f} s from timestamp {video.start_s:.3f}, {video.frames} frames, "
        f"{video.average_fps:.2f} a second on average, {video.keyframes} keyframes",
    ]


def _sound_line(sound: SoundReport) -> str:
    channels = "1 channel" if sound.channels == 1 else f"{sound.channels} channels"
    return (
        f"sound: {sound.codec}, {sound.sample_rate} Hz, {channels}; {sound.seconds:.3f} s decoded, "
        f"{sound.tokens} tokens, {_bytes(sound.embedding_bytes)} of embeddings"
    )


def _table(video: VideoReport) -> str:
    rows: list[tuple[object, ...]] = [
        (
            unit.stamp,
            " ".join(f"{time:.3f}" for time in unit.times_s),
            unit.tokens,
            _bytes(unit.frame_bytes),
            _bytes(unit.embedding_bytes),
        )
        for unit in video.units
    ]
    if len(rows) > _MOST_ROWS:
        kept = _MOST_ROWS // 2
        left_out = f"{len(rows) - 2 * kept} more"
        rows = [*rows[:kept], ("...", left_out, "", "", ""), *rows[-kept:]]
    return format_table(["prompt", "frames at (s)", "tokens", "pixels", "embeddings"], rows)


def _totals(video: VideoReport) -> str:
    num_frames = sum(len(unit.times_s) for unit in video.units)
    pixels = sum(unit.frame_bytes for unit in video.units)
    embeddings = sum(unit.embedding_bytes for unit in video.units)
    return (
        f"sampled: {num_frames} frames of {video.sampled_width} x {video.sampled_height}, {video.tokens} tokens, "
        f"{_bytes(pixels)} of pixels, {_bytes(embeddings)} of embeddings"
    )


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
