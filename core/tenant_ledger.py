"""Who has been served how much: virtual time, token buckets and seats of each tenant.

    virtual_time += tokens / weight            the tenant with the least is next (fair queueing)
    level = min(burst, level + rate * dt) - tokens            at most `rate` tokens/s in the long run

A tenant that comes back after being idle is lifted to the least virtual time of the busy ones, so it cannot
save up service (virtual token counter, Sheng et al. 2024). Tokens that a recompute runs again are not charged.
The bucket gates admission only: a running request is never stalled for it while it holds memory, so a
bucket may go into debt, which is paid back before the next admission.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.config import SchedulerConfig, TenantConfig

BUCKET_BURST_S = 1.0
MAX_ACCOUNTS = 4096
"""Above this the accounts of idle tenants that are in no setting are closed, those with the least service first."""
_DEBT_TOLERANCE_TOKENS = 1e-6  # rounding of a refill must not keep a bucket shut


class Account:
    """One tenant: settings, gauges (running, queued, decode_rows) and counters (tokens)."""

    __slots__ = (
        "bucket_time_s",
        "bucket_tokens",
        "decode_rows",
        "hit_tokens",
        "name",
        "queried_tokens",
        "queued",
        "running",
        "served_tokens",
        "settings",
        "virtual_time",
    )

    def __init__(self, settings: TenantConfig, now: float) -> None:
        self.name = settings.name
        self.settings = settings
        self.running = 0
        self.queued = 0
        self.decode_rows = 0
        self.served_tokens = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.virtual_time = 0.0
        self.bucket_time_s = now
        self.bucket_tokens = self.burst_tokens

    @property
    def burst_tokens(self) -> float:
        """Most tokens that a full bucket holds: one second of its rate, at least 1 token."""
        rate = self.settings.max_tokens_per_s
        return max(rate * BUCKET_BURST_S, 1.0) if rate else 0.0

    @property
    def is_active(self) -> bool:
        """True while the tenant has a request in the engine."""
        return self.running + self.queued > 0

    def charge(self, tokens: int) -> None:
        """Book tokens that the model runs for the tenant."""
        self.served_tokens += tokens
        self.virtual_time += tokens / self.settings.weight
        if self.settings.max_tokens_per_s is not None:
            self.bucket_tokens -= tokens

    def refill(self, now: float) -> None:
        """Bring the bucket up to date."""
        rate = self.settings.max_tokens_per_s
        if rate is not None:
            self.bucket_tokens = min(self.burst_tokens, self.bucket_tokens + rate * max(now - self.bucket_time_s, 0.0))
            self.bucket_time_s = now

    def ready_at(self, now: float) -> float:
        """Time at which the bucket is out of debt, s; `now` if it is."""
        self.refill(now)
        rate = self.settings.max_tokens_per_s
        if rate is None or self.bucket_tokens >= -_DEBT_TOLERANCE_TOKENS:
            return now
        return now - self.bucket_tokens / rate


class TenantLedger:
    """The tenants that were seen; idle ones without settings are forgotten when there are more than MAX_ACCOUNTS."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.accounts: dict[str, Account] = {}
        self._config = config
        self._left_at = 0.0  # virtual time of the tenant that was busy last
        self.has_quotas = False
        self.has_block_quotas = False
        self.configure(config, 0.0)

    def configure(self, config: SchedulerConfig, now: float) -> None:
        """Take over weights and quotas; service received stays as it is."""
        self._config = config
        self.has_quotas = any((t.max_seqs or t.max_blocks or t.max_tokens_per_s) is not None for t in config.tenants)
        self.has_block_quotas = any(t.max_blocks is not None for t in config.tenants)
        for account in self.accounts.values():
            account.refill(now)
            fresh = account.settings.max_tokens_per_s is None
            account.settings = config.tenant(account.name)
            account.bucket_time_s = now
            account.bucket_tokens = account.burst_tokens if fresh else min(account.bucket_tokens, account.burst_tokens)

    def account(self, name: str, now: float = 0.0) -> Account:
        """The tenant's account, opened if it is new."""
        account = self.accounts.get(name)
        if account is None:
            if len(self.accounts) >= MAX_ACCOUNTS:
                self._close_idle()
            account = self.accounts[name] = Account(self._config.tenant(name), now)
        return account

    def _close_idle(self) -> None:
        """Forget half of the idle tenants without settings. Least virtual time first: a tenant that comes back is lifted
        to the least of the busy ones anyway, so those lose nothing."""
        listed = {t.name for t in self._config.tenants}
        idle = [a for a in self.accounts.values() if not a.is_active and a.name not in listed]
        idle.sort(key=lambda a: a.virtual_time)
        for account in idle[: (len(idle) + 1) // 2]:
            del self.accounts[account.name]

    def arrive(self, name: str, now: float) -> None:
        """A request of the tenant enters the queue for the first time."""
        account = self.account(name, now)
        if not account.is_active:
            busy = [a.virtual_time for a in self.accounts.values() if a.is_active]
            account.virtual_time = max(account.virtual_time, min(busy) if busy else self._left_at)
        account.queued += 1

    def leave(self, account: Account) -> None:
        """Note that a request of the tenant has ended (its gauges are already lowered)."""
        if not account.is_active:
            self._left_at = max(self._left_at, account.virtual_time)

    def virtual_time(self, name: str) -> float:
        """Tokens served for each unit of weight."""
        return self.account(name).virtual_time

    def over_quota(self, now: float) -> dict[str, str]:
        """Tenants that may not start another request now, with the quota in words."""
        if not self.has_quotas:
            return {}
        out: dict[str, str] = {}
        for name, account in self.accounts.items():
            limit = account.settings.max_seqs
            if limit is not None and account.running >= limit:
                out[name] = f"tenant {name} has {account.running} of {limit} seats"
            elif (ready := account.ready_at(now)) > now:
                rate = account.settings.max_tokens_per_s
                out[name] = f"tenant {name} is above {rate:g} tokens/s, {ready - now:.3g} s to go"
        return out

    def next_ready_s(self, now: float) -> float | None:
        """Earliest time at which a throttled tenant with queued requests may start one; None if none is throttled."""
        times = [a.ready_at(now) for a in self.accounts.values() if a.queued]
        late = [t for t in times if t > now]
        return min(late) if late else None

    def check_names(self) -> Iterable[str]:
        """Names of all tenants with a request in the engine."""
        return [name for name, account in self.accounts.items() if account.is_active]


def jain_index(values: Iterable[float]) -> float | None:
    """Jain's fairness index (sum x)^2 / (n * sum x^2): 1 is equal, 1/n is one tenant only; None without service."""
    xs = list(values)
    squares = sum(x * x for x in xs)
    return sum(xs) ** 2 / (len(xs) * squares) if squares else None
