"""Checks metrics: a golden list has their names, and every mentioned metric is exported by a program.

    check_metrics.py
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
RULES_TEST = RULES.with_name("rules_test.yaml")
DASHBOARD = ROOT / "deploy" / "grafana" / "rollout.json"
NAME = re.compile(r"\brollout_[a-z0-9_]+\b")


def golden():
    lines = (ROOT / "tests" / "deploy" / "metrics.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def exported():
    """The names in the sources of the two daemons, which write each name as one literal."""
    found = set()
    for crate in ("coordinator", "worker"):
        for path in (ROOT / crate / "src").rglob("*.rs"):
            found |= set(re.findall(r'"(rollout_[a-z0-9_]+)"', path.read_text()))
    return found


def rules():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def anchors(page):
    return {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in page.read_text().splitlines()
        if line.startswith("#")
    }


class Metrics(unittest.TestCase):
    def test_names_are_the_golden_ones(self):
        self.assertEqual(sorted(exported()), golden(), "tests/deploy/metrics.txt: dashboards of others break")

    def test_the_operators_guide_tells_of_every_one(self):
        text = (ROOT / "docs" / "operating" / "monitoring.md").read_text()
        told = set(NAME.findall(text))
        # `rollout_x_total`, `_y_total`: two with one prefix share a line.
        for first, second in re.findall(r"`(rollout_[a-z_]+)`, `(_[a-z_]+)`", text):
            parts = first.split("_")
            told |= {"_".join(parts[:i]) + second for i in range(1, len(parts))}
        self.assertEqual([name for name in golden() if name not in told], [])

    def test_rules_use_existing_metrics(self):
        for rule in rules():
            with self.subTest(rule["alert"]):
                self.assertLessEqual(set(NAME.findall(rule["expr"])), set(golden()))
                self.assertIn(rule["labels"]["severity"], ("warning", "critical"))

    def test_each_rule_has_its_section_in_the_runbook_and_each_section_its_rule(self):
        sections = anchors(ROOT / "docs" / "alerts.md")
        links = [rule["annotations"]["runbook_url"] for rule in rules()]
        for link, rule in zip(links, rules()):
            self.assertTrue(link.endswith("/docs/alerts.md#" + rule["alert"].lower()), link)
        self.assertEqual({link.rsplit("#", 1)[1] for link in links}, sections - {"alerts"})

    def test_each_rule_is_seen_to_fire_and_to_keep_silent(self):
        cases = [case for test in yaml.safe_load(RULES_TEST.read_text())["tests"] for case in test["alert_rule_test"]]
        fires = {case["alertname"] for case in cases if case.get("exp_alerts")}
        silent = {case["alertname"] for case in cases if not case.get("exp_alerts")}
        names = {rule["alert"] for rule in rules()}
        self.assertEqual((names - fires, names - silent), (set(), set()))

    def test_the_dashboard_uses_existing_metrics(self):
        dashboard = json.loads(DASHBOARD.read_text())
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        asked = [target["expr"] for panel in panels for target in panel["targets"]]
        self.assertTrue(all(asked) and len(panels) > 10)
        variables = [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
        for expr in asked + variables:
            self.assertLessEqual(set(NAME.findall(expr)), set(golden()), expr)
        ids = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(ids), len(set(ids)))

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not on this machine")
    def test_promtool_takes_the_rules_and_their_tests_pass(self):
        subprocess.run(["promtool", "check", "rules", RULES], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["promtool", "test", "rules", RULES_TEST.name], check=True, cwd=RULES_TEST.parent)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
