"""What a media file is and what a model would get of it. Decodes and draws; loads no weights."""

from serve_apps.inspect.contact_sheet import ContactSheet
from serve_apps.inspect.report import FileReport, SoundReport, UnitRow, VideoReport, inspect_file
from serve_apps.inspect.text import as_text

__all__ = ["ContactSheet", "FileReport", "SoundReport", "UnitRow", "VideoReport", "as_text", "inspect_file"]
