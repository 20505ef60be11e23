"""Checks the chart's backup and the manifest of a restore against the other objects of the chart, and the programs
that they call.

    check_backup.py DIRECTORY-OF-BINARIES
"""

import os
import pathlib
import subprocess
import sys
import unittest

import yaml

import rendered
import running

BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/debug").resolve()
KUBERNETES = rendered.ROOT / "deploy" / "kubernetes"
GUIDE = rendered.ROOT / "docs" / "kubernetes" / "backup.md"


def restore(member):
    return yaml.safe_load((KUBERNETES / "restore.yaml").read_text().replace("MEMBER", member))


class Backup(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = rendered.objects(rendered.render("a backup"))
        cls.members = cls.objects["StatefulSet", "rollout"]
        cls.pod = cls.members["spec"]["template"]["spec"]
        cls.cron = cls.objects["CronJob", "rollout-backup"]
        cls.saves = cls.cron["spec"]["jobTemplate"]["spec"]["template"]

    def test_nothing_is_backed_up_unless_it_is_asked_for_and_no_run_overlaps_another(self):
        self.assertNotIn(("CronJob", "rollout-backup"), rendered.objects(rendered.render("defaults")))
        self.assertEqual(self.cron["spec"]["concurrencyPolicy"], "Forbid")
        other = rendered.objects(rendered.render("everything"))["CronJob", "prod-backup"]
        self.assertEqual(other["spec"]["schedule"], "5 */6 * * *")
        (upload,) = other["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        self.assertEqual(upload["envFrom"], [{"secretRef": {"name": "backup-bucket"}}])

    def test_the_program_that_uploads_has_no_key_of_the_cluster(self):
        (upload,) = self.saves["spec"]["containers"]
        self.assertEqual({m["name"] for m in upload["volumeMounts"]}, {"backup", "tmp"})
        self.assertNotIn("envFrom", upload)

    def test_it_asks_as_the_bootstrap_does_with_the_admins_files(self):
        bootstrap = self.objects["Job", "rollout-bootstrap"]["spec"]["template"]["spec"]
        (asks,) = bootstrap["containers"]
        (save,) = self.saves["spec"]["initContainers"]
        for what in ("env", "image", "securityContext"):
            self.assertEqual(save[what], asks[what], what)
        (tls,) = [volume for volume in self.saves["spec"]["volumes"] if volume["name"] == "tls"]
        self.assertEqual([tls], bootstrap["volumes"])
        self.assertIn(asks["volumeMounts"][0], save["volumeMounts"])
        for what in ("securityContext", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"):
            self.assertEqual(self.saves["spec"][what], bootstrap[what], what)

    def test_the_upload_copies_the_saved_snapshot(self):
        (save,), (upload,) = self.saves["spec"]["initContainers"], self.saves["spec"]["containers"]
        (command,) = save["args"]
        place = next(m["mountPath"] for m in save["volumeMounts"] if m["name"] == "backup")
        self.assertIn(f'save "{place}/', command)
        self.assertEqual(upload["args"][2], next(m["mountPath"] for m in upload["volumeMounts"] if m["name"] == "backup"))

    def test_the_network_policy_lets_it_reach_the_members_and_no_service_sends_anybody_to_it(self):
        rules = self.objects["NetworkPolicy", "rollout-members"]["spec"]["ingress"]
        (to_clients,) = [rule for rule in rules if {"port": "client", "protocol": "TCP"} in rule["ports"]]
        allowed = to_clients["from"][0]["podSelector"]["matchLabels"]
        self.assertLessEqual(allowed.items(), self.saves["metadata"]["labels"].items())
        for labels in (self.saves["metadata"]["labels"], restore("rollout-0")["metadata"]["labels"]):
            for (kind, name), thing in self.objects.items():
                if kind == "Service":
                    self.assertFalse(thing["spec"]["selector"].items() <= labels.items(), name)

    def test_rolloutctl_accepts_the_arguments_of_the_job(self):
        (save,) = self.saves["spec"]["initContainers"]
        env = {"PATH": f"{BIN}:{os.environ['PATH']}", "ROLLOUT_ENDPOINTS": "127.0.0.1:1", "ROLLOUT_TIMEOUT": "1s"}
        env["ROLLOUT_INSECURE_PLAINTEXT"] = "true"
        ended = subprocess.run([*save["command"], *save["args"]], env=env, capture_output=True, text=True, timeout=60)
        # No server is listening: the call is correct if that is its only complaint.
        self.assertEqual(ended.returncode, 3, ended.stderr)

    def test_a_restore_has_the_members_volume_where_the_member_has_it_and_is_the_same_user(self):
        pod = restore("rollout-1")
        (claim,) = self.members["spec"]["volumeClaimTemplates"]
        (data,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "data"]
        self.assertEqual(data["persistentVolumeClaim"]["claimName"], f"{claim['metadata']['name']}-rollout-1")
        (only,), (member,) = pod["spec"]["containers"], self.pod["containers"]
        place = lambda c: next(m["mountPath"] for m in c["volumeMounts"] if m["name"] == "data")
        self.assertEqual(place(only), place(member))
        self.assertEqual(pod["spec"]["securityContext"], self.pod["securityContext"])
        self.assertEqual(only["image"], member["image"])
        self.assertEqual(only["securityContext"], member["securityContext"])

    def test_the_guide_restores_into_the_directory_that_the_member_opens(self):
        toml = running.toml(self.objects["ConfigMap", "rollout-members"]["data"]["coordinator.toml"])
        self.assertIn(f"--data-dir {toml['data_dir']} --member rollout-$i", GUIDE.read_text())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
