"""A process that only decodes sound must not pay for torch: half a gigabyte and seconds."""

import subprocess
import sys


def test_sound_needs_no_torch():
    code = "import mm_pipeline.audio, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
