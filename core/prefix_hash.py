"""Names of block contents: a chain of digests, so that equal names mean equal prefixes.

    key(0) = H(root || tokens of block 0)        root = H of the sorted (kind, value) pairs
    key(i) = H(key(i - 1) || tokens of block i)

Every value at the root is tagged with its kind and preceded by its length, so tenant "x" and salt "x", or
the pairs (ab, c) and (a, bc), never meet. H is BLAKE2b with 16 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from core.request import Request

DIGEST_BYTES = 16
_TOKEN_CODE = "I"
_TOKEN_BYTES = array(_TOKEN_CODE).itemsize


def root_key(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Digest of a set of (kind, value) pairs that must agree before two requests may share a block."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for pair in sorted(set(pairs)):
        for part in pair:
            raw = part.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
    return digest.digest()


@lru_cache(maxsize=1024)
def request_root(tenant: str, salt: str | None) -> bytes:
    """Root of a request's chain: its tenant and, where it has one, its salt (an empty salt is a salt)."""
    pairs = [("tenant", tenant)]
    if salt is not None:
        pairs.append(("salt", salt))
    return root_key(pairs)


def tokens_between(request: Request, start: int, stop: int) -> tuple[int, ...]:
    """Tokens start to stop - 1 of prompt and output."""
    prompt = request.prompt_token_ids
    size = len(prompt)
    if stop <= size:
        return prompt[start:stop]
    output = request.output_token_ids
    if start >= size:
        return tuple(output[start - size : stop - size])
    return prompt[start:] + tuple(output[: stop - size])


class PrefixChain:
    """The block keys of one request, computed as far as they were asked for."""

    __slots__ = ("_block_size", "_keys", "_request")

    def __init__(self, request: Request, block_size: int) -> None:
        self._request = request
        self._block_size = block_size
        self._keys: list[bytes] = []

    def key(self, index: int) -> bytes:
        """Key of full block `index` (its tokens must be known)."""
        keys = self._keys
        if index >= len(keys):
            self._extend(index + 1)
        return keys[index]

    def keys(self, start: int, stop: int) -> list[bytes]:
        """Keys of the full blocks start to stop - 1."""
        if stop > len(self._keys):
            self._extend(stop)
        return self._keys[start:stop]

    def _extend(self, count: int) -> None:
        keys, size = self._keys, self._block_size
        start = len(keys)
        raw = array(_TOKEN_CODE, tokens_between(self._request, start * size, count * size)).tobytes()
        width = size * _TOKEN_BYTES
        if len(raw) != (count - start) * width:
            raise IndexError(f"block {count - 1} of request {self._request.request_id} is not full yet")
        parent = keys[-1] if keys else request_root(self._request.tenant, self._request.cache_salt)
        for offset in range(0, len(raw), width):
            parent = blake2b(parent + raw[offset : offset + width], digest_size=DIGEST_BYTES).digest()
            keys.append(parent)


class QuickChain(PrefixChain):
    """The same chain with keys of 64 bits from Python's own hash of integers: a tenth of the time, for simulations only.

    Equal prefixes have equal keys; that different ones do is likely to 1 - n**2 / 2**65 over n blocks, not certain, and
    nobody is kept from making them meet.
    """

    def _extend(self, count: int) -> None:
        keys, size, request = self._keys, self._block_size, self._request
        parent = keys[-1] if keys else request_root(request.tenant, request.cache_salt)
        prompt = request.prompt_token_ids
        for start in range(len(keys) * size, count * size, size):
            tokens = prompt[start : start + size]
            if len(tokens) != size:
                tokens = tokens_between(request, start, start + size)
                if len(tokens) != size:
                    raise IndexError(f"block {start // size} of request {request.request_id} is not full yet")
            parent = hash((parent, tokens)).to_bytes(8, "little", signed=True)
            keys.append(parent)
