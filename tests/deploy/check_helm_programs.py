"""Checks the chart's promises against the programs that it starts.

    check_helm_programs.py DIRECTORY-OF-BINARIES
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import rendered
import running
from pods import container, environment, labels_of, pod_of

BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/debug").resolve()

# Keys of a member's configuration that differ between members, and the pod's variable for each.
BY_THE_POD = {
    "name": "ROLLOUT_MEMBER_NAME",
    "zone": "ROLLOUT_ZONE",
    "tls.cert_file": "ROLLOUT_CERT_FILE",
    "tls.key_file": "ROLLOUT_KEY_FILE",
}
# Keys that the chart does not offer, and why.
NOT_OFFERED = {
    "tls.insecure_plaintext": "the chart has certificates, and pods of others share the network",
    "tls.insecure_plaintext_public": "the chart has certificates, and pods of others share the network",
}


class Started(unittest.TestCase):
    """The programs accept the chart's settings."""

    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="rollout-chart-")
        cls.at = pathlib.Path(cls.dir.name)
        workers = [f"{name}-{pool}-0" for name in ("rollout", "prod") for pool in ("qwen", "tenant")]
        running.certificates(BIN, cls.at / "tls", ["rollout-0", "prod-0"], workers)
        issue = [BIN / "rolloutctl", "cert", "init-issuer", "--ca-dir", cls.at / "ca", "--out-dir", cls.at / "issuer"]
        subprocess.run(issue, check=True, capture_output=True, timeout=60)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def here(self, text):
        """A text of the chart with this machine's paths."""
        text = text.replace("/etc/rollout/tls", str(self.at / "tls"))
        for volume in ("webhooks", "issuer", "join", "ca"):
            text = text.replace(f"/etc/rollout/{volume}", str(self.at / volume))
        text = text.replace("/var/lib/rollout", str(self.at / "var"))
        for url in ("s3://my-bucket/rollout", "gs://bucket/prefix"):
            text = text.replace(url, f"file://{self.at}/store")
        for port in ("7420", "7421", "7422", "7423", "9464"):
            text = text.replace(f'0.0.0.0:{port}"', '127.0.0.1:0"').replace(f'[::]:{port}"', '[::1]:0"')
        return text

    def env(self, thing, pod):
        env = {name: self.here(value) for name, value in environment(thing, pod).items()}
        if "ROLLOUT_WORKER_METRICS_LISTEN" in env:
            env["ROLLOUT_WORKER_METRICS_LISTEN"] = "127.0.0.1:0"
        return {"PATH": os.environ["PATH"]} | env

    def file(self, objects, thing, key):
        name = next(v["configMap"]["name"] for v in pod_of(thing)["volumes"] if v["name"] == "config")
        path = self.at / key
        path.write_text(self.here(objects["ConfigMap", name]["data"][key]))
        return path

    def ran(self, thing, args, env):
        program = BIN / container(thing)["command"][0]
        return subprocess.run([program, *args], env=env, capture_output=True, text=True, timeout=120)

    def test_members_and_workers_take_their_configuration(self):
        for case in rendered.CASES:
            objects = rendered.objects(rendered.render(case))
            for (kind, name), thing in objects.items():
                if kind != "StatefulSet" or name.endswith("-tiny"):
                    continue
                role = labels_of(thing)["app.kubernetes.io/component"]
                key = "coordinator.toml" if role == "member" else "worker.toml"
                path = self.file(objects, thing, key)
                flag, given = container(thing)["args"]
                self.assertEqual((flag, given), ("--config", f"/etc/rollout/{key}"))
                env = self.env(thing, f"{name}-0")
                self.issued_by_csi(thing, f"{name}-0")
                ended = self.ran(thing, ["--config", str(path), "--check-config"], env)
                with self.subTest(case=case, name=name):
                    self.assertEqual(ended.returncode, 0, ended.stderr)
                    self.assertIn(f"{name}-0", ended.stdout)

    def issued_by_csi(self, thing, pod):
        """Stands in for cert-manager's driver: puts files of the same names into each pod's volume."""
        for volume in pod_of(thing)["volumes"]:
            told = volume.get("csi", {}).get("volumeAttributes", {})
            for key, ending in (("certificate-file", "pem"), ("privatekey-file", "key")):
                if told:
                    there = self.at / "tls" / told[f"csi.cert-manager.io/{key}"]
                    there.write_bytes((self.at / "tls" / f"{pod}.{ending}").read_bytes())
                    there.chmod(0o600)

    def schema_of_a_member(self):
        asked = [BIN / "rolloutctl", "config", "schema", "--of", "coordinator"]
        return json.loads(subprocess.run(asked, check=True, capture_output=True, timeout=60).stdout)["properties"]

    def section_of(self, name, schema):
        """The section with every possible key at its default."""
        lines = [f"[{name}]"]
        for key, known in schema.get("properties", {}).items():
            lines.append(f"{key} = {json.dumps(known.get('default', '127.0.0.1:1'))}")
        return "\n".join(lines) + "\n"

    def test_every_key_of_a_member_is_written_by_a_value_or_by_the_pod_or_is_not_offered_for_a_reason(self):
        objects = rendered.objects(rendered.render("everything", over={"members": {"config": ""}}))
        written = running.toml(objects["ConfigMap", "prod-members"]["data"]["coordinator.toml"])
        variables = environment(objects["StatefulSet", "prod"], "prod-0")
        found = set()
        for name, schema in self.schema_of_a_member().items():
            inner = schema.get("properties") if name in written else None
            keys = {name: name in written}
            if inner is not None:
                keys = {f"{name}.{key}": key in written[name] for key in inner}
            for key, there in keys.items():
                with self.subTest(key):
                    if key in BY_THE_POD:
                        self.assertFalse(there)
                        self.assertIn(BY_THE_POD[key], variables)
                        found.add(key)
                    elif key in NOT_OFFERED:
                        self.assertFalse(there)
                        found.add(key)
                    elif not there:
                        self.assertEqual(schema["type"], "object", "members.config has sections alone")
                        self.takes_section(name, schema)
        self.assertEqual(found, BY_THE_POD.keys() | NOT_OFFERED.keys(), "and nothing that there is not")

    def takes_section(self, name, schema):
        """The member accepts the section from `members.config`."""
        over = {"members": {"config": self.section_of(name, schema)}}
        objects = rendered.objects(rendered.render("everything", over=over))
        thing = objects["StatefulSet", "prod"]
        path = self.file(objects, thing, "coordinator.toml")
        self.assertIn(name, running.toml(path.read_text()))
        env = self.env(thing, "prod-0")
        ended = self.ran(thing, ["--config", str(path), "--check-config"], env)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_a_member_starts_with_its_audit_in_a_file_the_secret_of_its_notices_and_the_intermediate_ca(self):
        objects = rendered.objects(rendered.render("everything", over={"members": {"config": ""}}))
        thing = objects["StatefulSet", "prod"]
        path = self.file(objects, thing, "coordinator.toml")
        port = running.free_port()
        path.write_text(path.read_text().replace('http = "[::1]:0"', f'http = "127.0.0.1:{port}"'))
        (source,) = [v["secret"] for v in pod_of(thing)["volumes"] if v["name"] == "webhooks"]
        (mount,) = [m for m in container(thing)["volumeMounts"] if m["name"] == "webhooks"]
        (item,) = source["items"]
        self.assertEqual((source["secretName"], item["key"]), ("hooks", "webhooks-secret"))
        secret = pathlib.Path(self.here(mount["mountPath"])) / item["path"]
        secret.parent.mkdir(exist_ok=True)
        secret.write_text("whsec_" + "A" * 43 + "=")
        (issuer,) = [v["secret"] for v in pod_of(thing)["volumes"] if v["name"] == "issuer"]
        (mount,) = [m for m in container(thing)["volumeMounts"] if m["name"] == "issuer"]
        self.assertEqual(issuer["secretName"], "issuing")
        for item in issuer["items"]:
            self.assertTrue((pathlib.Path(self.here(mount["mountPath"])) / item["path"]).exists())
        for there in ("store", "var"):
            (self.at / there).mkdir(exist_ok=True)
        with running.Member(BIN, path, self.env(thing, "prod-0"), self.at / "audited.log") as member:
            member.answers(port, "/healthz", 200)
        self.assertTrue((self.at / "var" / "audit.log").exists())

    def test_the_ports_of_the_containers_are_those_of_the_configuration(self):
        for case in rendered.CASES:
            objects = rendered.objects(rendered.render(case))
            full = rendered.values(case)["fullnameOverride"] or "rollout"
            toml = running.toml(objects["ConfigMap", f"{full}-members"]["data"]["coordinator.toml"])
            listen = toml["listen"]
            if "enrollment" in toml:
                listen["enrollment"] = toml["enrollment"]["listen"]
            ports = {p["name"]: p["containerPort"] for p in container(objects["StatefulSet", full])["ports"]}
            self.assertEqual({name: int(addr.rsplit(":", 1)[1]) for name, addr in listen.items()}, ports)
            for (kind, _), thing in objects.items():
                if kind == "StatefulSet" and "worker" in labels_of(thing)["app.kubernetes.io/component"]:
                    env = environment(thing, "p")
                    (port,) = container(thing)["ports"]
                    metrics = env["ROLLOUT_WORKER_METRICS_LISTEN"]
                    self.assertEqual(int(metrics.rsplit(":", 1)[1]), port["containerPort"])

    def test_a_member_without_a_cluster_lives_is_not_ready_and_shows_metrics(self):
        objects = rendered.objects(rendered.render("defaults"))
        thing = objects["StatefulSet", "rollout"]
        path = self.file(objects, thing, "coordinator.toml")
        port = running.free_port()
        path.write_text(path.read_text().replace('http = "127.0.0.1:0"', f'http = "127.0.0.1:{port}"'))
        only = container(thing)
        (self.at / "store").mkdir(exist_ok=True)
        env = self.env(thing, "rollout-0")
        with running.Member(BIN, path, env, self.at / "member.log") as member:
            paths = {probe: only[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")}
            member.answers(port, paths["livenessProbe"], 200)
            text = member.answers(port, paths["readinessProbe"], 503)
            self.assertIn("waiting", text)
            monitor = rendered.objects(rendered.render("everything"))["ServiceMonitor", "prod-members"]
            page = member.answers(port, monitor["spec"]["endpoints"][0]["path"], 200)
            self.assertIn("rollout_raft_has_leader 0", page)

    def test_the_bootstrap_and_the_test_ask_as_rolloutctl_wants_to_be_asked(self):
        for case in ("defaults", "everything"):
            objects = rendered.objects(rendered.render(case))
            for (kind, name), thing in objects.items():
                if kind not in ("Job", "Pod"):
                    continue
                env = self.env(thing, name) | {"ROLLOUT_TIMEOUT": "1s"}
                # No server is listening: the call is correct if that is its only complaint.
                ended = self.ran(thing, container(thing)["args"], env)
                with self.subTest(case=case, name=name):
                    self.assertEqual(ended.returncode, 3, ended.stderr)

    def test_the_bootstrap_names_every_member_with_its_ports(self):
        objects = rendered.objects(rendered.render("everything"))
        args = container(objects["Job", "prod-bootstrap"])["args"]
        members = [args[i + 1] for i, arg in enumerate(args) if arg == "--member"]
        domain = "prod-members.batch.svc.cluster.local"
        self.assertEqual(members[4], f"prod-4=prod-4.{domain}:7421,prod-4.{domain}:7420")
        self.assertEqual(len(members), 5)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
