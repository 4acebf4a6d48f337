"""What may share a step: one small object a policy.

decode first    [d d d d d | chunk . . . . . . ]          one step, one budget
prefill first   [prompt prompt | d d d ]                  decodes take what is left
separate        [prompt prompt]   then   [d d d d d]      never in one step
fixed           [rows x width, padded]                    until the longest row ends
"""

from __future__ import annotations

from dataclasses import dataclass

from core.config import BatchPolicy, SchedulerConfig


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How a step is composed.

    Attributes:
        label: the field's name.
        explain: one sentence for the page.
        prefill_first: prompts take the token budget before decodes do.
        separate: a step that runs prompts runs no decode.
        fixed: request-level batching.
    """

    value: BatchPolicy
    label: str
    explain: str
    prefill_first: bool = False
    separate: bool = False
    fixed: bool = False

    def splits_prompts(self, config: SchedulerConfig) -> bool:
        """True if a prompt may be computed over several steps.

        A recompute, or a prompt that has begun, may always be split once it is longer than the budget: it
        was accepted when it fitted, and could never run otherwise.
        """
        return self.fixed or (self.value is BatchPolicy.CHUNKED and config.enable_chunked_prefill)


BATCH_RULES: dict[BatchPolicy, BatchRule] = {
    rule.value: rule
    for rule in (
        BatchRule(
            BatchPolicy.CHUNKED,
            "Decode first, chunked prefill (chunked)",
            "Every running request decodes one token, then prompts fill the rest of the token budget in chunks, so a long"
            " prompt lengthens each step by at most the budget.",
        ),
        BatchRule(
            BatchPolicy.PREFILL_FIRST,
            "Prefill first (prefill_first)",
            "Whole prompts take the token budget before any decode, so first tokens come early and running requests stutter.",
            prefill_first=True,
        ),
        BatchRule(
            BatchPolicy.SEPARATE,
            "Prefill and decode in separate steps (separate)",
            "A step runs prompts or decodes, never both, so a decode step keeps its shape and waits while prompts run.",
            prefill_first=True,
            separate=True,
        ),
        BatchRule(
            BatchPolicy.WHOLE_PROMPTS,
            "Whole prompts mixed into decode steps (whole_prompts)",
            "Decodes run first and whole prompts ride in the same step, so every running request waits for the longest prompt.",
        ),
        BatchRule(
            BatchPolicy.FIXED,
            "Request-level fixed batch (static batching)",
            "A padded batch is admitted whole and held until its longest member ends, so ended rows and padding are computed"
            " and thrown away.",
            fixed=True,
        ),
    )
}
