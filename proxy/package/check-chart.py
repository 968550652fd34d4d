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
    print(f"helm lint --strict: {report}", file=sys.stderr)
    if report["errors"] or bad or report["total_charts_linted"] != 1:
        sys.exit("the chart has problems")
    with open(generated, encoding="utf-8") as file:
        expected = next(it for it in yaml.safe_load_all(file) if it["kind"] == "DaemonSet")
    with Chart.load(path) as chart:
        rendered = yaml.safe_load(render(chart, {"image": image}))
        if rendered != expected:
            sys.exit(f"the chart differs from generate:\n{rendered}\n{expected}")
        for wrong in [
            {"site": "Not A Site"},
            {"image": 'a"b'},
            {"unknown": 1},
            {"nodeSelector": {"pool": 1}},
            {"imagePullSecrets": ["registry"]},
            {"resources": {"request": {}}},
        ]:
            try:
                chart.validate_schema(wrong)
            except HelmError:
                continue
            sys.exit(f"the chart takes the values {wrong}")
        # Every value, and a site that YAML would take for a number.
        more = {
            "nodeSelector": {"node-pool": "edge"},
            "imagePullSecrets": [{"name": "registry"}],
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        }
        print(text := render(chart, {"image": image, "site": "7", **more}))
        pod = yaml.safe_load(text)["spec"]["template"]["spec"]
        found = {name: pod.get(name) for name in more}
        found["resources"] = pod["containers"][0]["resources"]
        labels = {"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "7"}
        more["nodeSelector"] = {**labels, **more["nodeSelector"]}
        if found != more:
            sys.exit(f"the chart makes {found} of {more}")


def render(chart: Chart, values: dict[str, object]) -> str:
    return chart.render(values, name="meshport", namespace="meshport")[TEMPLATE]


main()
