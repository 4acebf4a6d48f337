"""What may be asked of the live engine: every command passes here, is checked, queued, and answered by the engine's thread.

    submit, cancel, start, pause, configure, ... --> lease, limits --> [bounded queue] --> run at a step boundary --> result

Each names its session: the controller's, or `LOCAL` for code of this process; viewers get `ControlRefused`. A command
waits at most `wait_s` for the boundary; after that its outcome is "waiting", and it is carried out all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.commands import Command, CommandQueue, CommandResult, Outcome
from core.config import CacheConfig, SchedulerConfig, replace_knobs
from core.control import Lease, LiveLimits
from core.errors import ControlRefused
from core.live_board import Board, Message
from core.live_changes import KEEP, Keep, check_load, check_number, resolve_changes, words_of
from core.live_loop import EngineLoop
from core.live_view import LiveView
from core.load_spec import LoadSpec
from core.request import SLO, SamplingParams

WAIT_S = 2.0


class LiveCommands(LiveView):
    """The commanding half of `core.live.LiveEngine`; `limits` hold for every caller."""

    def __init__(self, board: Board, loop: EngineLoop, lease: Lease, commands: CommandQueue, limits: LiveLimits) -> None:
        super().__init__(board, loop, lease)
        self.limits = limits
        self._commands = commands

    # -- commands: carried out at the next step boundary ---------------------------------------------------

    def submit(
        self,
        text: str | None = None,
        *,
        session_id: str,
        chat: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        sampling: SamplingParams | None = None,
        request_id: str | None = None,
        tenant: str = "default",
        priority: int = 0,
        cache_salt: str | None = None,
        timeout_s: float | None = None,
        slo: SLO | None = None,
        source: str = "prompt",
        wait_s: float = WAIT_S,
        arrival_s: float | None = None,
    ) -> CommandResult:
        """Queue a prompt, given as text, as a conversation or as token ids; the value is the request's id.

        Args:
            timeout_s: the request is cancelled this long after its arrival.
            arrival_s: when it came, by `now()`; by default this call. TTFT and E2E count from here.

        Raises:
            ControlRefused: for a viewer, above a limit, or while the engine starts.
        """
        self._note(session_id, "submit", lambda: self._lease.check(session_id), only_refusals=True)
        came_s = self.now() if arrival_s is None else arrival_s
        ids = self._prompt_ids(text, chat, token_ids)
        params = sampling or SamplingParams()
        check_number("max_tokens", params.max_tokens, self.limits.max_output_tokens)

        def run() -> CommandResult:
            engine, limits, streams = self._host.engine, self.limits, self._board.streams
            waiting = engine.scheduler.num_waiting
            if waiting >= limits.max_waiting:
                raise ControlRefused(
                    f"{waiting} requests wait already, the limit is {limits.max_waiting}; try again later", is_temporary=True
                )
            if streams.num_open >= limits.max_streams:
                raise ControlRefused(
                    f"{limits.max_streams} answers are being written already; try again later", is_temporary=True
                )
            accepted_id = engine.add_request(
                ids,
                params,
                request_id=request_id,
                tenant=tenant,
                priority=priority,
                cache_salt=cache_salt,
                deadline_s=None if timeout_s is None else came_s + timeout_s,
                slo=slo or SLO(),
                source=source,
                arrival_time_s=came_s,
            )
            streams.open(accepted_id, len(ids))
            return CommandResult(Outcome.ACCEPTED, f"request {accepted_id} is queued", accepted_id)

        detail = f"{len(ids)} prompt tokens, at most {params.max_tokens} more"
        return self._send(session_id, "submit", run, detail, wait_s, is_shown=source == "prompt")

    def cancel(self, request_id: str, *, session_id: str, wait_s: float = WAIT_S) -> CommandResult:
        """End a request in whatever state it is."""
        return self._order(session_id, "cancel", lambda: self._host.cancel(request_id), request_id, wait_s)

    def set_priority(self, request_id: str, priority: int, *, session_id: str, wait_s: float = WAIT_S) -> CommandResult:
        """Change a request's priority; a lower number is better."""

        def run() -> None:
            self._host.engine.set_priority(request_id, priority)

        return self._order(session_id, "priority", run, f"{request_id} to {priority}", wait_s)

    def start(self, *, session_id: str, wait_s: float = WAIT_S) -> CommandResult:
        """Run; also out of a failure that lost no request."""
        return self._order(session_id, "start", self._host.go_on, "", wait_s)

    def pause(self, *, session_id: str, wait_s: float = WAIT_S) -> CommandResult:
        """Hold at the next step boundary; nothing ages meanwhile."""
        return self._order(session_id, "pause", lambda: self._host.set_paused(True), "", wait_s)

    def step_once(self, *, session_id: str, steps: int = 1, wait_s: float = WAIT_S) -> CommandResult:
        """Pause, and run one step (or a few); the value is the number of steps that had something to run."""
        check_number("steps", steps, 100)

        def run() -> CommandResult:
            self._host.set_paused(True)
            done = sum(self._host.single_step() for _ in range(steps))
            return CommandResult(Outcome.ACCEPTED, f"{done} steps" if done else "nothing to run", done)

        return self._send(session_id, "step", run, str(steps), wait_s)

    def reset(self, *, session_id: str, wait_s: float = WAIT_S) -> CommandResult:
        """Cancel everything, empty the cache, begin again; the load starts afresh."""
        return self._order(session_id, "reset", self._host.reset, "", wait_s)

    def set_checks(self, on: bool, *, session_id: str, wait_s: float = WAIT_S) -> CommandResult:
        """Debug switch: check every conservation law after each step and command; a broken one stops the engine."""
        return self._order(session_id, "checks", lambda: self._host.set_checks(on), "on" if on else "off", wait_s)

    def set_speed(self, steps_per_s: float | None, *, session_id: str, wait_s: float = WAIT_S) -> CommandResult:
        """Run at most so many steps a second, to follow them by eye; None is as fast as it goes."""
        if steps_per_s is not None and not 0.01 <= steps_per_s <= 1000:
            raise ControlRefused(f"the speed is {steps_per_s!r}; give 0.01 to 1000 steps a second, or none")

        def run() -> None:
            self._loop.set_speed(steps_per_s)

        return self._order(session_id, "speed", run, "no limit" if steps_per_s is None else f"{steps_per_s:g} steps/s", wait_s)

    def set_scheduler(self, *, session_id: str, wait_s: float = WAIT_S, **knobs: Any) -> CommandResult:
        """Change knobs of SchedulerConfig from the next step on."""
        return self.configure(session_id=session_id, scheduler=knobs, wait_s=wait_s)

    def set_cache(self, *, session_id: str, wait_s: float = WAIT_S, **knobs: Any) -> CommandResult:
        """Change knobs of CacheConfig; another size preempts what runs, which is then recomputed."""
        return self.configure(session_id=session_id, cache=knobs, wait_s=wait_s)

    def set_load(self, *, session_id: str, on: bool = True, wait_s: float = WAIT_S, **knobs: Any) -> CommandResult:
        """Start a load or change the running one by knobs of LoadSpec; `on=False` sends nothing more."""
        return self.configure(session_id=session_id, load=knobs if on else None, wait_s=wait_s)

    def set_model(self, *, session_id: str, wait_s: float = WAIT_S, **knobs: Any) -> CommandResult:
        """Start again with other knobs of EngineConfig (none: the same ones). Live requests end.

        If the new model cannot be loaded the old one comes back, and the result says why.
        """
        config = replace_knobs(self.config, **knobs)
        return self._order(
            session_id,
            "model",
            lambda: self._host.change_model(config),
            words_of(knobs, self.config) if knobs else "restart",
            wait_s,
        )

    def configure(
        self,
        *,
        session_id: str,
        scheduler: Mapping[str, Any] | SchedulerConfig | None = None,
        cache: Mapping[str, Any] | CacheConfig | None = None,
        load: Mapping[str, Any] | LoadSpec | Keep | None = KEEP,
        reset: bool = False,
        wait_s: float = WAIT_S,
    ) -> CommandResult:
        """Change several things at one step boundary, all or none: knobs by name, or whole objects.

        Args:
            load: None ends the load; left out, it runs on.
            reset: begin again with the new settings, as `reset`.
        """
        changes = {"scheduler": scheduler, "cache": cache} | ({} if load is KEEP else {"load": load})
        now = {"scheduler": self.config.scheduler, "cache": self.config.cache, "load": self.load}
        detail = "; ".join(f"{k}: {words_of(v, now[k])}" for k, v in changes.items() if v is not None or k == "load")

        def run() -> None:
            config = self._host.engine.config
            new_scheduler, new_cache = resolve_changes(config, scheduler, cache)
            spec = load
            if isinstance(spec, Mapping):
                spec = replace_knobs(self._host.driver.spec or LoadSpec(), **spec)
            if isinstance(spec, LoadSpec):
                check_load(spec, self.limits, self._host.max_model_len)
            self._host.reconfigure(new_scheduler, new_cache)
            if not isinstance(spec, Keep):
                self._host.set_load(spec)
            if reset:
                self._host.reset()

        return self._order(session_id, "configure", run, detail + (" and reset" if reset else ""), wait_s)

    # -- inside --------------------------------------------------------------------------------------------

    def _prompt_ids(self, text: str | None, chat: Sequence[Message] | None, token_ids: Sequence[int] | None) -> tuple[int, ...]:
        given = [p for p in (text, chat, token_ids) if p is not None]
        if len(given) != 1:
            raise ControlRefused(f"give the prompt once, as text, chat or token_ids; found {len(given)} of them")
        limits = self.limits
        if token_ids is not None:
            ids = tuple(token_ids)
        else:
            contents = [text] if text is not None else [str(m.get("content", "")) for m in chat or ()]
            chars = sum(len(c) for c in contents)
            if chars > limits.max_prompt_chars:
                raise ControlRefused(f"the prompt has {chars} characters, the limit is {limits.max_prompt_chars}; shorten it")
            ids = tuple(self._board.encode(text) if text is not None else self._board.encode_chat(chat or ()))
        if len(ids) > limits.max_prompt_tokens:
            raise ControlRefused(f"the prompt has {len(ids)} tokens, the limit is {limits.max_prompt_tokens}; shorten it")
        return ids

    def _order(self, session_id: str, name: str, run: Callable[[], None], detail: str, wait_s: float) -> CommandResult:
        def accept() -> CommandResult:
            run()
            return CommandResult(Outcome.ACCEPTED)

        return self._send(session_id, name, accept, detail, wait_s)

    def _send(
        self,
        session_id: str,
        name: str,
        run: Callable[[], CommandResult],
        detail: str,
        wait_s: float,
        *,
        is_shown: bool = True,
    ) -> CommandResult:
        """Queue a command and wait for its result, at most `wait_s`; the outcome is then "waiting"."""
        command = Command(name, run, session_id, detail, is_shown)

        def put() -> None:
            self._lease.check(session_id)
            self._commands.put(command)

        self._note(session_id, name, put, only_refusals=True)
        return command.pending.result(wait_s)
