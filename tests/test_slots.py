"""Records that are built past their constructor are the records that it would have built."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from core.outputs import NewRequestData, PassedOver, RequestEvent, SchedulerOutput
from core.records import StepRecord
from core.slots import by_columns, by_slots

KINDS = (SchedulerOutput, NewRequestData, PassedOver, RequestEvent, StepRecord)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_built_by_slots_is_one_of_its_kind(kind: type[Any]) -> None:
    values = list(range(len(dataclasses.fields(kind))))
    made, plain = by_slots(kind)(*values), kind(*values)
    assert type(made) is kind
    assert made == plain
    assert repr(made) == repr(plain)
    assert hash(made) == hash(plain)
    assert pickle.loads(pickle.dumps(made)) == plain
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(kind)[0].name, 0)
    assert by_slots(kind)(**{f.name: v for f, v in zip(dataclasses.fields(kind), values, strict=True)}) == plain
    assert by_columns(kind)(2, *([v, v] for v in values)) == [plain, plain]


@pytest.mark.parametrize("count", [2, 4])
def test_another_number_of_values_is_refused(count: int) -> None:
    with pytest.raises(TypeError):
        by_slots(PassedOver)(*range(count))
