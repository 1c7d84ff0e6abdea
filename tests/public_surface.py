"""What others build on: public names and command-line flags, frozen in public_surface.json.

python -m tests.public_surface    writes the file anew after a deliberate change
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path

from serve_apps.cli import COMMANDS

FROZEN = Path(__file__).with_name("public_surface.json")
MODULES = (
    "llm_core.config",
    "llm_core.core",
    "llm_core.engine",
    "llm_core.errors",
    "llm_core.weights",
    "mm_pipeline.audio",
    "mm_pipeline.batcher",
    "mm_pipeline.content_key",
    "mm_pipeline.decoding",
    "mm_pipeline.encoders",
    "mm_pipeline.errors",
    "mm_pipeline.fetch",
    "mm_pipeline.image",
    "mm_pipeline.limits",
    "mm_pipeline.metrics",
    "mm_pipeline.options",
    "mm_pipeline.pipeline",
    "mm_pipeline.prompt",
    "mm_pipeline.recording",
    "mm_pipeline.store",
    "mm_pipeline.video",
    "serve_apps.app",
    "serve_apps.checkpoint",
    "serve_apps.inspect",
    "serve_apps.observability.catalogue",
    "serve_apps.settings",
)


def current() -> dict[str, dict[str, list[str]]]:
    """Public names by module, flags and positional arguments by command."""
    return {
        "names": {module: _names(module) for module in MODULES},
        "flags": {command: _flags(module) for command, (module, _) in COMMANDS.items()},
    }


def _names(module_name: str) -> list[str]:
    """`__all__`, or what the module itself defines under a name without underscore."""
    module = import_module(module_name)
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module_name
    )


def _flags(module_name: str) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False)
    import_module(module_name).add_arguments(parser)
    return sorted("/".join(action.option_strings) or action.dest for action in parser._actions)


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(current(), indent=2) + "\n")
