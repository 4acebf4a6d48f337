"""The load driver: what is due is submitted, what is refused is counted, closed loops keep their users busy."""

from __future__ import annotations

from core.errors import RefusalReason, RequestRefused
from core.load_driver import MAX_SUBMISSIONS_A_STEP, REFUSED_PAUSE_S, LoadCounts, LoadDriver
from core.outputs import RequestEvent
from core.prompts import RandomPrompts, chat_frame
from core.workload import LengthSpec, LoadSpec


class Desk:
    """Accepts arrivals until it is told to refuse."""

    def __init__(self):
        self.taken = []
        self.refuse = False

    def submit(self, arrival):
        if self.refuse:
            raise RequestRefused("x", RefusalReason.QUEUE_FULL, "2000 requests wait already")
        self.taken.append(arrival)
        return f"r{len(self.taken) - 1}"


def driver_and_desk():
    desk = Desk()
    return LoadDriver(desk.submit, lambda spec: RandomPrompts(100)), desk


def load(**changes):
    return LoadSpec(prompt_tokens=LengthSpec.fixed(3), output_tokens=LengthSpec.fixed(2), **changes)


def ended(request_id, time_s, kind="finished"):
    return RequestEvent(request_id, kind, time_s, 1)


def test_open_loop_submits_what_is_due_with_its_own_arrival_time():
    driver, desk = driver_and_desk()
    assert (driver.feed(5.0), driver.label, driver.next_due_s) == (0, "", None)
    driver.start(load(process="constant", rate_per_s=2.0), now_s=10.0)
    assert driver.next_due_s == 10.5
    assert driver.feed(10.4) == 0
    assert driver.feed(12.1) == 4
    assert [a.time_s for a in desk.taken] == [10.5, 11.0, 11.5, 12.0]
    assert driver.counts == LoadCounts(offered=4, accepted=4)
    driver.on_events([ended("r0", 12.2), RequestEvent("r1", "token", 12.2, 1), ended("foreign", 12.2)])
    assert (driver.counts.ended, driver.counts.in_flight) == (1, 3)


def test_a_long_gap_does_not_flood_one_step():
    driver, desk = driver_and_desk()
    driver.start(load(process="constant", rate_per_s=1000.0), now_s=0.0)
    assert driver.feed(10.0) == MAX_SUBMISSIONS_A_STEP
    assert driver.feed(10.0) == MAX_SUBMISSIONS_A_STEP
    assert desk.taken[-1].time_s < 1.0


def test_closed_loop_keeps_every_user_busy_and_never_more():
    driver, _desk = driver_and_desk()
    driver.start(load(process="closed_loop", users=3), now_s=0.0)
    assert driver.feed(0.0) == 3
    assert driver.feed(9.0) == 0
    driver.on_events([ended("r1", 9.5), ended("r2", 9.5, "cancelled")])
    assert driver.feed(9.5) == 2
    assert driver.counts.in_flight == 3
    driver.on_events([ended("r1", 9.6)])
    assert driver.feed(9.6) == 0, "an end is counted once"


def test_a_refused_user_asks_again_after_a_pause_and_is_counted():
    driver, desk = driver_and_desk()
    desk.refuse = True
    driver.start(load(process="closed_loop", users=2), now_s=0.0)
    assert driver.feed(0.0) == 2
    assert driver.feed(0.0) == 0, "no busy loop at one boundary"
    assert driver.counts == LoadCounts(offered=2, refused=2, last_refusal="2000 requests wait already")
    desk.refuse = False
    assert driver.next_due_s == REFUSED_PAUSE_S
    assert driver.feed(REFUSED_PAUSE_S) == 2
    assert driver.counts.in_flight == 2


def test_a_changed_load_starts_afresh_and_a_stopped_one_sends_nothing():
    driver, _desk = driver_and_desk()
    driver.start(load(process="closed_loop", users=2), now_s=0.0)
    driver.feed(0.0)
    driver.start(load(process="burst", burst_size=2), now_s=1.0)
    driver.on_events([ended("r0", 1.0)])
    assert driver.counts == LoadCounts(), "the old load's requests are no longer counted"
    assert driver.feed(1.0) == 2
    assert driver.label.endswith("(all sent)")
    driver.stop()
    assert (driver.spec, driver.label, driver.feed(100.0)) == (None, "", 0)
    driver.on_events([ended("r2", 2.0)])
    assert driver.counts.ended == 1


def test_the_frame_of_a_chat_template_is_found():
    def encode(text):
        return list(text.encode())

    assert chat_frame(encode, lambda m: [1, 2, *encode(m), 3]) == ([1, 2], [3])
    assert chat_frame(encode, lambda m: [1, 2, *encode(m.lower()), 3]) == ([], [])
