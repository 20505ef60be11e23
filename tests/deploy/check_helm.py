"""Checks the chart's promises on its rendered objects."""

import pathlib
import sys
import unittest

import jsonschema

import rendered
import running
import template
from pods import container, environment, labels_of, pod_of

PODS = ("StatefulSet", "Job", "Pod")


class Rendered(unittest.TestCase):
    """The objects of every case, installed and upgraded."""

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

    def test_pods_have_no_privileges_and_mount_their_volumes(self):
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

    def test_a_workers_liveness_probe_asks_for_the_process_only(self):
        workers = [o for _, o in self.each("StatefulSet") if labels_of(o)["app.kubernetes.io/component"] == "worker"]
        self.assertTrue(workers)
        for each in workers:
            self.assertEqual(container(each)["livenessProbe"]["httpGet"]["path"], "/healthz")

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
            # Stopped members come back, and an autoscaler may scale up to the number of certificates.
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
        """The suffixes of the workers' certificates in a pool, by the pool's name."""
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
        """The authority is the one beside the certificate, or the one of the bundle if there is one."""
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

    def test_all_pods_use_one_bundle_of_authorities(self):
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
        toml = running.toml(objects["ConfigMap", "prod-guests"]["data"]["worker.toml"])["enrollment"]
        self.assertEqual((source["secretName"], item["key"]), ("join-guests", "token"))
        self.assertEqual(toml["token_file"], f"{mount['mountPath']}/{item['path']}")
        domain = "prod-members.batch.svc.cluster.local"
        self.assertEqual(toml["endpoints"], [f"prod-{i}.{domain}:7423" for i in range(5)])
        (ports,) = [p["spec"]["ports"] for (kind, name), p in objects.items() if (kind, name) == ("Service", "prod-members")]
        self.assertIn(7423, [port["port"] for port in ports])
        rules = objects["NetworkPolicy", "prod-members"]["spec"]["ingress"]
        (open_to,) = [rule for rule in rules if {"port": "enrollment", "protocol": "TCP"} in rule["ports"]]
        self.assertIn({"port": "client", "protocol": "TCP"}, open_to["ports"])
        for case in self.all:
            if not rendered.values(case[0])["members"]["enrollment"]["existingSecret"]:
                self.assertFalse("7423" in str(self.all[case]), f"{case}: enrollment is off by default")

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

    def test_values_that_every_installation_must_set_are_asked_for(self):
        for refusal, missing in rendered.REQUIRED.items():
            with self.assertRaisesRegex(template.Error, refusal):
                rendered.render("defaults", over=missing)

    def test_values_that_make_no_sense_are_refused(self):
        for wrong in rendered.WRONG:
            defaults = rendered.values("defaults")
            with self.assertRaises(jsonschema.ValidationError, msg=wrong):
                jsonschema.validate(rendered.merged(defaults, wrong), rendered.schema())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
