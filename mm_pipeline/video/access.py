"""Whether decoding may start at a packet. Reads the first bytes of H.264 and HEVC packets; decodes nothing.

A demuxer marks a packet as a keyframe when the stream says one can tune in there. In an intra-refresh stream that
only means that the picture becomes whole some frames later, so such a packet is no place to start for exact frames.
"""

from __future__ import annotations

from collections.abc import Iterator

# H.264 table 7-1.
_H264_SLICE, _H264_IDR, _H264_SEI = (1, 2), 5, 6
_RECOVERY_POINT = 6
# HEVC table 7-1: 16 to 23 are the random access pictures. 32 is the video parameter set.
_HEVC_IRAP = range(16, 24)
_HEVC_FIRST_NON_VCL = 32
_HEVC_VPS = 32
# Parameter sets and SEI messages come before the first slice and are short.
_HEAD_BYTES = 4096


def is_safe_start(codec: str, packet: memoryview, extradata: bytes | None) -> bool:
    """Whether frames displayed at or after this keyframe packet decode exactly when decoding starts at it.

    codec: FFmpeg's name. Codecs without half-safe keyframes are safe wherever their demuxer says so.
    """
    if codec == "h264":
        return _h264_is_safe(packet, extradata)
    if codec == "hevc":
        for unit in _units(packet, _length_bytes(extradata, 21)):
            kind = unit[0] >> 1 & 0x3F
            if kind < _HEVC_FIRST_NON_VCL:
                return kind in _HEVC_IRAP
    return True


def has_layers(codec: str, extradata: bytes | None) -> bool:
    """Whether an HEVC stream has temporal layers: then a picture that its own layer does not refer to may still be
    referred to by a higher one. Unknown counts as yes."""
    if codec != "hevc":
        return False
    if extradata is None or len(extradata) < 23:
        return True
    if extradata[0] == 1:
        # ISO 14496-15, HEVCDecoderConfigurationRecord: numTemporalLayers, where 0 means unknown.
        return (extradata[21] >> 3 & 7) != 1
    for unit in _units(memoryview(extradata), None):
        if unit[0] >> 1 & 0x3F == _HEVC_VPS and len(unit) > 3:
            return (unit[3] >> 1 & 7) != 0
    return True


def is_hidden(codec: str, packet: memoryview) -> bool:
    """Whether a VP8 packet holds a frame that is never displayed. RFC 6386, section 9.1: show_frame."""
    return codec == "vp8" and len(packet) > 0 and not packet[0] >> 4 & 1


def _h264_is_safe(packet: memoryview, extradata: bytes | None) -> bool:
    for unit in _units(packet, _length_bytes(extradata, 4)):
        kind = unit[0] & 0x1F
        if kind == _H264_IDR:
            return True
        if kind == _H264_SEI:
            frames = _recovery_frames(bytes(unit[1:]))
            if frames is not None:
                return frames == 0
        if kind in _H264_SLICE:
            return False
    return False


def _length_bytes(extradata: bytes | None, place: int) -> int | None:
    """Width of the length before each unit; None for start codes. Both configuration records begin with a 1."""
    if extradata is None or len(extradata) <= place or extradata[0] != 1:
        return None
    return (extradata[place] & 3) + 1


def _units(packet: memoryview, length_bytes: int | None) -> Iterator[memoryview]:
    """Units without their length or start code; what lies past the head may be cut."""
    if length_bytes is None:
        head = bytes(packet[:_HEAD_BYTES])
        start = head.find(b"\0\0\1")
        while 0 <= start < len(head) - 3:
            end = head.find(b"\0\0\1", start + 3)
            yield memoryview(head)[start + 3 : end if end >= 0 else len(head)]
            start = end
        return
    position = 0
    while position + length_bytes < len(packet):
        size = int.from_bytes(packet[position : position + length_bytes])
        position += length_bytes
        if size:
            yield packet[position : position + size]
        position += size


def _recovery_frames(payload: bytes) -> int | None:
    """recovery_frame_cnt of a SEI unit (H.264 D.1.8), None when it has no recovery point message."""
    data = payload.replace(b"\0\0\3", b"\0\0")
    position = 0
    while position + 2 < len(data):
        kind = size = 0
        while position < len(data) and data[position] == 255:
            kind, position = kind + 255, position + 1
        if position < len(data):
            kind, position = kind + data[position], position + 1
        while position < len(data) and data[position] == 255:
            size, position = size + 255, position + 1
        if position < len(data):
            size, position = size + data[position], position + 1
        if kind == _RECOVERY_POINT:
            return _exp_golomb(data[position : position + size])
        position += size
    return None


def _exp_golomb(data: bytes) -> int:
    """The first ue(v) of `data`, H.264 section 9.1."""
    bits = "".join(f"{byte:08b}" for byte in data[:8])
    zeros = len(bits) - len(bits.lstrip("0"))
    return int(bits[zeros : 2 * zeros + 1] or "1", 2) - 1
