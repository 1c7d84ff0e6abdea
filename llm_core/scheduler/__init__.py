"""Which tokens of which sequences run in the next step. Integers only; torch is not imported here."""

from llm_core.scheduler.scheduler import Chunk, Scheduler, Step
from llm_core.scheduler.sequence import Sequence

__all__ = ["Chunk", "Scheduler", "Sequence", "Step"]
