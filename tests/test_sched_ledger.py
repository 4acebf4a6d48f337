"""Accounts of tenants are bounded, and forgetting one never makes its tenant better off than the busy ones."""

from __future__ import annotations

from core.config import SchedulerConfig, TenantConfig
from core.tenant_ledger import MAX_ACCOUNTS, TenantLedger


def test_idle_accounts_without_settings_are_forgotten() -> None:
    ledger = TenantLedger(SchedulerConfig(tenants=(TenantConfig("listed", weight=2.0),)))
    ledger.account("listed").charge(1)
    busy = ledger.account("busy")
    ledger.arrive("busy", 0.0)
    busy.charge(500)
    for number in range(3 * MAX_ACCOUNTS):
        ledger.account(f"tenant-{number}").charge(number % 7)
    assert len(ledger.accounts) <= MAX_ACCOUNTS
    assert ledger.accounts["busy"] is busy
    assert ledger.accounts["listed"].served_tokens == 1


def test_a_forgotten_tenant_comes_back_level_with_the_busy_ones() -> None:
    ledger = TenantLedger(SchedulerConfig())
    ledger.arrive("busy", 0.0)
    ledger.account("busy").charge(1000)
    for number in range(2 * MAX_ACCOUNTS):
        ledger.account(f"tenant-{number}")
    ledger.arrive("tenant-0", 1.0)
    assert ledger.virtual_time("tenant-0") == ledger.virtual_time("busy") == 1000
