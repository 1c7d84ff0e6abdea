"""Who waits, and who is next.

Compute-aware order: the request with the smallest tag goes first, where

    tag = max(waiting_credit * arrival, tag of its user's request before) + weight(tokens not in the cache)
          + priority * priority_tokens
    weight(n) = step_tokens * ln(1 + n / step_tokens)

so that little work goes before much, but not for ever: what arrived when `waiting_credit` times the time since
makes up for the difference goes first. What fits a step counts for about its tokens; beyond that every doubling
counts the same, so that a short prompt passes the long ones and long ones hardly pass each other.

A request with n tokens to run is only overtaken by requests that arrive within (weight(n) + priority *
priority_tokens) / waiting_credit seconds after it, plus, behind other requests of its own user, the time that their
tokens count for. A user with many requests takes turns with the others, as in fair queueing by finish tags (Demers,
Keshav and Shenker 1989); requests without a user are each their own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from llm_core.scheduler.sequence import Sequence

Policy: TypeAlias = Literal["compute_aware", "fcfs"]

# What is in the cache changes while requests wait; every so often that many at the front are looked at again.
_LOOKED_AT_AGAIN, _LOOKED_AT_EVERY = 8, 8


class Queue:
    """Waiting sequences.

    Args:
        num_uncached: tokens of a sequence that would have to run if it were admitted now.
        waiting_credit: tokens that a second of waiting makes up for.
        priority_tokens: tokens that one level of priority counts for.
        step_tokens: most tokens of one step.
    """

    def __init__(
        self,
        num_uncached: Callable[[Sequence], int],
        *,
        policy: Policy,
        waiting_credit: float,
        priority_tokens: int,
        step_tokens: int,
    ) -> None:
        self._num_uncached = num_uncached
        self._policy = policy
        self._credit = waiting_credit
        self._priority_tokens = priority_tokens
        self._step_tokens = step_tokens
        self._tags: dict[Sequence, float] = {}
        self._arrivals = self._calls = 0
        self._user_tags: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._tags)

    def __iter__(self) -> Iterator[Sequence]:
        """In the order in which they go."""
        return iter(sorted(self._tags, key=self._tags.__getitem__))

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._tags

    def add(self, sequence: Sequence) -> None:
        """A sequence comes, or comes back after it was preempted, at its old place."""
        if not sequence.num_preempted:
            self._arrivals += 1
            sequence.base_tag = self._base_tag(sequence)
        self._tags[sequence] = self._measured(sequence)
        user = sequence.request.user
        if user and not sequence.num_preempted:
            # To users all tokens count alike.
            behind = sequence.base_tag - self._offset(sequence)
            self._user_tags[user] = behind + self._num_uncached(sequence)
            self._forget_idle_users(sequence.submitted_s)

    def remove(self, sequence: Sequence) -> None:
        del self._tags[sequence]

    def tag(self, sequence: Sequence) -> float:
        """As above; of a sequence that runs, with the tokens that are left."""
        if self._policy == "fcfs" or sequence in self._tags:
            return self._tags.get(sequence, sequence.base_tag)
        return sequence.base_tag + self.weight(sequence.num_tokens - sequence.num_computed)

    def weight(self, num_tokens: int) -> float:
        """What tokens to run count for, see above."""
        return self._step_tokens * math.log1p(num_tokens / self._step_tokens)

    def first(self) -> Sequence | None:
        """Who is next; now and then those at the front are measured anew."""
        self._calls += 1
        if self._policy != "fcfs" and self._calls % _LOOKED_AT_EVERY == 0:
            for sequence in heapq.nsmallest(_LOOKED_AT_AGAIN, self._tags, key=self._tags.__getitem__):
                self._tags[sequence] = self._measured(sequence)
        return min(self._tags, key=self._tags.__getitem__, default=None)

    def _measured(self, sequence: Sequence) -> float:
        if self._policy == "fcfs":
            return sequence.base_tag
        return sequence.base_tag + self.weight(self._num_uncached(sequence))

    def _base_tag(self, sequence: Sequence) -> float:
        request = sequence.request
        if self._policy == "fcfs":
            return self._arrivals
        arrival = self._credit * sequence.submitted_s
        behind = max(arrival, self._user_tags.get(request.user, arrival) if request.user else arrival)
        return behind + self._offset(sequence)

    def _offset(self, sequence: Sequence) -> float:
        return sequence.request.priority * self._priority_tokens

    def _forget_idle_users(self, now_s: float) -> None:
        """A user whose last tag time has caught up with is as good as new."""
        if len(self._user_tags) > 2 * len(self._tags) + 64:
            now = self._credit * now_s
            self._user_tags = {user: tag for user, tag in self._user_tags.items() if tag > now}
