"""Add and forget watched servers: this dashboard with one click, a server by its address, the targets of a Prometheus server.

Only the controller may, as with every command. A secret goes from the form straight to the scraper: the form clears
itself, and neither the address line nor the session keeps it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import psutil
import streamlit as st

from core.attach.scraper import Target, public_url
from core.attach.watch import Watch
from core.calibration import measured_device
from core.charts import roofline
from core.cost_model import CostModel, cost_model
from core.devices import DEVICE_PRESETS, DeviceSpec, device_named
from core.errors import BatchscopeError, ConfigError
from core.models_catalog import MODELS, model_named
from core.snapshot import EngineSnapshot
from pages.parts import engine_access, frame
from pages.parts.engine_access import Answer

OWN = "this dashboard"
UNKNOWN, HERE, BY_NAME = "not known", "this machine, measured", "by the served name"
DEVICES = (UNKNOWN, HERE, *(d.name for d in DEVICE_PRESETS))
_ANSWER = "attach_answer"


def device_of(choice: str, snapshot: EngineSnapshot) -> DeviceSpec | None:
    """The device behind a choice of the form; None where it is not known (yet)."""
    if choice == UNKNOWN:
        return None
    if choice == HERE:
        memory_bytes = float(psutil.virtual_memory().total)
        return None if snapshot.ceilings is None else replace(measured_device(snapshot.ceilings, memory_bytes), name=HERE)
    return device_named(choice)


def model_of(choice: str, tensor_parallel: int) -> CostModel | None:
    """The cost model behind a choice of the form; None leaves it to the name that the server serves."""
    return None if choice == BY_NAME else cost_model(model_named(choice), tensor_parallel=tensor_parallel)


def own_target(snapshot: EngineSnapshot) -> Target:
    """The metrics page of this very process, over its own port like any other server's."""
    host = str(st.get_option("server.address") or "127.0.0.1")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "localhost": "127.0.0.1"}.get(host, host)
    scheme = "https" if st.get_option("server.sslCertFile") else "http"
    path = f"/{str(st.get_option('server.baseUrlPath') or '').strip('/')}/metrics".replace("//", "/")
    token = os.environ.get("BATCHSCOPE_API_TOKEN")
    return Target(
        OWN,
        f"{scheme}://{host}:{st.get_option('server.port')}{path}",
        {"Authorization": f"Bearer {token}"} if token else {},
        model=roofline.model_of(snapshot.info) if snapshot.info else None,
        device=device_of(HERE, snapshot),
    )


def _guarded(run: Any) -> None:
    """Carry out a change of the list, for the controller only; what was wrong is kept as words."""
    access = engine_access.engine()
    if not access.is_controller:
        st.session_state[_ANSWER] = Answer(False, f"{access.holder or 'another session'} has control; this session only watches")
        return
    try:
        run()
        st.session_state[_ANSWER] = Answer(True)
    except BatchscopeError as error:
        st.session_state[_ANSWER] = Answer(False, str(error))


def watch_own(watch: Watch) -> None:
    """Watch this dashboard."""
    _guarded(lambda: watch.add(own_target(engine_access.engine().latest())))


def forget(watch: Watch, name: str) -> None:
    """Stop watching a server."""
    _guarded(lambda: watch.remove(name))


def _take_secret(key: str) -> str:
    """A text of a form, which the session then holds no more."""
    secret = str(st.session_state.get(key) or "")
    st.session_state[key] = ""
    return secret


def _headers(secret: str) -> dict[str, str]:
    text = secret.strip()
    if not text:
        return {}
    return {"Authorization": text if " " in text else f"Bearer {text}"}


def _add_server(watch: Watch) -> None:
    values = st.session_state
    address = _take_secret("attach_url").strip()  # an address may carry a key
    secret = _take_secret("attach_secret")
    seats = values.get("attach_seats")

    def run() -> None:
        url = address if "//" in address else f"http://{address}"
        if not address:
            raise ConfigError("the address is empty; give http://host:port of the server or of its metrics page")
        name = str(values.get("attach_name") or "").strip() or public_url(url).partition("//")[2].removesuffix("/metrics")
        group = int(values.get("attach_tp") or 1)
        watch.add(
            Target(
                name,
                url,
                _headers(secret),
                max_num_seqs=int(seats) if seats else None,
                model=model_of(str(values.get("attach_model") or BY_NAME), group),
                device=device_of(str(values.get("attach_device") or UNKNOWN), engine_access.engine().latest()),
            )
        )

    _guarded(run)


def _add_prometheus(watch: Watch) -> None:
    values = st.session_state
    address = _take_secret("attach_prometheus").strip()
    secret = _take_secret("attach_prometheus_secret")

    def run() -> None:
        url = address if "//" in address else f"http://{address}"
        watch.add_prometheus(
            url,
            _headers(secret),
            device=device_of(str(values.get("attach_prometheus_device") or UNKNOWN), engine_access.engine().latest()),
        )

    _guarded(run)


def _server_form(watch: Watch, locked: bool) -> None:
    with st.form("attach_server", clear_on_submit=True, border=False):
        st.text_input("Address", key="attach_url", placeholder="http://10.0.0.7:8000/metrics", help="Without a path: /metrics.")
        left, right = st.columns(2)
        left.text_input("Name", key="attach_name", placeholder="replica 0")
        right.text_input(
            "Secret", key="attach_secret", type="password", help="Bearer token, or a whole Authorization value. Not shown again."
        )
        left.selectbox("Device", DEVICES, key="attach_device", help="Ceilings of the roofline.")
        right.number_input(
            "Seats", value=None, min_value=1, key="attach_seats", placeholder="inferred", help="max_num_seqs of the server."
        )
        left.selectbox("Model", (BY_NAME, *MODELS), key="attach_model", help="For servers that export no FLOP counters.")
        right.number_input("Tensor parallel", value=1, min_value=1, max_value=64, key="attach_tp")
        st.form_submit_button("Watch it", type="primary", on_click=_add_server, args=(watch,), disabled=locked)


def _prometheus_form(watch: Watch, locked: bool) -> None:
    with st.form("attach_prometheus_form", clear_on_submit=True, border=False):
        st.text_input(
            "Prometheus server", key="attach_prometheus", placeholder="http://prometheus:9090", help="Its HTTP API, /api/v1."
        )
        left, right = st.columns(2)
        left.selectbox("Device of all targets", DEVICES, key="attach_prometheus_device")
        right.text_input("Secret", key="attach_prometheus_secret", type="password", help="For the Prometheus server only.")
        st.form_submit_button("Watch its targets", on_click=_add_prometheus, args=(watch,), disabled=locked)
    for source in watch.sources():
        with st.container(horizontal=True, vertical_alignment="center", key=f"source_{source.address}"):
            st.text(source.message or f"{source.address}: {source.found} targets that serve a model")
            st.button(
                "Forget",
                key=f"forget_{source.address}",
                on_click=lambda a=source.address: _guarded(lambda: watch.forget_prometheus(a)),
                disabled=locked,
            )


def toolbar(watch: Watch, names: list[str], chosen: str | None) -> None:
    """The buttons that change the list, and what became of the latest change."""
    locked = not engine_access.engine().is_controller
    with st.container(horizontal=True, key="attach_tools", gap="small", width="content"):
        with st.popover("Add a server", icon=":material/add:", width="content", key="attach_add"):
            _server_form(watch, locked)
        with st.popover("Prometheus", icon=":material/dns:", width="content", key="attach_prom"):
            _prometheus_form(watch, locked)
        st.button(
            "This dashboard",
            key="attach_own",
            icon=":material/monitor_heart:",
            on_click=watch_own,
            args=(watch,),
            disabled=locked or OWN in names,
        )
        st.button(
            "Forget" if chosen is None else f"Forget {frame.plain(chosen)}",
            key="attach_forget",
            icon=":material/close:",
            on_click=forget,
            args=(watch, chosen or ""),
            disabled=locked or chosen is None,
            help="Choose one server first." if chosen is None else None,
        )


def answer() -> None:
    """What was wrong with the latest change of the list; always one slot."""
    last: Answer | None = st.session_state.get(_ANSWER)
    with st.container(key="attach_answer_slot"):
        if last is not None and not last.ok:
            st.error(frame.plain(last.message), icon=":material/block:")
