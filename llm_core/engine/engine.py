"""The engine: a thread that owns the model and the pools, and a thread-safe front.

Callers put requests and aborts into an inbox; the thread empties it between steps. Nothing else crosses.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

from tokenizers import Tokenizer

from llm_core.config import load_config
from llm_core.core import FinishReason, GenerateRequest, OutputDelta
from llm_core.engine.answer import Answer, OnOutput
from llm_core.engine.memory import plan_memory, resolve_dtypes
from llm_core.engine.runner import Runner
from llm_core.engine.settings import EngineSettings, EngineStats
from llm_core.engine.validate import check_request
from llm_core.errors import CheckpointError, EngineDeadError, EngineOverloadedError, RequestError
from llm_core.kv.dual import DualPool
from llm_core.kv.storage import KVStorage
from llm_core.kv.tiers.settings import TierStats
from llm_core.kv.tiers.tiers import KVTiers
from llm_core.model import HybridDecoder
from llm_core.sampling.sampler import sample
from llm_core.sampling.text import Decoder
from llm_core.scheduler import Scheduler, SchedulerSettings, Sequence, Step
from llm_core.weights import CheckpointFolder, load_decoder

logger = logging.getLogger(__name__)

_MAX_FAILED_STEPS = 3
_RETRY_AFTER_S = 1.0


class Engine:
    """Continuous batching over one model. Made by `from_checkpoint`, run by `start`, ended by `shutdown`."""

    def __init__(self, model: HybridDecoder, decoder: Decoder, settings: EngineSettings) -> None:
        config = model.config
        plan = plan_memory(config, settings, model.dtype)
        self.settings = settings
        self.model = model
        self.max_context = plan.max_context
        self.hidden_size = config.hidden_size
        self.pool = DualPool(
            num_full_pages=plan.num_full_pages,
            num_swa_pages=plan.num_swa_pages,
            page_size=settings.page_size,
            window_keys=config.swa.window_keys or 1,
            step_tokens=settings.prefill_chunk_tokens,
        )
        self.storage = KVStorage(
            config,
            num_pages={"full": plan.num_full_pages, "swa": plan.num_swa_pages},
            page_size=settings.page_size,
            dtype=model.dtype,
            device=settings.device,
        )
        self._decoder = decoder
        self._eos = frozenset(config.eos_token_ids)
        self.tiers = (
            KVTiers(self.storage, model.cached_layers, settings.tiers) if settings.tiers.host_bytes else None
        )
        self._runner = Runner(model, self.storage, self.pool, self.tiers)
        self._scheduler = Scheduler(
            self.pool,
            SchedulerSettings(
                max_running=settings.max_running,
                step_tokens=settings.prefill_chunk_tokens,
                policy=settings.scheduling,
                waiting_credit=settings.waiting_credit,
                prefix_cache=settings.prefix_cache,
                window_stride=settings.prefix_window_stride,
            ),
            self.tiers,
        )
        # Written by any thread under the lock; read by the engine thread.
        self._wake = threading.Condition()
        self._inbox: list[Sequence | str] = []
        self._answers: dict[str, Answer] = {}
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        # Owned by the engine thread.
        self._num_finished = 0
        self._num_steps = 0
        self._num_failed_steps = 0
        self._num_prompt_tokens = self._num_cached_tokens = 0

    @classmethod
    def from_checkpoint(cls, folder: Path, settings: EngineSettings | None = None) -> Engine:
        """Loads weights and tokenizer of a hub-format folder; starts nothing.

        Raises:
            CheckpointError: the folder does not hold what its config.json promises, or has no tokenizer.json.
        """
        # OpenMP keeps a team of threads per calling thread, and puts all of them to sleep between loops once they
        # outnumber the cores: decode is a quarter slower when another thread has a team. So loading has a thread
        # of its own, which ends and takes its team along.
        with ThreadPoolExecutor(1, thread_name_prefix="load") as loader:
            return loader.submit(cls._load, folder, settings or EngineSettings()).result()

    @classmethod
    def _load(cls, folder: Path, settings: EngineSettings) -> Engine:
        config = load_config(folder)
        tokenizer_path = folder / "tokenizer.json"
        if not tokenizer_path.is_file():
            raise CheckpointError(f"{folder} has no tokenizer.json")
        checkpoint = CheckpointFolder(folder)
        dtypes = resolve_dtypes(settings)
        settings = _with_own_files(settings, f"{checkpoint.identity()}-{dtypes}-{settings.page_size}")
        model = load_decoder(
            config,
            checkpoint,
            dtype=dtypes.activations,
            weight_dtype=dtypes.weights,
            device=settings.device,
            backend=settings.backend,
        )
        return cls(model, Tokenizer.from_file(str(tokenizer_path)), settings)

    def start(self) -> None:
        """Starts the engine thread."""
        assert self._thread is None, "the engine runs already"
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Ends every request with "abort" and stops the thread. Idempotent."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        if self.tiers is not None:
            self.tiers.close()

    def submit(self, request: GenerateRequest, on_output: OnOutput) -> None:
        """Queues a request; `on_output` is called on the engine thread and must not block.

        Raises:
            RequestError: the request cannot be served as it is.
            EngineOverloadedError: `max_queued` requests wait already.
            EngineDeadError: the engine does not run.
        """
        check_request(
            request,
            vocab_size=self.model.config.vocab_size,
            hidden_size=self.hidden_size,
            max_context=self.max_context,
        )
        if not self.pool.fits_empty(len(request.token_ids) + request.sampling.max_tokens):
            raise RequestError(
                f"{len(request.token_ids)} prompt tokens and max_tokens {request.sampling.max_tokens} need more KV "
                "memory than this server has; shorten the prompt or lower max_tokens",
                param="max_tokens",
            )
        sequence = Sequence(request, submitted_s=time.monotonic())
        with self._wake:
            self._require_alive()
            if request.request_id in self._answers:
                raise RequestError(f"request id {request.request_id!r} is in use", param="request_id")
            if len(self._answers) >= self.settings.max_queued + self.settings.max_running:
                raise EngineOverloadedError(
                    f"{len(self._answers)} requests are under way, which is the limit; try again shortly",
                    retry_after_s=_RETRY_AFTER_S,
                )
            self._answers[request.request_id] = Answer(sequence, on_output, self._decoder, self._eos)
        if self.tiers is not None and self.tiers.has_files:
            num_pages = (sequence.num_prompt - 1) // self.pool.page_size
            keys = partial(sequence.page_keys, num_pages, self.pool.page_size)
            self.tiers.prefetch(keys, partial(self._arrive, sequence))
        else:
            self._arrive(sequence)

    def _arrive(self, sequence: Sequence) -> None:
        """The sequence may run, unless it has ended meanwhile."""
        with self._wake:
            answer = self._answers.get(sequence.request_id)
            if answer is not None and answer.sequence is sequence:
                self._inbox.append(sequence)
                self._wake.notify()

    def abort(self, request_id: str) -> None:
        """Ends a request and frees what it holds. Unknown and finished ids are ignored."""
        with self._wake:
            if request_id in self._answers:
                self._inbox.append(request_id)
                self._wake.notify()

    def generate(self, request: GenerateRequest) -> Iterator[OutputDelta]:
        """Deltas of one request, blocking. Raises as `submit` does."""
        deltas: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        self.submit(request, deltas.put)
        try:
            while True:
                delta = deltas.get()
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            self.abort(request.request_id)

    def stats(self) -> EngineStats:
        num_running = len(self._scheduler.running)
        full, swa = self.pool.full, self.pool.swa
        full_used, swa_used = full.num_used - full.num_idle, swa.num_used - swa.num_idle
        return EngineStats(
            num_running=num_running,
            num_waiting=max(0, len(self._answers) - num_running),
            num_finished=self._num_finished,
            num_steps=self._num_steps,
            full_pages_used=full_used,
            full_pages_total=full.num_pages,
            swa_pages_used=swa_used,
            swa_pages_total=swa.num_pages,
            kv_bytes_used=self.storage.num_bytes("full", full_used) + self.storage.num_bytes("swa", swa_used),
            full_pages_cached=full.num_idle,
            swa_pages_cached=swa.num_idle,
            num_preemptions=self._scheduler.num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            tiers=TierStats() if self.tiers is None else self.tiers.stats(),
        )

    def _require_alive(self) -> None:
        if self._is_stopping or self._thread is None or not self._thread.is_alive():
            raise EngineDeadError("the engine does not run")

    # What follows runs on the engine thread.

    def _loop(self) -> None:
        try:
            while self._take_inbox():
                self._end_late_requests()
                if self._scheduler.has_work:
                    self._step()
        finally:
            with self._wake:
                self._is_stopping = True
            for answer in list(self._answers.values()):
                self._finish(answer)
                self._tell_end(answer, "abort")

    def _take_inbox(self) -> bool:
        """Waits for work, then takes what callers left. False when the engine is to stop."""
        with self._wake:
            while not (self._inbox or self._is_stopping or self._scheduler.has_work):
                self._wake.wait()
            items, self._inbox = self._inbox, []
            if self._is_stopping:
                return False
        for item in items:
            if isinstance(item, Sequence):
                self._scheduler.add(item)
            elif (answer := self._answers.get(item)) is not None:
                self._finish(answer)
                self._tell_end(answer, "abort")
        return True

    def _end_late_requests(self) -> None:
        now_s = time.monotonic()
        for answer in list(self._answers.values()):
            timeout_s = answer.sequence.request.timeout_s
            if timeout_s is not None and now_s - answer.sequence.submitted_s > timeout_s:
                self._finish(answer)
                self._tell_end(answer, "error", f"the request was not done within its {timeout_s:g} s")

    def _step(self) -> None:
        step = self._scheduler.next_step()
        now_s = time.monotonic()
        for chunk in step.prefills:
            if chunk.sequence.scheduled_s is None:
                chunk.sequence.scheduled_s = now_s
                self._num_prompt_tokens += chunk.sequence.num_prompt
                self._num_cached_tokens += chunk.sequence.num_cached
        try:
            self._run(step)
        except Exception:
            logger.exception("a step of %d sequences failed", len(step.chunks))
            self._fail(step)
        else:
            self._num_failed_steps = 0
        self._num_steps += 1
        if self.settings.check_invariants:
            self._scheduler.check()

    def _run(self, step: Step) -> None:
        chunks, logits = self._runner.run(step)
        answers = [self._answers[chunk.sequence.request_id] for chunk in chunks]
        tokens, logprobs = ([], []) if not chunks else sample(logits, [a.sampler for a in answers])
        self._scheduler.complete(step)
        now_s = time.monotonic()
        for answer, token, logprob in zip(answers, tokens, logprobs, strict=True):
            try:
                is_over = answer.add_token(token, logprob, now_s) is not None
            except Exception:
                # The caller's own callback failed; its request ends, the others go on.
                logger.exception("the receiver of request %s failed", answer.sequence.request_id)
                is_over = True
            if is_over:
                self._finish(answer)

    def _fail(self, step: Step) -> None:
        """The requests of a failed step end with an error. After a few such steps in a row the engine stops."""
        for chunk in step.chunks:
            answer = self._answers.get(chunk.sequence.request_id)
            if answer is not None:
                self._finish(answer)
                self._tell_end(answer, "error", "the model failed on this request; it was not answered")
        self._num_failed_steps += 1
        if self._num_failed_steps >= _MAX_FAILED_STEPS:
            raise EngineDeadError(f"{self._num_failed_steps} steps failed in a row")

    def _finish(self, answer: Answer) -> None:
        """Frees what a request holds."""
        with self._wake:
            self._answers.pop(answer.sequence.request_id, None)
            # A request may end before the thread has taken it from the inbox.
            self._inbox = [item for item in self._inbox if item is not answer.sequence]
        if answer.sequence.kv is not None or answer.sequence in self._scheduler.waiting:
            self._scheduler.remove(answer.sequence)
        self._num_finished += 1

    def _tell_end(self, answer: Answer, reason: FinishReason, error: str | None = None) -> None:
        try:
            answer.end(reason, error)
        except Exception:
            logger.exception("the receiver of request %s failed", answer.sequence.request_id)


def _with_own_files(settings: EngineSettings, identity: str) -> EngineSettings:
    """KV files in a folder named after all that keys and values depend on besides the tokens."""
    tiers = settings.tiers
    if tiers.folder is None:
        return settings
    name = blake2b(identity.encode(), digest_size=16).hexdigest()
    return replace(settings, tiers=replace(tiers, folder=tiers.folder / name))
