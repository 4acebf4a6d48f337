"""The shape of a request-level batch: a rectangle that is decided once.

            <- width = longest member ->  <- one column a decode step ->
    row 0   . . . p p p p p p p p p p p   o o o o
    row 1   p p p p p p p p p p p p p p   o o o o o o o o o      the longest: the batch lasts this long
    row 2   . . . . . . . . p p p p p p   o o (held, computed, thrown away)

Prompts are padded on the left, so all rows reach their first output token in the same step. Under a token
budget the rectangle is run in slices of budget // rows columns.
"""

from __future__ import annotations

from core.request import Request, RequestStatus


class FixedBatch:
    """Members, the rectangle's width and how many of its columns have run.

    Attributes:
        rows: members at admission; ended ones still count, they are computed and thrown away.
        width: tokens of the longest member at admission.
        columns: columns that have run, prompt and decode.
    """

    __slots__ = ("_ids", "columns", "members", "rows", "width")

    def __init__(self, members: list[Request]) -> None:
        self.members = members
        self.rows = len(members)
        self.width = max(r.num_tokens for r in members)
        self.columns = 0
        self._ids = {id(r) for r in members}

    def holds(self, request: Request) -> bool:
        """True if the request is or was a row."""
        return id(request) in self._ids

    @property
    def num_live(self) -> int:
        """Rows that still yield tokens."""
        return sum(1 for r in self.members if r.status is RequestStatus.RUNNING)

    @property
    def in_prefill(self) -> bool:
        """True until the whole prompt rectangle has run."""
        return self.columns < self.width

    def skip_padding(self) -> None:
        """Pass over columns in which no live row has a token left (the longest member was cancelled in its prompt)."""
        if self.in_prefill:
            starts = [
                self.width - (r.num_tokens - r.num_computed_tokens) for r in self.members if r.status is RequestStatus.RUNNING
            ]
            self.columns = max(self.columns, min(starts))

    def next_columns(self, budget_tokens: int) -> int:
        """Columns of the next step: a slice of the prompt rectangle under the budget, or one decode column."""
        return min(self.width - self.columns, max(budget_tokens // self.rows, 1)) if self.in_prefill else 1

    def tokens_in(self, request: Request, columns: int) -> int:
        """Real tokens of a row among the next `columns` columns of the prompt rectangle."""
        target = self.width - (request.num_tokens - request.num_computed_tokens)
        return max(self.columns + columns - max(target, self.columns), 0)
