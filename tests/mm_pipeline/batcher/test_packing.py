"""Order, fairness, budgets and accounts of what waits, on random histories."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_pipeline.batcher import FairQueue, Work, WorkFuture
from mm_pipeline.batcher.queue import Item, WorkQueue
from mm_pipeline.errors import ItemTooLargeError

OWNERS = st.sampled_from("abcde")
# An addition by an owner at a cost, a removal of the n-th waiting item, or the next one taken.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), OWNERS, st.integers(1, 20)),
        st.tuples(st.just("remove"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("take"), st.integers(1, 25), st.just(0)),
    ),
    max_size=120,
)


@given(steps=STEPS)
@settings(max_examples=150, deadline=None)
def test_every_item_is_given_out_once_in_its_owners_order(steps) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, tuple[str, int]] = {}
    taken: list[tuple[str, int]] = []
    for ticket, (what, first, second) in enumerate(steps):
        if what == "add":
            queue.add(ticket, ticket=ticket, owner=first, cost=second)
            waiting[ticket] = (first, second)
        elif what == "remove":
            chosen = list(waiting)[first] if first < len(waiting) else -1
            assert queue.remove(chosen) == (None if chosen == -1 else chosen)
            waiting.pop(chosen, None)
        else:
            head = queue.peek()
            found = queue.take(first)
            assert (head is None) == (not waiting)
            assert (found is None) == (head is None or waiting[head][1] > first)
            if found is not None:
                assert found == head
                taken.append((waiting.pop(found)[0], found))
        assert len(queue) == len(waiting)
        assert queue.cost == sum(cost for _, cost in waiting.values())
        assert sorted(queue) == sorted(waiting)
        assert bool(waiting) or queue.num_owners == 0
    by_owner = defaultdict(list)
    for owner, ticket in taken:
        by_owner[owner].append(ticket)
    assert all(tickets == sorted(tickets) for tickets in by_owner.values())


@given(
    waiting=st.lists(st.tuples(OWNERS, st.integers(1, 20)), max_size=40),
    taken=st.integers(0, 30),
    later=st.lists(st.tuples(OWNERS, st.integers(1, 20)), max_size=30),
)
@settings(max_examples=150, deadline=None)
def test_a_new_owner_waits_for_at_most_one_item_of_each_other(waiting, taken, later) -> None:
    """Whatever waits already, and whatever comes afterwards."""
    queue: FairQueue[str] = FairQueue()
    for ticket, (owner, cost) in enumerate(waiting):
        queue.add(owner, ticket=ticket, owner=owner, cost=cost)
    for _ in range(taken):
        queue.take(20)
    queue.add("new", ticket=100, owner="new", cost=7)
    for ticket, (owner, cost) in enumerate(later, 101):
        queue.add(owner, ticket=ticket, owner=owner, cost=cost)
    before = []
    while (owner := queue.take(20)) != "new":
        before.append(owner)
    assert len(before) == len(set(before))


@given(costs=st.lists(st.lists(st.integers(1, 20), min_size=30, max_size=30), min_size=2, max_size=4))
@settings(max_examples=100, deadline=None)
def test_owners_who_always_wait_get_equal_cost(costs) -> None:
    """Over every stretch of time, up to the sum of the largest item of each of two owners."""
    queue: FairQueue[tuple[int, int]] = FairQueue()
    ticket = 0
    for owner, own in enumerate(costs):
        for cost in own:
            queue.add((owner, cost), ticket=ticket, owner=str(owner), cost=cost)
            ticket += 1
    served = [0] * len(costs)
    left = [len(own) for own in costs]
    history = [tuple(served)]
    while min(left):
        found = queue.take(20)
        assert found is not None
        owner, cost = found
        served[owner] += cost
        left[owner] -= 1
        history.append(tuple(served))
    for one in range(len(costs)):
        for other in range(one):
            bound = max(costs[one]) + max(costs[other])
            lead = [counts[one] - counts[other] for counts in history]
            assert max(lead) - min(lead) <= bound


def test_who_submits_one_by_one_gets_no_more_than_who_waits_with_all() -> None:
    queue: FairQueue[str] = FairQueue()
    for ticket in range(100):
        queue.add("many", ticket=ticket, owner="many", cost=1)
    queue.add("single", ticket=100, owner="single", cost=10)
    served = {"many": 0, "single": 0}
    for ticket in range(101, 161):
        found = queue.take(10)
        assert found is not None
        served[found] += 1
        if found == "single":
            queue.add("single", ticket=ticket, owner="single", cost=10)
    assert abs(served["many"] - 10 * served["single"]) <= 11


def test_removed_items_cost_their_owner_nothing_and_leave_nothing() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.add(0, ticket=0, owner="other", cost=1)
    for ticket in range(1, 1000):
        queue.add(ticket, ticket=ticket, owner="a", cost=9)
    for ticket in range(1, 999):
        assert queue.remove(ticket) == ticket
    assert len(queue._heads) < 40
    queue.add(1000, ticket=1000, owner="other", cost=1)
    assert [queue.take(9) for _ in range(4)] == [0, 999, 1000, None]


def test_a_cost_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="cost is 0"):
        FairQueue[int]().add(1, ticket=1, owner="a", cost=0)


def item(ticket: int, kind: str, cost: int, owner: str = "a", num_bytes: int = 1, **more: object) -> Item:
    work = Work(kind=kind, cost=cost, num_bytes=num_bytes, payload=None, owner=owner, **more)
    return Item(work=work, future=WorkFuture(), ticket=ticket, submitted=0.0)


@given(
    items=st.lists(st.tuples(st.sampled_from(["x", "y"]), OWNERS, st.integers(1, 10)), max_size=60),
    budget=st.integers(10, 30),
)
@settings(max_examples=100, deadline=None)
def test_batches_keep_to_the_budget_and_are_as_full_as_order_allows(items, budget) -> None:
    queue = WorkQueue({"x": budget, "y": budget}, max_items=100, max_bytes=100)
    for ticket, (kind, owner, cost) in enumerate(items):
        queue.add(item(ticket, kind, cost, owner))
    batches: list[tuple[str, list[int]]] = []
    while queue:
        kind = queue.next_kind()
        taken, dead = queue.take(kind, budget)
        assert taken
        assert not dead
        assert {one.work.kind for one in taken} == {kind}
        batches.append((kind, [one.work.cost for one in taken]))
    assert queue.num_bytes == 0
    assert sorted(cost for _, costs in batches for cost in costs) == sorted(cost for _, _, cost in items)
    for kind in "xy":
        own = [costs for name, costs in batches if name == kind]
        assert all(sum(costs) <= budget for costs in own)
        assert all(sum(first) + second[0] > budget for first, second in pairwise(own))
    # Kinds take turns while both wait.
    both = 2 * min(sum(name == kind for name, _ in batches) for kind in "xy")
    assert all(first[0] != second[0] for first, second in pairwise(batches[:both]))


def test_dead_items_are_handed_out_as_such_and_cost_no_budget() -> None:
    cancel = threading.Event()
    queue = WorkQueue({"x": 10}, max_items=9, max_bytes=9)
    queue.add(item(0, "x", 10, cancel=cancel))
    queue.add(item(1, "x", 10, deadline=time.monotonic()))
    queue.add(item(2, "x", 10, deadline=time.monotonic() + 60))
    cancel.set()
    taken, dead = queue.take("x", 10)
    assert [one.ticket for one in taken] == [2]
    assert [one.ticket for one in dead] == [0, 1]
    assert (len(queue), queue.num_bytes, queue.cost()) == (0, 0, {"x": 0})


def test_bounds() -> None:
    queue = WorkQueue({"x": 10}, max_items=2, max_bytes=100)
    with pytest.raises(ItemTooLargeError, match="costs 11; one of this kind may cost 10"):
        queue.check(item(0, "x", 11).work)
    with pytest.raises(ItemTooLargeError, match="takes 101 bytes; one may take 100"):
        queue.check(item(0, "x", 1, num_bytes=101).work)
    with pytest.raises(ValueError, match="kind is 'z'"):
        queue.check(item(0, "z", 1).work)
    with pytest.raises(ValueError, match="cost 0"):
        queue.check(item(0, "x", 0).work)
    with pytest.raises(ValueError, match="must be at least 1"):
        WorkQueue({"x": 0}, max_items=1, max_bytes=1)
    queue.add(item(0, "x", 10, num_bytes=60))
    assert queue.has_room(item(1, "x", 10, num_bytes=40).work)
    assert not queue.has_room(item(1, "x", 10, num_bytes=41).work)
    queue.add(item(1, "x", 10, num_bytes=1))
    assert not queue.has_room(item(2, "x", 10, num_bytes=1).work)
