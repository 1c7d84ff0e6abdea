"""Pictures, good and bad, a video that takes its time, and a loopback web server that hands them out."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread

import av
import numpy as np
from PIL import Image


def picture(width: int = 96, height: int = 64, kind: str = "JPEG", shade: int = 0) -> bytes:
    """A colour gradient. shade: 0 to 255, each another picture."""
    image = Image.linear_gradient("L").resize((width, height))
    blue = image.point([level ^ shade for level in range(256)])
    buffer = BytesIO()
    Image.merge("RGB", (image, image.transpose(Image.Transpose.ROTATE_180), blue)).save(buffer, kind)
    return buffer.getvalue()


def png_bomb(side: int = 30_000) -> bytes:
    """A valid, all-black 1-bit PNG: small as a file, 900 megapixels decoded."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes((1 + (side + 7) // 8) * side), 1)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def data_url(data: bytes, kind: str = "image/jpeg") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def slow_video(seconds: int = 60, width: int = 1920, height: int = 1080) -> bytes:
    """H.264 at 30 fps that takes many seconds to decode whole, and few bytes: the same second again and again."""
    buffer = BytesIO()
    with av.open(buffer, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=30, options={"preset": "ultrafast", "g": "30"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        rows = np.arange(height)[:, None, None]
        packets = []
        for number in range(30):
            moving = ((rows + np.arange(width)[None, :, None] + 8 * number) % 256).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(np.repeat(moving, 3, axis=2), format="rgb24")
            frame.pts = number
            packets += stream.encode(frame)
        packets += stream.encode(None)
        units = [(packet.pts, packet.dts, packet.is_keyframe, bytes(packet)) for packet in packets]
        ticks = units[1][1] - units[0][1]
        for second in range(seconds):
            for pts, dts, is_keyframe, data in units:
                packet = av.Packet(data)
                packet.pts, packet.dts = pts + 30 * ticks * second, dts + 30 * ticks * second
                packet.is_keyframe, packet.stream = is_keyframe, stream
                packet.time_base = packets[0].time_base
                file.mux(packet)
    return buffer.getvalue()


CLIPS = Path(__file__).parents[2] / "samples" / "clips"

FILES = {
    "/ok.jpg": ("image/jpeg", picture()),
    "/ok.mp4": ("video/mp4", (CLIPS / "traffic_light.mp4").read_bytes()),
    "/text.jpg": ("image/jpeg", b"This is a text file that somebody named .jpg.\n" * 20),
    "/page.html": ("text/html", b"<html><body>no picture</body></html>"),
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/ok.jpg")
            self.end_headers()
            return
        if self.path not in FILES:
            self.send_error(404)
            return
        kind, data = FILES[self.path]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def web_server() -> Iterator[str]:
    """The base URL of a server on the loopback interface."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
