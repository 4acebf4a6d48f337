"""Order of the waiting queue: one small object a policy.

`key` never changes while a request waits, so a heap holds the queue and nothing is sorted again as time
passes. Ageing keeps that property: with every request gaining one level each `ageing` seconds,

    priority - (now - arrival) / ageing  <  the same of another   <=>   priority + arrival / ageing  <  ...

`rank` is the seniority that protects running requests: blocks only ever move from a junior to a senior,
so the most senior running request is never a victim, advances, and ends. That is why nothing livelocks.
"""

from __future__ import annotations

from core.config import QueuePolicy, SchedulerConfig
from core.request import Request, RequestStatus

Key = tuple[float, ...]


class QueueOrder:
    """Base of all orders: arrival.

    Attributes:
        label: the field's name.
        explain: one sentence for the page.
        fair: True if no request can be overtaken without a bound.
        by_tenant: the queue picks a tenant first, then that tenant's oldest request.
        by_prefix: the queue picks by the cached prefix, which changes from step to step.
        rank_field: name of the field of a request that alone decides `rank`; "" if it takes more than that.
    """

    value: QueuePolicy = QueuePolicy.FCFS
    label = "First come, first served (fcfs)"
    explain = "The request that arrived first is admitted first, so no request is overtaken and a large one holds up the rest."
    fair = True
    by_tenant = False
    by_prefix = False
    rank_field = "arrival_index"

    def key(self, request: Request, config: SchedulerConfig) -> Key:
        """Sort key of a waiting request; the smallest is next."""
        return (request.arrival_index,)

    def rank(self, request: Request, config: SchedulerConfig) -> Key:
        """Seniority of a running request; the smallest is the most senior."""
        return (request.arrival_index,)


class PriorityOrder(QueueOrder):
    """Lower number first; ageing improves the number with waiting time."""

    value = QueuePolicy.PRIORITY
    label = "Priority, lower number first (priority)"
    explain = (
        "The lowest priority number is admitted first and may take a seat or memory from a worse one;"
        " without ageing a bad number can wait for ever."
    )
    fair = False
    rank_field = ""

    def level(self, request: Request, config: SchedulerConfig) -> float:
        """Priority at time zero of the clock: a lower value is better at every time."""
        ageing_s = config.priority_ageing_s
        return request.priority + request.arrival_time_s / ageing_s if ageing_s else float(request.priority)

    def key(self, request: Request, config: SchedulerConfig) -> Key:
        return (self.level(request, config), request.arrival_index)

    rank = key


class ShortestPromptOrder(QueueOrder):
    """Fewest prompt tokens first."""

    value = QueuePolicy.SHORTEST_PROMPT
    label = "Shortest prompt first (shortest_prompt)"
    explain = (
        "The shortest prompt is admitted first, which lowers mean first-token time and lets long prompts wait without a bound."
    )
    fair = False

    def key(self, request: Request, config: SchedulerConfig) -> Key:
        return (request.status is not RequestStatus.PREEMPTED, request.num_prompt_tokens, request.arrival_index)


class ShortestJobOrder(QueueOrder):
    """Fewest prompt and output tokens first; the output length is max_tokens or one prediction for all."""

    value = QueuePolicy.SHORTEST_JOB
    label = "Shortest job first (sjf)"
    explain = (
        "The request with the fewest prompt and expected output tokens is admitted first, which lowers mean latency"
        " and lets long jobs wait without a bound."
    )
    fair = False

    def key(self, request: Request, config: SchedulerConfig) -> Key:
        output = config.predicted_output_tokens or request.sampling.max_tokens
        return (request.status is not RequestStatus.PREEMPTED, request.num_prompt_tokens + output, request.arrival_index)


class LongestPrefixOrder(QueueOrder):
    """Most cached prompt tokens first, within a window of the oldest requests, with a bound on overtaking."""

    value = QueuePolicy.LONGEST_PREFIX
    label = "Longest prefix match (lpm)"
    explain = (
        "The request with the longest cached prefix is admitted first, which saves prefill;"
        " one that was overtaken max_wait_overtakes times goes first, so a cold prompt waits that long at most."
    )
    fair = False
    by_prefix = True


class WeightedFairOrder(QueueOrder):
    """The tenant with the least service for its weight first, its oldest request first."""

    value = QueuePolicy.WEIGHTED_FAIR
    label = "Weighted fair queueing by tenant (wfq)"
    explain = (
        "The tenant with the fewest tokens served for its weight is next, and a tenant below its share takes seats or"
        " blocks back from one above it, so a flood from one tenant does not slow another."
    )
    by_tenant = True


QUEUE_ORDERS: dict[QueuePolicy, QueueOrder] = {
    order.value: order
    for order in (
        QueueOrder(),
        PriorityOrder(),
        ShortestPromptOrder(),
        ShortestJobOrder(),
        LongestPrefixOrder(),
        WeightedFairOrder(),
    )
}
