"""The shipped alert rules: well-formed, about metrics that there are, and going off when they should and only then."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gateway.metrics import GatewayMetrics
from runtime.metrics import Metrics
from tests.support.programs import require_program
from worker.metrics import WorkerMetrics

RULES = Path(__file__).parents[2] / "docs" / "alerts.yml"
TESTS = Path(__file__).with_name("alerts_test.yml")


def promtool(*arguments: str) -> None:
    tool = require_program("promtool", "prometheus")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules() -> None:
    promtool("check", "rules", str(RULES))


def test_the_rules_go_off_when_they_should_and_only_then(tmp_path: Path) -> None:
    tests = tmp_path / "alerts_test.yml"
    tests.write_text(TESTS.read_text().replace("RULES", str(RULES)))
    promtool("test", "rules", str(tests))


def test_every_metric_of_a_rule_is_one_that_a_process_shows() -> None:
    shown: set[str] = set()
    worker = Metrics()
    WorkerMetrics(worker)
    for metrics in (worker, GatewayMetrics()):
        shown |= {sample for family in metrics.registry.collect() for sample in _samples(family.name, family.type)}
    used = set(re.findall(r"\bmailboxd_\w+", RULES.read_text()))
    assert len(used) > 10
    assert used <= shown, used - shown


def _samples(name: str, kind: str) -> set[str]:
    return {name + "_total"} if kind == "counter" else {name}
