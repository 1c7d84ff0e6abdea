"""Work of many requests in common batches, run one after the other whenever what runs them is free.

Knows costs, owners, deadlines and cancellation; knows nothing of what a batch does, of torch or of Ray.
"""

from mm_pipeline.batcher.base import BatcherStats, BatchReport, Work, WorkFuture
from mm_pipeline.batcher.batcher import Batcher
from mm_pipeline.batcher.packing import FairQueue
from mm_pipeline.batcher.station import Station

__all__ = ["BatchReport", "Batcher", "BatcherStats", "FairQueue", "Station", "Work", "WorkFuture"]
