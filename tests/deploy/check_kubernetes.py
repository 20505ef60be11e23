"""Checks the chart with other tools: Helm itself, and the schemas of each Kubernetes version from the oldest that
the chart supports to the newest.

    check_kubernetes.py

`ROLLOUT_KUBERNETES_SCHEMAS` is a folder with one folder per version; `tools.sh` fetches it. No test here installs
the chart in a cluster, where the API server checks more than schemas do.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import yaml

import rendered

SCHEMAS = os.environ.get("ROLLOUT_KUBERNETES_SCHEMAS", "")
MANIFESTS = sorted((rendered.ROOT / "deploy" / "kubernetes").glob("*.yaml"))
# Kinds that Kubernetes does not define itself: those of cert-manager and of Prometheus' operator.
FOREIGN = {"Certificate", "ServiceMonitor", "PrometheusRule"}


def helm(*args):
    return subprocess.run(["helm", *args], capture_output=True, text=True, timeout=120)


def with_values(values, *args):
    """Runs Helm on the chart with those values over its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        return helm(*args, "-f", file.name)


@unittest.skipUnless(shutil.which("helm"), "helm is not on this machine")
class ByHelm(unittest.TestCase):
    def test_it_finds_nothing_to_complain_of(self):
        for case, values in rendered.CASES.items():
            linted = with_values(values, "lint", "--strict", str(rendered.CHART))
            self.assertEqual(linted.returncode, 0, (case, linted.stdout))

    def test_it_renders_the_objects_that_the_other_tests_look_at(self):
        for case, values in rendered.CASES.items():
            for install in (True, False):
                args = ["template", "rollout", str(rendered.CHART), "-n", "batch"] + ["--is-upgrade"] * (not install)
                made = with_values(values, *args)
                self.assertEqual(made.returncode, 0, (case, made.stderr))
                ours = rendered.objects(rendered.render(case, install))
                self.assertEqual(rendered.objects({"helm": made.stdout}), ours, (case, install))

    def test_it_refuses_values_that_make_no_sense_and_says_which(self):
        for wrong in rendered.WRONG:
            made = with_values(wrong, "template", "rollout", str(rendered.CHART))
            self.assertNotEqual(made.returncode, 0, wrong)
            self.assertIn("don't meet the specifications of the schema", made.stderr)
            self.assertRegex(made.stderr, r"\n- (backup|image|members|store|tls|monitoring|pools)\b[^:]*: ")

    def test_it_asks_for_the_values_that_every_installation_must_set(self):
        for refusal, missing in rendered.REQUIRED.items():
            made = with_values(rendered.merged(rendered.EXAMPLE, missing), "template", "rollout", str(rendered.CHART))
            self.assertNotEqual(made.returncode, 0, refusal)
            self.assertIn(refusal, made.stderr)

    def test_a_kubernetes_older_than_the_chart_takes_is_refused(self):
        older = f"1.{oldest() - 1}.9"
        made = with_values({}, "template", "rollout", str(rendered.CHART), "--kube-version", older)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("kubeVersion", made.stderr)

    def test_its_package_has_all_that_the_folder_has(self):
        with tempfile.TemporaryDirectory() as there:
            packed = helm("package", str(rendered.CHART), "-d", there)
            self.assertEqual(packed.returncode, 0, packed.stderr)
            (archive,) = pathlib.Path(there).glob("*.tgz")
            # The dashboard and the rules are links to files outside the chart's folder: a package must contain the
            # files.
            everything = rendered.CASES["everything"]
            from_package = with_values(everything, "template", "rollout", str(archive), "-n", "batch")
        ours = rendered.objects(rendered.render("everything"))
        self.assertEqual(rendered.objects({"helm": from_package.stdout}), ours)


def oldest():
    """The oldest minor version, from Chart.yaml. In versions before 1.29, the schema of a job's rule for exit
    codes also requires conditions of the pod (kubernetes/kubernetes#120204), and Helm validates against the
    schema."""
    chart = yaml.safe_load((rendered.CHART / "Chart.yaml").read_text())
    return int(re.fullmatch(r">=1\.(\d+)\.0-0", chart["kubeVersion"]).group(1))


def versions():
    """Maps the minor version to the definitions of its schemas, in which an unknown field is an error."""
    found = {}
    for folder in pathlib.Path(SCHEMAS).glob("v1.*-local-strict"):
        minor = int(folder.name.split(".")[1])
        if minor >= oldest():
            found[minor] = json.loads((folder / "_definitions.json").read_text())["$defs"]
    return found


def kinds(definitions):
    """Maps (apiVersion, kind) to a definition's name."""
    found = {}
    for name, definition in definitions.items():
        for one in definition.get("x-kubernetes-group-version-kind", []):
            found["/".join(filter(None, (one["group"], one["version"]))), one["kind"]] = name
    return found


@unittest.skipUnless(SCHEMAS, "the schemas of Kubernetes are not on this machine")
class ByTheSchemas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.versions = versions()

    def complaints(self, objects):
        """The errors of each version about those objects."""
        for minor, definitions in sorted(self.versions.items()):
            names = kinds(definitions)
            for thing in objects:
                if thing["kind"] in FOREIGN:
                    continue
                name = names[thing["apiVersion"], thing["kind"]]
                schema = {"$defs": definitions, "$ref": f"#/$defs/{name}"}
                for error in jsonschema.Draft202012Validator(schema).iter_errors(thing):
                    yield f"1.{minor}, {thing['kind']} {thing['metadata']['name']}, {error.json_path}: {error.message}"

    def test_the_oldest_that_the_chart_takes_is_among_them(self):
        self.assertIn(oldest(), self.versions)
        self.assertGreater(len(self.versions), 5)

    def test_kubernetes_accepts_every_object_of_the_chart(self):
        for case in rendered.CASES:
            objects = rendered.objects(rendered.render(case)).values()
            self.assertEqual(list(self.complaints(objects)), [], case)

    def test_kubernetes_accepts_the_manifests_outside_of_the_chart(self):
        self.assertTrue(MANIFESTS)
        for path in MANIFESTS:
            objects = [thing for thing in yaml.safe_load_all(path.read_text()) if thing]
            self.assertEqual(list(self.complaints(objects)), [], path.name)

    def test_a_field_that_there_is_not_and_one_of_another_kind_are_found(self):
        members = rendered.objects(rendered.render("defaults"))["StatefulSet", "rollout"]
        wrong = members | {"spec": members["spec"] | {"podManagmentPolicy": "Parallel", "replicas": "3"}}
        found = list(self.complaints([wrong]))
        self.assertEqual(len(found), 2 * len(self.versions), found)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
