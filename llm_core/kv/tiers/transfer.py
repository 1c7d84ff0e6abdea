"""Copies blocks into the pools layer by layer: the first layers compute while the last ones are on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch

from llm_core.config import LayerKind
from llm_core.kv.tiers.base import PageLoad
from llm_core.kv.tiers.blocks import PageBlocks

Layer = tuple[LayerKind, int]
"""Kind of a layer, and the how manyth of its kind it is."""


class Transfer:
    """One copy under way, on a thread of its own; on a GPU on a stream of its own.

    Args:
        loads: pages of either kind.
        layers: the model's, in the order in which they run.
        bytes_per_s: makes the copy take as long as a link of that speed would need; for measuring on a CPU, where
            host and device are one memory.
    """

    def __init__(
        self,
        blocks: PageBlocks,
        loads: Sequence[PageLoad],
        layers: Sequence[Layer],
        device: torch.device,
        bytes_per_s: float | None = None,
    ) -> None:
        self._blocks = blocks
        self._loads = {kind: [load for load in loads if load.kind == kind] for kind in ("full", "swa")}
        self._layers = layers
        self._bytes_per_s = bytes_per_s
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self._stream is not None:
            # What still reads or writes these pages comes first.
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._copied = {layer: threading.Event() for layer in layers}
        self._on_device: dict[Layer, torch.cuda.Event] = {}
        self._error: BaseException | None = None
        self._sent_bytes = 0
        self._thread = threading.Thread(target=self._run, name="kv-load", daemon=True)
        self._thread.start()

    def wait(self, layer: Layer) -> None:
        """Until the pages of this layer hold what was copied. Raises what the copy failed with."""
        self._copied[layer].wait()
        if self._error is not None:
            raise self._error
        event = self._on_device.get(layer)
        if event is not None:
            torch.cuda.current_stream().wait_event(event)

    def join(self) -> None:
        """Until nothing is copied any more, whether it succeeded or not."""
        self._thread.join()

    def _run(self) -> None:
        begun = time.perf_counter()
        try:
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                pages = {
                    kind: torch.tensor([load.page for load in loads]) for kind, loads in self._loads.items()
                }
                for layer in self._layers:
                    self._copy(layer, pages[layer[0]], begun)
                    self._copied[layer].set()
        except BaseException as error:
            self._error = error
        finally:
            for event in self._copied.values():
                event.set()

    def _copy(self, layer: Layer, pages: torch.Tensor, begun: float) -> None:
        kind, index = layer
        if not len(pages):
            return
        rows = self._blocks.gather(kind, index, [load.block for load in self._loads[kind]])
        if self._bytes_per_s is not None:
            self._sent_bytes += rows.nbytes
            time.sleep(max(0.0, begun + self._sent_bytes / self._bytes_per_s - time.perf_counter()))
        self._blocks.scatter(kind, index, pages, rows)
        if self._stream is not None:
            self._on_device[layer] = self._stream.record_event()
            # Until the copy has run, the pinned rows must not go to somebody else.
            rows.record_stream(self._stream)
