"""Block tables: which physical blocks hold the tokens of which request, in logical order.

    token position p of a request  ->  block_ids[p // block_size], slot p % block_size

Owns the tables, the prefix chains and the swap space; the blocks themselves belong to `BlockPool`. A block
is entered into the prefix index only when all its tokens are computed, and a hit always leaves at least
one token to compute, because only a computed token yields logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from core.block_pool import BlockPool
from core.config import CacheConfig
from core.errors import InvariantError
from core.prefix_hash import PrefixChain
from core.request import Request
from core.slots import by_slots
from core.snapshot import PoolCounts
from core.swap_space import SwapSpace

_counts = by_slots(PoolCounts)
_computed_tokens: Callable[[BlockTable], int] = attrgetter("request.num_computed_tokens")


class BlockTable:
    """The blocks of one request.

    Attributes:
        block_ids: only grows (readers of earlier pictures keep the list and its length).
        num_published: leading blocks that need no further entry in the prefix index.
        last_step: a step in which the scheduler ran the request (the latest one that it noted).
        held_tokens: tokens in the table of an ended request that a fixed batch still holds; -1 otherwise.
    """

    __slots__ = ("block_ids", "block_size", "chain", "held_tokens", "last_step", "num_published", "request")

    def __init__(self, request: Request, chain: PrefixChain | None, block_size: int, step: int) -> None:
        self.request = request
        self.chain = chain
        self.block_ids: list[int] = []
        self.block_size = block_size
        self.num_published = 0
        self.last_step = step
        self.held_tokens = -1

    @property
    def capacity_tokens(self) -> int:
        """Token slots in the table."""
        return len(self.block_ids) * self.block_size

    @property
    def num_used_tokens(self) -> int:
        """Slots that hold a computed token."""
        return self.request.num_computed_tokens if self.held_tokens < 0 else self.held_tokens


class KVCacheManager:
    """All block tables over one pool."""

    def __init__(self, cache: CacheConfig, kv_bytes_per_token: float = 0.0) -> None:
        self.cache = cache
        self.block_size = cache.block_size
        self.block_bytes = round(kv_bytes_per_token * cache.block_size)
        self.pool = BlockPool(cache.num_blocks, cache.eviction_policy)
        self.swap = SwapSpace(cache.num_swap_blocks)
        self.tables: dict[str, BlockTable] = {}
        self.held: list[BlockTable] = []
        self.live_by_tenant: dict[str, int] = {}
        self.chain_kind: type[PrefixChain] = PrefixChain
        self._chains: dict[str, PrefixChain] = {}

    @property
    def num_blocks(self) -> int:
        """Physical blocks in the pool."""
        return self.pool.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that could be handed out now."""
        return self.pool.num_available

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens: ceil(tokens / block_size)."""
        return -(-tokens // self.block_size)

    def block_ids(self, request_id: str) -> tuple[int, ...]:
        """Block table of a request, logical order; empty if it holds nothing."""
        table = self.tables.get(request_id)
        return tuple(table.block_ids) if table else ()

    def counts(self) -> PoolCounts:
        """The pool now: live + cached + free = total."""
        pool, swap = self.pool, self.swap
        return _counts(pool.num_blocks, pool.num_live, pool.num_cached, pool.num_free, swap.num_blocks, swap.num_used)

    def slots_used(self) -> int:
        """Token slots of live blocks that hold a computed token; a shared slot counts once."""
        tokens = sum(map(_computed_tokens, self.tables.values())) + sum([t.held_tokens for t in self.held])
        return tokens - self.pool.num_extra_refs * self.block_size

    def all_tables(self) -> Iterator[BlockTable]:
        """Tables of running requests, then those that a fixed batch holds for ended ones."""
        yield from self.tables.values()
        yield from self.held

    def caches(self, request: Request) -> bool:
        """True if the request may read and fill the prefix index."""
        return self.cache.enable_prefix_caching and request.use_prefix_cache

    def prepare(self, request: Request) -> None:
        """Name the request's first block, so that a look-up for a cold prompt costs nothing in a decision."""
        if self.caches(request) and request.num_prompt_tokens > self.block_size:
            self._chain(request).key(0)

    def chain_of(self, request: Request) -> PrefixChain | None:
        """Names of the request's blocks; None if it may not read and fill the prefix index."""
        if not (self.cache.enable_prefix_caching and request.use_prefix_cache):
            return None
        return self._chains.get(request.request_id) or self._chain(request)

    def first_key(self, request: Request) -> bytes | None:
        """Key of the first block that a look-up would ask for; None if it would ask for none."""
        if not self.caches(request) or request.num_tokens <= self.block_size:
            return None
        return self._chain(request).key(0)

    def match(self, request: Request) -> list[int]:
        """Blocks that already hold the head of the request's tokens; the last token is always left out."""
        if not self.caches(request):
            return []
        lookup, key = self.pool.lookup, self._chain(request).key
        hits: list[int] = []
        for index in range((request.num_tokens - 1) // self.block_size):
            block_id = lookup(key(index))
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def blocks_needed(self, hits: Sequence[int], tokens: int) -> int:
        """Available blocks that `admit` would use up: new ones, and hits that no request holds now."""
        need = self.blocks_for(tokens) - len(hits)
        if hits:
            pool = self.pool
            need += sum(1 for b in hits if pool.is_evictable(b))
        return need

    def admit(self, request: Request, hits: Sequence[int], tokens: int, step: int) -> BlockTable | None:
        """Give the request the blocks of `hits` and as many new ones as `tokens` tokens need.

        Returns its table, or None with nothing changed if the pool has too few blocks.
        """
        if request.request_id in self.tables:
            raise InvariantError(f"request {request.request_id} already has a block table")
        before = self.pool.num_live
        new = self.pool.allocate(max(self.blocks_for(tokens) - len(hits), 0), hits)
        if new is None:
            return None
        table = BlockTable(request, self._chain(request) if self.caches(request) else None, self.block_size, step)
        table.block_ids = [*hits, *new]
        table.num_published = len(hits)
        self.tables[request.request_id] = table
        self._count(request.tenant, before)
        return table

    def admit_cold(
        self, requests: Sequence[Request], chains: Sequence[PrefixChain | None], blocks: Sequence[int], step: int
    ) -> list[list[int]] | None:
        """As `admit` of each of several requests without hits, given their chains (`chain_of`) and numbers of blocks.

        Returns the blocks of each, or None with nothing changed if the pool has too few.
        """
        if not self.tables.keys().isdisjoint([r.request_id for r in requests]):
            raise InvariantError(f"one of {[r.request_id for r in requests]} already has a block table")
        new = self.pool.allocate(sum(blocks))
        if new is None:
            return None
        tables, live, size, at = self.tables, self.live_by_tenant, self.block_size, 0
        shares: list[list[int]] = []
        for request, chain, count in zip(requests, chains, blocks, strict=True):
            table = tables[request.request_id] = BlockTable(request, chain, size, step)
            share = new[at : at + count]
            table.block_ids = share
            shares.append(share)
            at += count
            live[request.tenant] = live.get(request.tenant, 0) + count
        return shares

    def grow(self, table: BlockTable, tokens: int) -> list[int] | None:
        """Append blocks until the table holds `tokens` tokens; return them, or None with nothing changed."""
        count = self.blocks_for(tokens) - len(table.block_ids)
        if count <= 0:
            return []
        new = self.pool.allocate(count)
        if new is None:
            return None
        table.block_ids += new
        tenant = table.request.tenant
        self.live_by_tenant[tenant] += count
        return new

    def grow_by_one(self, tables: Sequence[BlockTable]) -> list[int] | None:
        """Append one block to each table; return the blocks, or None with nothing changed."""
        new = self.pool.allocate(len(tables))
        if new is None:
            return None
        for table, block_id in zip(tables, new, strict=True):
            table.block_ids.append(block_id)
        live = self.live_by_tenant
        if len(live) == 1:
            live[tables[0].request.tenant] += len(new)
        else:
            for table in tables:
                live[table.request.tenant] += 1
        return new

    def publish(self, table: BlockTable, num_computed_tokens: int) -> None:
        """Enter the blocks that are full and computed into the prefix index."""
        chain = table.chain
        if chain is None:
            return
        full, known = num_computed_tokens // self.block_size, table.num_published
        if known >= full:
            return
        enter = self.pool.publish
        for block_id, key in zip(table.block_ids[known:full], chain.keys(known, full), strict=True):
            enter(block_id, key)
        table.num_published = full

    def release(self, request_id: str, step: int) -> int:
        """Give all blocks of a request back; return how many are not live any more."""
        table = self.tables.pop(request_id)
        before = self.pool.num_live
        gone = self.pool.release(table.block_ids, step)
        self._count(table.request.tenant, before)
        return gone

    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request that has ended."""
        self._chains.pop(request_id, None)
        if self.swap.holds(request_id):
            self.swap.give_back(request_id)

    def hold(self, request_id: str) -> None:
        """Keep the blocks of an ended request until `release_held`: its row of a fixed batch still stands."""
        table = self.tables.pop(request_id)
        table.held_tokens = table.request.num_computed_tokens
        self.held.append(table)

    def release_held(self, step: int) -> int:
        """Give back the blocks of ended members of a fixed batch; return how many are not live any more."""
        gone = 0
        for table in self.held:
            before = self.pool.num_live
            gone += self.pool.release(table.block_ids, step)
            self._count(table.request.tenant, before)
        self.held = []
        return gone

    def swap_out(self, request: Request, step: int) -> tuple[tuple[int, int], ...] | None:
        """Move the computed blocks of a request to host memory and release all its device blocks.

        Returns the copies (device block, host block), or None with nothing changed if host memory is short.
        """
        table = self.tables[request.request_id]
        count = self.blocks_for(request.num_computed_tokens)
        if count == 0:
            return None
        host = self.swap.take(request.request_id, count)
        if host is None:
            return None
        copies = tuple(zip(table.block_ids[:count], host, strict=True))
        self.release(request.request_id, step)
        return copies

    def swap_in(self, request: Request, tokens: int, step: int) -> tuple[tuple[int, int], ...] | None:
        """Give a swapped request a table for `tokens` tokens; return the copies (host block, device block).

        None, with nothing changed, if the pool has too few blocks.
        """
        table = self.admit(request, (), tokens, step)
        if table is None:
            return None
        host = self.swap.give_back(request.request_id)
        return tuple(zip(host, table.block_ids[: len(host)], strict=True))

    def is_swapped(self, request_id: str) -> bool:
        """True if the request's KV lies in host memory."""
        return self.swap.holds(request_id)

    def apply_toggles(self, cache: CacheConfig) -> None:
        """Change what does not touch the tensors: order of eviction, prefix caching on or off."""
        if cache.eviction_policy is not self.cache.eviction_policy:
            self.pool.set_eviction_policy(cache.eviction_policy)
        if not cache.enable_prefix_caching and self.cache.enable_prefix_caching:
            self.pool.forget_all()
            for table in self.all_tables():
                table.chain = None
        self.cache = cache

    def clear_index(self) -> None:
        """Forget all cached content and all swapped content: the executor lost its memory."""
        self.pool.forget_all()
        self.swap.clear()

    def num_exclusive(self, request_id: str) -> int:
        """Blocks that would become available if the request gave its table back."""
        return self.pool.num_exclusive(self.tables[request_id].block_ids)

    def _chain(self, request: Request) -> PrefixChain:
        chain = self._chains.get(request.request_id)
        if chain is None:
            chain = self._chains[request.request_id] = self.chain_kind(request, self.block_size)
        return chain

    def _count(self, tenant: str, live_before: int) -> None:
        self.live_by_tenant[tenant] = self.live_by_tenant.get(tenant, 0) + self.pool.num_live - live_before


def resets_pool(old: CacheConfig, new: CacheConfig) -> bool:
    """True if a change of cache settings empties the pool (size of a block, of the pool or of the swap space)."""
    return (old.block_size, old.num_blocks, old.num_swap_blocks) != (new.block_size, new.num_blocks, new.num_swap_blocks)
