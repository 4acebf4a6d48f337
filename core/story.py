"""The whole life of a request, kept for a while after its end.

submitted - admitted - chunk ... chunk - first token - preempted - resumed - ... - finished
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from core.request import Request, StoryEvent

KEPT_STORIES = 512


@dataclass(frozen=True, slots=True)
class Story:
    """One request's life; `events` are in order of time, `token_times_s` when each output token was delivered."""

    request_id: str
    status: str
    prompt_tokens: int
    output_tokens: int
    events: tuple[StoryEvent, ...]
    token_times_s: tuple[float, ...] = ()
    tenant: str = "default"

    def lines(self) -> list[str]:
        """One line an event, for a log or a failed assertion."""
        head = f"request {self.request_id}: {self.status}, {self.prompt_tokens} prompt and {self.output_tokens} output tokens"
        return [head, *(f"  step {e.step} at {e.time_s:.6f} s: {e.kind} {e.detail}".rstrip() for e in self.events)]


def story_of(request: Request) -> Story:
    """The story so far. Any thread: the list only grows, and copying it is one operation."""
    return Story(
        request.request_id,
        str(request.status),
        request.num_prompt_tokens,
        request.num_output_tokens,
        tuple(request.story[:]),
        tuple(request.token_times_s[:]),
        request.tenant,
    )


class StoryArchive:
    """Stories of the newest ended requests, at most `keep`."""

    def __init__(self, keep: int = KEPT_STORIES) -> None:
        self._keep = keep
        self._stories: OrderedDict[str, Story] = OrderedDict()  # a plain dict looks for its first key among all that left

    def add(self, story: Story) -> None:
        """Keep a story; the oldest makes room, an earlier one of the same id is replaced."""
        self._stories.pop(story.request_id, None)
        self._stories[story.request_id] = story
        if len(self._stories) > self._keep:
            self._stories.popitem(last=False)

    def get(self, request_id: str) -> Story | None:
        """The story of an ended request, None if it is not kept."""
        return self._stories.get(request_id)

    def ids(self) -> Iterable[str]:
        """Ids that are kept, oldest first."""
        return tuple(self._stories)

    def clear(self) -> None:
        """Forget all."""
        self._stories.clear()
