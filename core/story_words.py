"""Words about a request: its blocks as ranges, its life as lines, a broken law with the story it concerns."""

from __future__ import annotations

from core.errors import InvariantError
from core.request import Request


def block_words(block_ids: tuple[int, ...]) -> str:
    """Block ids as ranges, logical order: "blocks 3-5 9"."""
    if not block_ids:
        return "no blocks"
    parts: list[str] = []
    start = last = block_ids[0]
    for block_id in (*block_ids[1:], -1):
        if block_id == last + 1:
            last = block_id
            continue
        parts.append(f"{start}-{last}" if last > start else str(start))
        start = last = block_id
    return "blocks " + " ".join(parts)


def story_lines(request: Request) -> str:
    """A request's whole life as text, for the message of a broken law."""
    lines = [
        f"request {request.request_id} ({request.status}), {request.num_computed_tokens} of {request.num_tokens} tokens computed:"
    ]
    lines += [f"  step {e.step} at {e.time_s:.6f} s: {e.kind} {e.detail}" for e in request.story]
    return "\n".join(lines)


def broken(request: Request | None, message: str) -> InvariantError:
    """An InvariantError that carries the story of the request concerned."""
    return InvariantError(message if request is None else f"{message}\n{story_lines(request)}")
