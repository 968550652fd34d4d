"""Lints the chart with Helm's own library, and prints its DaemonSet for a site as YAML.

Fails where Helm has an error or a warning, where values that mean nothing are accepted, and where
the chart says anything else than `meshport generate daemonset`: check-chart.py CHART GENERATED IMAGE
"""

import sys

import yaml
from helm_python import HelmError
from helm_python.chart import Chart, lint

TEMPLATE = "meshport/templates/daemonset.yaml"
WARNING = 2


def main() -> None:
    path, generated, image = sys.argv[1:]
    report = lint(path, {}, strict=True)
    bad = [it for it in report["messages"] if it["severity"] >= WARNING]
    if report["errors"] or bad or report["total_charts_linted"] != 1:
        sys.exit(f"helm lint: {report}")
    with open(generated, encoding="utf-8") as file:
        expected = next(it for it in yaml.safe_load_all(file) if it["kind"] == "DaemonSet")
    with Chart.load(path) as chart:
        rendered = yaml.safe_load(render(chart, {"image": image}))
        if rendered != expected:
            sys.exit(f"the chart differs from generate:\n{rendered}\n{expected}")
        for wrong in [{"site": "Not A Site"}, {"image": 'a"b'}, {"unknown": 1}]:
            try:
                chart.validate_schema(wrong)
            except HelmError:
                continue
            sys.exit(f"the chart takes the values {wrong}")
        # A site that YAML would take for a number.
        print(render(chart, {"image": image, "site": "7"}))


def render(chart: Chart, values: dict[str, str]) -> str:
    return chart.render(values, name="meshport", namespace="meshport")[TEMPLATE]


main()
