"""Pictures, good and bad, and a loopback web server that hands them out."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from threading import Thread

from PIL import Image


def picture(width: int = 96, height: int = 64, kind: str = "JPEG") -> bytes:
    """A colour gradient."""
    image = Image.linear_gradient("L").resize((width, height))
    buffer = BytesIO()
    Image.merge("RGB", (image, image.transpose(Image.Transpose.ROTATE_180), image)).save(buffer, kind)
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


FILES = {
    "/ok.jpg": ("image/jpeg", picture()),
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
