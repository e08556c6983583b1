"""Metrics for Prometheus.

There is one series per stage and none per peer, so even a thousand volunteers give only a few dozen numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

STATES = (
    "starting",
    "waiting",
    "training",
    "evaluating",
    "sampling",
    "pausing",
    "paused",
    "finishing",
    "finished",
    "stopping",
)


def metrics_text(run: dict[str, Any], pipeline: dict[str, Any], viewers: int) -> bytes:
    """The metrics in the text format 0.0.4, from the answers of /api/v1/run and /api/v1/pipeline."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Answers(run, pipeline, viewers))
    return generate_latest(registry)


class _Answers(Collector):
    def __init__(self, run: dict[str, Any], pipeline: dict[str, Any], viewers: int) -> None:
        self._run = run
        self._pipeline = pipeline
        self._viewers = viewers

    def collect(self) -> Iterator[Metric]:
        run = self._run
        facts = {"run": run["run"], "run_hash": run["run_hash"], "release": run["release"], "role": run["role"]}
        yield InfoMetricFamily("swarm_peer", "The run", {key: str(value or "") for key, value in facts.items()})
        yield from _gauges(run)
        yield from _counters(run)
        state = GaugeMetricFamily(
            "swarm_peer_state", "1 for the present state of the run, 0 for all others", labels=["state"]
        )
        for word in STATES:
            state.add_metric([word], float(run["state"]["word"] == word))
        yield state
        goodput = GaugeMetricFamily(
            "swarm_peer_goodput", "Tokens trained ÷ tokens that the peers could have trained", labels=["window"]
        )
        for window, value in run["goodput"].items():
            if value is not None:
                goodput.add_metric([window], value)
        yield goodput
        yield from _stages(run, self._pipeline)
        yield GaugeMetricFamily("swarm_peer_dashboard_viewers", "Open event streams", self._viewers)


def _gauges(run: dict[str, Any]) -> Iterator[Metric]:
    heldout = run["heldout"] or {}
    values = {
        "up": ("1 while a process of the run writes the log", float(run["live"])),
        "last_event_timestamp_seconds": ("Unix time of the last event", run["last_at"]),
        "step": ("Last decided step, counted from 1", None if run["step"] is None else run["step"] + 1),
        "steps_planned": ("Steps of the whole run", run["steps"]),
        "eta_seconds": ("Seconds until the last step at the current speed", run["eta_s"]),
        "loss": ("Training loss of the last step, nats per token", run["loss"]),
        "heldout_loss": ("Held-out loss, nats per token", heldout.get("loss")),
        "heldout_version": ("Model version of the held-out loss", heldout.get("version")),
        "gradient_norm": ("Gradient norm of the last step", run["gradient_norm"]),
        "tokens_per_second": ("Tokens per second of the last step", run["tokens_per_second"]),
        "ideal_tokens_per_second": (
            "Tokens per second that the present peers could train",
            run["ideal_tokens_per_second"],
        ),
        "efficiency": ("Efficiency of the last step", run["efficiency"]),
        "peers": ("Members of the run", run["peers"]),
        "peers_standby": ("Members without a stage", run["standby"]),
        "archived_version": ("Newest checkpoint in the archive", run["archived"]),
    }
    for name, (text, value) in values.items():
        if value is not None:
            yield GaugeMetricFamily(f"swarm_peer_{name}", text, value)


def _counters(run: dict[str, Any]) -> Iterator[Metric]:
    values = {
        "tokens": ("Tokens trained, also in steps that were rolled back", run["tokens"] + run["tokens_undone"]),
        "faults": ("Faults", run["faults"]),
        "fault_seconds": ("Seconds lost by faults", run["lost"]["seconds"]),
        "fault_tokens": ("Tokens lost by faults", run["lost"]["tokens"]),
    }
    for name, (text, value) in values.items():
        yield CounterMetricFamily(f"swarm_peer_{name}", text, value or 0)
    sent = CounterMetricFamily("swarm_peer_sent_bytes", "Bytes sent by all peers", labels=["kind"])
    for kind, value in sorted(run["bytes"]["by_kind"].items()):
        sent.add_metric([kind], value)
    yield sent


def _stages(run: dict[str, Any], pipeline: dict[str, Any]) -> Iterator[Metric]:
    replicas = GaugeMetricFamily("swarm_peer_stage_peers", "Peers of a stage in the last pass", labels=["stage"])
    for stage, count in enumerate(run["replicas"]):
        replicas.add_metric([str(stage)], count)
    yield replicas
    rates = GaugeMetricFamily(
        "swarm_peer_stage_rate", "Microbatches per second that a stage can compute", labels=["stage"]
    )
    slowest = GaugeMetricFamily("swarm_peer_stage_slowest", "1 for the stage that limits the swarm", labels=["stage"])
    for stage in pipeline["stages"]:
        label = [str(stage["stage"])]
        if stage["rate"] is not None:
            rates.add_metric(label, stage["rate"])
        slowest.add_metric(label, float(bool(stage["slowest"])))
    yield rates
    yield slowest
