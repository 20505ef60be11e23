"""What the chart promises, checked on what it renders to, and against the programs that it starts.

    check_helm.py DIRECTORY-OF-BINARIES
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import yaml

import rendered
import running

BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/debug").resolve()
PODS = ("StatefulSet", "Job", "Pod")

# Keys of a member's configuration that differ between members, and the variable of the pod that says each.
BY_THE_POD = {
    "name": "ROLLOUT_MEMBER_NAME",
    "zone": "ROLLOUT_ZONE",
    "tls.cert_file": "ROLLOUT_CERT_FILE",
    "tls.key_file": "ROLLOUT_KEY_FILE",
}
# Those that the chart does not offer, and why.
NOT_OFFERED = {
    "tls.insecure_plaintext": "the chart has certificates, and pods of others share the network",
    "tls.insecure_plaintext_public": "the chart has certificates, and pods of others share the network",
}


def pod_of(thing):
    return thing["spec"] if thing["kind"] == "Pod" else thing["spec"]["template"]["spec"]


def labels_of(thing):
    where = thing if thing["kind"] == "Pod" else thing["spec"]["template"]
    return where["metadata"]["labels"]


def container(thing):
    (only,) = pod_of(thing)["containers"]
    return only


def environment(thing, pod):
    """The container's variables in that pod; those that come from elsewhere are left out."""
    env = {"POD_NAME": pod}
    for one in container(thing).get("env", []):
        field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if field == "metadata.name":
            env[one["name"]] = pod
        elif field:
            # A label that the pod does not have.
            env[one["name"]] = ""
        else:
            env[one["name"]] = one["value"].replace("$(POD_NAME)", pod)
    return env


class Rendered(unittest.TestCase):
    """Of every case, installed and upgraded."""

    @classmethod
    def setUpClass(cls):
        cls.all = {
            (case, install): rendered.objects(rendered.render(case, install))
            for case in rendered.CASES
            for install in (True, False)
        }

    def each(self, *kinds):
        for (case, install), objects in self.all.items():
            for (kind, name), thing in objects.items():
                if not kinds or kind in kinds:
                    self.at = f"{case}, {'installed' if install else 'upgraded'}, {kind} {name}"
                    yield objects, thing

    def _formatMessage(self, message, standard):
        return f"{getattr(self, 'at', '')}: {super()._formatMessage(message, standard)}"

    def test_every_object_is_whole_and_has_a_name_that_kubernetes_takes(self):
        for _, thing in self.each():
            self.assertIn("apiVersion", thing)
            name = thing["metadata"]["name"]
            self.assertRegex(name, r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
            self.assertLessEqual(len(name), 52, "pods of it get a number and a hash")
            self.assertEqual(thing["metadata"]["labels"]["app.kubernetes.io/name"], "rollout")

    def test_selectors_select_the_pods_that_they_are_for(self):
        for objects, thing in self.each("StatefulSet"):
            selector = thing["spec"]["selector"]["matchLabels"]
            self.assertLessEqual(selector.items(), labels_of(thing).items())
            service = objects["Service", thing["spec"]["serviceName"]]
            self.assertLessEqual(service["spec"]["selector"].items(), labels_of(thing).items())
            self.assertEqual(service["spec"]["clusterIP"], "None")
            for constraint in pod_of(thing).get("topologySpreadConstraints", []):
                chosen = constraint["labelSelector"]["matchLabels"]
                self.assertLessEqual(chosen.items(), labels_of(thing).items())
        for objects, thing in self.each("Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"):
            spec = thing["spec"]
            chosen = spec.get("podSelector", spec.get("selector"))
            chosen = chosen.get("matchLabels", chosen)
            if thing["kind"] == "ServiceMonitor":
                things = [o["metadata"]["labels"] for (kind, _), o in objects.items() if kind == "Service"]
                wants_one = "workers" not in thing["metadata"]["name"]
            else:
                things = [labels_of(o) for (kind, _), o in objects.items() if kind in PODS]
                wants_one = "worker" not in chosen.get("app.kubernetes.io/component", "")
            found = [labels for labels in things if chosen.items() <= labels.items()]
            self.assertTrue(len(found) == 1 or not wants_one, (chosen, found))

    def test_ports_and_their_names_are_those_of_the_containers(self):
        for objects, thing in self.each("Service"):
            for pods in objects.values():
                if pods["kind"] != "StatefulSet":
                    continue
                if not thing["spec"]["selector"].items() <= labels_of(pods).items():
                    continue
                ports = {p["name"]: p["containerPort"] for p in container(pods)["ports"]}
                for port in thing["spec"]["ports"]:
                    self.assertEqual(ports[port["targetPort"]], port["port"])
        for _, thing in self.each("StatefulSet"):
            ports = {p["name"] for p in container(thing)["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container(thing):
                    self.assertIn(container(thing)[probe]["httpGet"]["port"], ports)

    def test_workers_have_an_account_of_their_own(self):
        seen = set()
        for _, thing in self.each(*PODS):
            account = pod_of(thing)["serviceAccountName"]
            worker = labels_of(thing).get("app.kubernetes.io/component") == "worker"
            self.assertEqual(account.endswith("-worker"), worker, account)
            seen.add(worker)
        self.assertEqual(seen, {True, False})
        for _, thing in self.each("ServiceAccount"):
            self.assertFalse(thing["automountServiceAccountToken"])

    def test_pods_ask_for_no_rights_and_mount_what_they_have(self):
        for _, thing in self.each(*PODS):
            pod, only = pod_of(thing), container(thing)
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertFalse(pod["automountServiceAccountToken"])
            self.assertFalse(pod["enableServiceLinks"], "a service's variables look like flags of ours")
            self.assertTrue(only["securityContext"]["readOnlyRootFilesystem"])
            self.assertEqual(only["securityContext"]["capabilities"]["drop"], ["ALL"])
            claims = thing["spec"].get("volumeClaimTemplates", [])
            have = [v["name"] for v in pod["volumes"]] + [c["metadata"]["name"] for c in claims]
            self.assertEqual(len(have), len(set(have)))
            self.assertEqual(sorted(have), sorted(m["name"] for m in only["volumeMounts"]))

    def test_members_start_together_are_spread_over_zones_and_found_before_they_are_ready(self):
        for objects, thing in self.each("StatefulSet"):
            if thing["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] != "member":
                continue
            self.assertEqual(thing["spec"]["podManagementPolicy"], "Parallel")
            self.assertIs(objects["Service", thing["spec"]["serviceName"]]["spec"]["publishNotReadyAddresses"], True)
            (spread,) = pod_of(thing)["topologySpreadConstraints"]
            self.assertEqual((spread["topologyKey"], spread["maxSkew"]), ("topology.kubernetes.io/zone", 1))
            strict = spread["whenUnsatisfiable"] == "DoNotSchedule"
            self.assertEqual(spread.get("minDomains"), 3 if strict else None)
            budget = objects["PodDisruptionBudget", thing["metadata"]["name"]]
            self.assertEqual(budget["spec"]["maxUnavailable"], 1)
            only = container(thing)
            self.assertEqual(only["livenessProbe"]["httpGet"]["path"], "/healthz")
            self.assertEqual(only["startupProbe"]["httpGet"]["path"], "/healthz")
            self.assertEqual(only["readinessProbe"]["httpGet"]["path"], "/readyz")
            self.assertGreaterEqual(pod_of(thing)["terminationGracePeriodSeconds"], 15)
            self.assertEqual(thing["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"], "Retain")

    def test_a_cluster_is_bootstrapped_at_the_installation_alone_and_a_refusal_is_final(self):
        for (case, install), objects in self.all.items():
            jobs = [o for (kind, _), o in objects.items() if kind == "Job"]
            given = rendered.values(case)
            wanted = install and given["bootstrap"]["enabled"] and not given["members"]["stopped"]
            self.assertEqual(len(jobs), int(wanted), (case, install))
            for job in jobs:
                (rule,) = job["spec"]["podFailurePolicy"]["rules"]
                self.assertEqual(rule["action"], "FailJob")
                self.assertIn(5, rule["onExitCodes"]["values"])
                self.assertEqual(rule["onExitCodes"]["containerName"], container(job)["name"])
                self.assertEqual(pod_of(job)["restartPolicy"], "Never", "a policy for failures needs it")

    def test_a_pools_grace_period_is_its_drains_deadline_and_fifteen_seconds(self):
        for case in ("pools", "everything"):
            objects = self.all[case, True]
            full = rendered.values(case)["fullnameOverride"] or "rollout"
            for pool in rendered.values(case)["pools"]:
                thing = objects["StatefulSet", f"{full}-{pool['name']}"]
                grace = pod_of(thing)["terminationGracePeriodSeconds"]
                self.assertEqual(grace, pool["drainSeconds"] + 15)
                toml = running.toml(objects["ConfigMap", thing["metadata"]["name"]]["data"]["worker.toml"])
                self.assertLess(toml["timing"]["drain_ms"] + 15_000, grace * 1000)

    def test_certificates_name_the_pods_and_are_where_these_look_for_them(self):
        for objects, thing in self.each("StatefulSet"):
            role = labels_of(thing)["app.kubernetes.io/component"]
            if thing["metadata"]["name"].endswith("-guests"):
                continue
            (tls,) = [v for v in pod_of(thing)["volumes"] if v["name"] == "tls"]
            if "csi" in tls:
                continue
            files = {}
            for source in tls["projected"]["sources"]:
                (source,) = source.values()
                for item in source["items"]:
                    self.assertNotIn(item["path"], files)
                    files[item["path"]] = (source["name"], item["key"])
            # Stopped members come back, and an autoscaler may go up to all that there are certificates for.
            count = thing["spec"].get("replicas") or 3
            for i in range(count):
                pod = f"{thing['metadata']['name']}-{i}"
                env = environment(thing, pod)
                self.assertIn(pathlib.Path(env["ROLLOUT_CERT_FILE"]).name, files)
                secret, key = files[pathlib.Path(env["ROLLOUT_KEY_FILE"]).name]
                certificate = objects.get(("Certificate", secret))
                if key == "tls.key":
                    self.assertEqual(certificate["spec"]["uris"], [f"rollout://{role}/{pod}{self.ns_of(thing)}"])
                    names = certificate["spec"].get("dnsNames", [])
                    if role == "member":
                        own = f"{pod}.{thing['spec']['serviceName']}.batch.svc.cluster.local"
                        self.assertIn(own, names)
            self.assertIn("ca.pem", files)

    def ns_of(self, thing):
        """What the certificates of a pool's workers end with, by the pool's name."""
        return "?ns=team-a" if thing["metadata"]["name"].endswith("-tenant") else ""

    def test_with_csi_each_pod_has_the_key_of_its_own_certificate_and_of_no_other(self):
        seen = set()
        for objects, thing in self.each("StatefulSet"):
            if "a certificate for each pod" not in self.at or thing["metadata"]["name"].endswith("-guests"):
                continue
            name, role = thing["metadata"]["name"], labels_of(thing)["app.kubernetes.io/component"]
            seen.add(name)
            keys = [v for v in pod_of(thing)["volumes"] if "projected" in v or "secret" in v]
            self.assertEqual([v for v in keys if v["name"] not in ("issuer", "webhooks")], [])
            (tls,) = [v["csi"] for v in pod_of(thing)["volumes"] if v["name"] == "tls"]
            self.assertEqual((tls["driver"], tls["readOnly"]), ("csi.cert-manager.io", True))
            told = {key.removeprefix("csi.cert-manager.io/"): value for key, value in tls["volumeAttributes"].items()}
            self.assertTrue(all(isinstance(value, str) for value in told.values()), "a map of texts")
            self.assertEqual(told["uri-sans"], f"rollout://{role}/${{POD_NAME}}{self.ns_of(thing)}")
            self.assertEqual(told["fs-group"], str(pod_of(thing)["securityContext"]["runAsGroup"]))
            self.assertEqual((told["issuer-name"], told["issuer-kind"]), ("rollout-ca", "Issuer"))
            self.assertEqual((told["key-algorithm"], told["key-encoding"]), ("ECDSA", "PKCS8"))
            usages = {"member": "server auth,client auth", "worker": "client auth"}
            self.assertEqual(told["key-usages"], f"digital signature,{usages[role]}")
            if role == "member":
                domain = f"{thing['spec']['serviceName']}.batch.svc.cluster.local"
                self.assertIn(f"${{POD_NAME}}.{domain}", told["dns-names"].split(","))
                self.assertIn("rollout.batch.svc", told["dns-names"].split(","))
            else:
                self.assertNotIn("dns-names", told)
            (mount,) = [m["mountPath"] for m in container(thing)["volumeMounts"] if m["name"] == "tls"]
            env = environment(thing, f"{name}-0")
            self.assertEqual(env["ROLLOUT_CERT_FILE"], f"{mount}/{told['certificate-file']}")
            self.assertEqual(env["ROLLOUT_KEY_FILE"], f"{mount}/{told['privatekey-file']}")
            self.trusts(objects, thing, env, f"{mount}/{told['ca-file']}")
        self.assertEqual(seen, {"rollout", "rollout-qwen", "rollout-tenant"})

    def trusts(self, objects, thing, env, its_own):
        """The authority is the one beside the certificate, or the one of the bundle where there is one."""
        trusted = env.get("ROLLOUT_CA_FILE")
        if trusted is None:
            text = objects["ConfigMap", f"{thing['metadata']['name']}-members"]["data"]["coordinator.toml"]
            trusted = running.toml(text)["tls"]["ca_file"]
        bundles = [v["configMap"] for v in pod_of(thing)["volumes"] if v["name"] == "ca"]
        if "two authorities" in self.at:
            (bundle,) = bundles
            (item,) = bundle["items"]
            (mount,) = [m["mountPath"] for m in container(thing)["volumeMounts"] if m["name"] == "ca"]
            self.assertEqual((bundle["name"], item["key"]), ("authorities", "bundle.pem"))
            self.assertEqual(trusted, f"{mount}/{item['path']}")
        else:
            self.assertEqual((bundles, trusted), ([], its_own))

    def test_with_csi_another_number_of_members_restarts_none(self):
        case = "a certificate for each pod"
        five = rendered.objects(rendered.render(case, False, {"members": {"replicas": 5}}))["StatefulSet", "rollout"]
        three = self.all[case, False]["StatefulSet", "rollout"]
        self.assertEqual((three["spec"]["replicas"], five["spec"]["replicas"]), (3, 5))
        self.assertEqual(three["spec"]["template"], five["spec"]["template"])

    def test_with_csi_the_admins_is_the_one_certificate_that_is_in_a_secret(self):
        for (case, install), objects in self.all.items():
            if "a certificate for each pod" in case:
                made = [name for kind, name in objects if kind == "Certificate"]
                self.assertEqual(made, ["rollout-admin"], (case, install))

    def test_a_pools_namespace_is_in_its_configuration_and_a_change_of_it_restarts_its_workers(self):
        for case, pool, namespace in (
            ("everything", "prod-tenant", "team-a"),
            ("a certificate for each pod", "rollout-tenant", "team-a"),
            ("a certificate for each pod", "rollout-guests", "team-b"),
            ("pools", "rollout-qwen", None),
        ):
            objects = self.all[case, True]
            toml = running.toml(objects["ConfigMap", pool]["data"]["worker.toml"])
            self.assertEqual(toml.get("namespace"), namespace, (case, pool))
            annotations = objects["StatefulSet", pool]["spec"]["template"]["metadata"]["annotations"]
            self.assertEqual(annotations.get("rollout/namespace"), namespace, (case, pool))

    def test_the_notes_warn_of_pools_whose_pods_have_each_others_keys(self):
        told = {case: rendered.notes(case) for case in rendered.CASES}
        for case, pools in (
            ("pools", ["qwen", "tiny"]),
            ("existing certificates", ["qwen"]),
            ("everything", ["qwen", "tiny", "tenant"]),
            ("a certificate for each pod", []),
            ("defaults", []),
        ):
            warned = [line.split()[2].rstrip(":") for line in told[case].splitlines() if line.startswith("WARNING: pool ")]
            self.assertEqual(warned, pools, case)

    def test_an_image_with_a_digest_is_named_by_that_alone_and_digests_can_be_wanted(self):
        objects = self.all["images by digest", True]
        images = [container(thing)["image"] for thing in objects.values() if thing["kind"] in PODS]
        backup = objects["CronJob", "rollout-backup"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        images += [one["image"] for one in backup["initContainers"] + backup["containers"]]
        self.assertGreater(len(images), 5)
        for image in images:
            self.assertRegex(image, rf"^[a-z./-]+@{rendered.DIGEST}$")
        # That tags are refused where digests are wanted is among the values that make no sense.

    def test_whom_all_pods_trust_is_said_once_where_authorities_are_bundled(self):
        pods = [thing for thing in self.all["two authorities", True].values() if thing["kind"] in PODS]
        self.assertEqual({thing["kind"] for thing in pods}, set(PODS))
        for thing in pods:
            (tls,) = [v for v in pod_of(thing)["volumes"] if v["name"] == "tls"]
            trusted = [
                (kind, source["name"], item["key"])
                for one in tls["projected"]["sources"]
                for kind, source in one.items()
                for item in source["items"]
                if item["path"] == "ca.pem"
            ]
            self.assertEqual(trusted, [("configMap", "authorities", "bundle.pem")], thing["metadata"]["name"])

    def test_a_pool_with_a_token_has_that_and_the_addresses_of_all_members_and_no_certificates(self):
        objects = self.all["everything", True]
        thing = objects["StatefulSet", "prod-guests"]
        self.assertFalse([name for kind, name in objects if kind == "Certificate" and "guests" in name])
        env = environment(thing, "prod-guests-0")
        self.assertFalse({"ROLLOUT_CA_FILE", "ROLLOUT_CERT_FILE", "ROLLOUT_KEY_FILE"} & env.keys())
        volumes = {v["name"]: v for v in pod_of(thing)["volumes"]}
        self.assertNotIn("tls", volumes)
        source = volumes["join"]["secret"]
        (mount,) = [m for m in container(thing)["volumeMounts"] if m["name"] == "join"]
        (item,) = source["items"]
        toml = running.toml(objects["ConfigMap", "prod-guests"]["data"]["worker.toml"])["enrolment"]
        self.assertEqual((source["secretName"], item["key"]), ("join-guests", "token"))
        self.assertEqual(toml["token_file"], f"{mount['mountPath']}/{item['path']}")
        domain = "prod-members.batch.svc.cluster.local"
        self.assertEqual(toml["endpoints"], [f"prod-{i}.{domain}:7423" for i in range(5)])
        (ports,) = [p["spec"]["ports"] for (kind, name), p in objects.items() if (kind, name) == ("Service", "prod-members")]
        self.assertIn(7423, [port["port"] for port in ports])
        rules = objects["NetworkPolicy", "prod-members"]["spec"]["ingress"]
        (open_to,) = [rule for rule in rules if {"port": "enrolment", "protocol": "TCP"} in rule["ports"]]
        self.assertIn({"port": "client", "protocol": "TCP"}, open_to["ports"])
        for case in self.all:
            if not rendered.values(case[0])["members"]["enrolment"]["existingSecret"]:
                self.assertFalse("7423" in str(self.all[case]), f"{case}: nobody enrols unless it is asked for")

    def test_a_stopped_cluster_differs_from_the_one_that_runs_in_the_number_of_its_pods_alone(self):
        stopped = dict(self.all["stopped, for a restore", False])
        runs = dict(self.all["defaults", False])
        members = stopped.pop(("StatefulSet", "rollout"))
        as_before = runs.pop(("StatefulSet", "rollout"))
        self.assertEqual(stopped, runs)
        self.assertEqual((members["spec"].pop("replicas"), as_before["spec"].pop("replicas")), (0, 3))
        self.assertEqual(members, as_before)

    def test_an_upgrade_says_nothing_of_how_many_workers_an_autoscaler_has_made_it(self):
        for install in (True, False):
            scaled = self.all["an autoscaled pool", install]["StatefulSet", "rollout-qwen"]
            self.assertNotIn("replicas", scaled["spec"])
            self.assertEqual(self.all["pools", install]["StatefulSet", "rollout-qwen"]["spec"]["replicas"], 2)

    def test_members_and_workers_of_a_release_have_a_job_that_no_other_release_has(self):
        monitors = [o for (kind, _), o in self.all["everything", True].items() if kind == "ServiceMonitor"]
        self.assertEqual(len(monitors), 2)
        for monitor in monitors:
            self.assertNotIn("jobLabel", monitor["spec"])
            (endpoint,) = monitor["spec"]["endpoints"]
            self.assertEqual(endpoint["relabelings"], [{"targetLabel": "job", "replacement": "batch/prod"}])

    def test_values_that_make_no_sense_are_refused(self):
        for wrong in rendered.WRONG:
            defaults = rendered.values("defaults")
            with self.assertRaises(jsonschema.ValidationError, msg=wrong):
                jsonschema.validate(rendered.merged(defaults, wrong), rendered.schema())


class Started(unittest.TestCase):
    """The programs take what the chart gives them."""

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
        """A text of the chart with this machine's places."""
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
        """What cert-manager's driver puts into the pod's volume: files of the same names for each pod."""
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
        """The section with every key that it may have, each as it is by default."""
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
        """The member takes the section where `members.config` has it."""
        over = {"members": {"config": self.section_of(name, schema)}}
        objects = rendered.objects(rendered.render("everything", over=over))
        thing = objects["StatefulSet", "prod"]
        path = self.file(objects, thing, "coordinator.toml")
        self.assertIn(name, running.toml(path.read_text()))
        env = self.env(thing, "prod-0")
        ended = self.ran(thing, ["--config", str(path), "--check-config"], env)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_a_member_starts_with_its_audit_in_a_file_the_secret_of_its_notices_and_the_issuing_key(self):
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
            if "enrolment" in toml:
                listen["enrolment"] = toml["enrolment"]["listen"]
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
                # Nobody is there: it is asked rightly where that is all that it complains of.
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
