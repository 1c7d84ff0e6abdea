"""Which tokens of which sequences run in the next step. Integers only; torch is not imported here."""

from llm_core.scheduler.queue import Policy
from llm_core.scheduler.scheduler import Chunk, Scheduler, Step
from llm_core.scheduler.sequence import Sequence
from llm_core.scheduler.settings import SchedulerSettings

__all__ = ["Chunk", "Policy", "Scheduler", "SchedulerSettings", "Sequence", "Step"]
