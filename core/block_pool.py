"""The physical KV blocks: who may use which, and what is remembered of the rest.

Owns the free list, the reference counts, the prefix index and the order of eviction. A block is in
exactly one of three sets, and every call moves whole blocks between them or changes nothing:

             allocate                      release, hashed
    FREE  ------------->  LIVE (refs >= 1)  ------------->  CACHED (refs 0, in the index)
     ^                      |   ^                               |     |
     +--- release, plain ---+   +------ allocate, shared -------+     |
     +---------------- forget / overwritten by allocate --------------+

    free + cached + live = num_blocks

Each operation checks everything it is about to do before it does the first part of it.

An entry of the index is valid while its block is marked published. Overwriting a block only clears that mark, one
byte, because it happens on the critical path of a decision; the dead entry goes when the block is published again.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from core.config import EvictionPolicy
from core.errors import InvariantError
from core.eviction import eviction_order

LOST_PER_BLOCK = 4
"""Names of overwritten contents that are remembered, for each block of the pool."""


class BlockPool:
    """`num_blocks` physical blocks, named 0 to num_blocks - 1.

    Attributes:
        last_use: for each block the step in which a table last gave it up.
        num_evictions: cached blocks overwritten so far.
        num_refaults: blocks published whose content had been in the index and was overwritten not long before.
        num_extra_refs: sum of (references - 1) over live blocks: copies that sharing saved.
    """

    __slots__ = (
        "_evictable",
        "_free",
        "_hash_of",
        "_index",
        "_lost",
        "_published",
        "_refs",
        "_uses",
        "last_use",
        "num_blocks",
        "num_evictions",
        "num_extra_refs",
        "num_refaults",
    )

    def __init__(self, num_blocks: int, eviction_policy: EvictionPolicy = EvictionPolicy.LRU) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self.num_refaults = 0
        self.num_extra_refs = 0
        self.last_use = array("q", [0]) * num_blocks
        self._free = array("q", range(num_blocks - 1, -1, -1))
        self._refs = array("i", [0]) * num_blocks
        self._uses = [0] * num_blocks
        self._published = bytearray(num_blocks)
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        # Contents that were overwritten lately, oldest first; a plain dict would look for its first entry among the deleted.
        self._lost: OrderedDict[bytes, int] = OrderedDict()
        self._evictable = eviction_order(eviction_policy, num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing of use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks kept for reuse that no request holds."""
        return self._evictable.size

    @property
    def num_live(self) -> int:
        """Blocks that at least one block table holds."""
        return self.num_blocks - len(self._free) - self._evictable.size

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out: free ones and cached ones."""
        return len(self._free) + self._evictable.size

    def ref_count(self, block_id: int) -> int:
        """Number of block tables that hold the block."""
        return self._refs[block_id]

    def is_cached(self, block_id: int) -> bool:
        """True for a block in the prefix index, held by a request or not."""
        return bool(self._published[block_id])

    def is_evictable(self, block_id: int) -> bool:
        """True for a block in the prefix index that no request holds."""
        return self._refs[block_id] == 0 and bool(self._published[block_id])

    def lookup(self, block_hash: bytes) -> int | None:
        """Return the block that holds the content named by `block_hash`, or None."""
        block_id = self._index.get(block_hash)
        return block_id if block_id is not None and self._published[block_id] else None

    def index_items(self) -> Iterable[tuple[bytes, int]]:
        """Pairs (hash, block) of the prefix index."""
        return [(block_hash, block_id) for block_hash, block_id in self._index.items() if self._published[block_id]]

    def columns(self) -> tuple[bytes, bytes, bytes]:
        """Copies of: references (int32), 1 where the index has the block (uint8), last_use (int64); one entry a block."""
        return self._refs.tobytes(), bytes(self._published), self.last_use.tobytes()

    def num_exclusive(self, block_ids: Iterable[int]) -> int:
        """How many of the blocks would become available if their one holder released them."""
        refs = self._refs
        return [refs[b] for b in block_ids].count(1)

    def allocate(self, count: int, shared: Sequence[int] = ()) -> list[int] | None:
        """Take a reference on each block of `shared` and hand out `count` more, in one indivisible act.

        New blocks come from the free list first, then in the order of eviction (never one of `shared`).
        Returns the new blocks, or None with nothing changed if there are not enough.

        Raises:
            InvariantError: if the free list or the eviction order hold a live block or fewer blocks than they
                claim, or if a block of `shared` is free; nothing has changed then either.
        """
        free, refs, evictable = self._free, self._refs, self._evictable
        from_free = min(count, len(free))
        missing = count - from_free
        woken = [b for b in shared if refs[b] == 0] if shared else ()
        if woken and not all(map(self._published.__getitem__, woken)):
            raise InvariantError(f"one of the blocks {woken} is free, so it cannot be shared")
        if missing > evictable.size - len(woken):
            return None
        taken = free[: -from_free - 1 : -1].tolist() if from_free else []
        evicted = evictable.first(missing, woken) if missing else ()
        taken += evicted
        live = 0
        for block_id in taken:
            live |= refs[block_id]
        if live or len(taken) != count:
            raise InvariantError(f"the free list or the eviction order is broken: asked for {count}, found {taken}")
        if from_free:
            del free[-from_free:]
        if evicted or woken:
            evictable.take(evicted, woken, self._uses)
            published = self._published
            for block_id in evicted:
                published[block_id] = 0
            self.num_evictions += len(evicted)
        for block_id in taken:
            refs[block_id] = 1
        if not shared:
            return taken
        uses = self._uses
        self.num_extra_refs += len(shared) - len(woken)
        for block_id in shared:
            refs[block_id] += 1
            uses[block_id] += 1
        return taken

    def release(self, block_ids: Sequence[int], step: int = 0) -> int:
        """Take one reference from each block; return how many are not live any more.

        The end of a table goes first, so that of one prompt the head is overwritten last.

        Raises:
            InvariantError: for a block that is not live or is listed twice; nothing has changed then.
        """
        refs = self._refs
        if len(set(block_ids)) != len(block_ids):
            raise InvariantError(f"a block is released twice in one call: {list(block_ids)}")
        for block_id in block_ids:
            if refs[block_id] < 1:
                raise InvariantError(f"block {block_id} is released though no table holds it (double free)")
        published, last_use = self._published, self.last_use
        cached: list[int] = []
        plain: list[int] = []
        for block_id in reversed(block_ids):
            left = refs[block_id] - 1
            refs[block_id] = left
            last_use[block_id] = step
            if left:
                self.num_extra_refs -= 1
            elif published[block_id]:
                cached.append(block_id)
            else:
                plain.append(block_id)
        if cached:
            self._evictable.extend(cached, self._uses)
        self._free.extend(plain)
        return len(cached) + len(plain)

    def publish(self, block_id: int, block_hash: bytes) -> bool:
        """Enter a full, computed, live block into the prefix index.

        Returns False if the content is there already in another block, which then stays the entry.

        Raises:
            InvariantError: if the block is not live or stands in the index under another hash.
        """
        if self._refs[block_id] < 1:
            raise InvariantError(f"block {block_id} is not live, so its content cannot be published")
        index, hash_of, published = self._index, self._hash_of, self._published
        held = hash_of[block_id]
        if published[block_id] and held != block_hash:
            raise InvariantError(f"block {block_id} is in the prefix index under another hash")
        there = index.get(block_hash)
        if there is not None:
            if published[there]:
                return False
            hash_of[there] = None
        if there is not None or self._lost.pop(block_hash, 0):
            self.num_refaults += 1
        if held is not None and held != block_hash:
            del index[held]
            self._lost[held] = 1
            if len(self._lost) > LOST_PER_BLOCK * self.num_blocks:
                self._lost.popitem(last=False)
        index[block_hash] = block_id
        hash_of[block_id] = block_hash
        published[block_id] = 1
        self._uses[block_id] = 1
        return True

    def forget_all(self) -> None:
        """Empty the prefix index; cached blocks become free, live ones stay with their holders."""
        cached = list(self._evictable)
        self._evictable.take(cached, (), self._uses)
        self._published = bytearray(self.num_blocks)
        self._hash_of = [None] * self.num_blocks
        self._index.clear()
        self._lost.clear()
        self._free.extend(cached)

    def set_eviction_policy(self, policy: EvictionPolicy) -> None:
        """Change the order of eviction; the present order is kept among blocks that the new one ranks equal."""
        order = list(self._evictable)
        self._evictable = eviction_order(policy, self.num_blocks)
        self._evictable.extend(order, self._uses)

    def check(self) -> None:
        """Check the laws that concern the pool alone.

        Raises:
            InvariantError: naming the first block that is out of order.
        """
        free, waiting = set(self._free), set(self._evictable)
        if len(free) != len(self._free) or len(waiting) != self._evictable.size:
            raise InvariantError("a block is twice in the free list or in the order of eviction")
        for block_id in range(self.num_blocks):
            refs, published, block_hash = self._refs[block_id], self._published[block_id], self._hash_of[block_id]
            evictable = block_id in waiting
            if refs < 0 or (refs > 0) + (block_id in free) + evictable != 1:
                raise InvariantError(f"block {block_id}: {refs} references, free {block_id in free}, cached {evictable}")
            if block_hash is not None and self._index.get(block_hash) != block_id:
                raise InvariantError(f"block {block_id} has a hash that the index gives to another block")
            if (published and block_hash is None) or (evictable and not published):
                raise InvariantError(f"block {block_id} is kept for reuse but has no entry in the index")
        extra = sum(refs - 1 for refs in self._refs if refs > 1)
        if extra != self.num_extra_refs:
            raise InvariantError(f"{extra} references beyond the first, {self.num_extra_refs} counted")
        for block_hash, block_id in self._index.items():
            if self._hash_of[block_id] != block_hash:
                raise InvariantError(f"the prefix index gives block {block_id} to a content that it does not hold")
