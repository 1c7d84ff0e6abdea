"""The engine: requests in, deltas out."""

from llm_core.engine.engine import Engine
from llm_core.engine.settings import EngineSettings, EngineStats

__all__ = ["Engine", "EngineSettings", "EngineStats"]
