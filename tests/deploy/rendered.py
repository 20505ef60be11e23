"""The chart rendered with several sets of values, each over deploy/helm/example.yaml, as objects.

Invariant: values are validated against values.schema.json before anything is rendered. A duplicate key is an
error, and so is a duplicate object.
"""

import pathlib

import jsonschema
import yaml

import template

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "rollout"


class Strict(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML's own loader silently keeps the last."""


def mapping(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    if len(keys) != len(set(keys)):
        raise template.Error(f"a key comes twice: {keys} {node.start_mark}")
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)


def files():
    return {str(p.relative_to(CHART)): p.read_text() for p in CHART.rglob("*") if p.is_file()}


def schema():
    import json

    return json.loads((CHART / "values.schema.json").read_text())


def merged(base, over):
    """Merges one set of values over another, as Helm does."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return base | {key: merged(base.get(key), value) for key, value in over.items()}


POOL = {
    "name": "qwen",
    "replicas": 2,
    "replicasMax": 3,
    "image": "registry.example/rollout-worker-vllm:0.1.0",
    "config": '[labels]\ngpu = "h200"\n\n[[engine]]\nkind = "mock"\nslots = 2\nconcurrency = 8\n',
    "drainSeconds": 60,
    "resources": {"limits": {"nvidia.com/gpu": 1}},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
    "envSecret": "hub",
    "storageSize": "10Gi",
}
PLAIN_POOL = {
    "name": "tiny",
    "replicas": 1,
    "image": "registry.example/rollout:0.1.0",
    "config": '[[engine]]\nkind = "mock"\n',
    "drainSeconds": 45,
}
# Its workers come with a join token, and have no certificates of the chart.
TOKEN_POOL = PLAIN_POOL | {"name": "guests", "tokenSecret": "join-guests"}
# Its workers work for one namespace only.
TENANT_POOL = PLAIN_POOL | {"name": "tenant", "namespace": "team-a"}
DIGEST = "sha256:" + "0123456789abcdef" * 4
# An autoscaler decides how many workers it has.
SCALED_POOL = {key: value for key, value in POOL.items() if key != "replicas"} | {"autoscaled": True}

UPLOAD = {
    "image": "registry.example/aws-cli:2.31.0",
    "command": ["aws"],
    "args": ["s3", "cp", "/backup", "s3://my-backups/rollout", "--recursive"],
}

# What every installation sets.
EXAMPLE = yaml.load((ROOT / "deploy" / "helm" / "example.yaml").read_text(), Strict)

# Typical settings of users, each over the defaults.
CASES = {
    "defaults": {},
    "pools": {"pools": [POOL, PLAIN_POOL]},
    "existing certificates": {
        "tls": {"mode": "existing", "existingSecret": "my-certificates"},
        "pools": [POOL],
    },
    "a certificate for each pod": {
        "tls": {"mode": "csi"},
        "members": {"enrollment": {"existingSecret": "issuing"}},
        "pools": [POOL, TENANT_POOL, TOKEN_POOL | {"namespace": "team-b"}],
    },
    "a certificate for each pod, two authorities": {
        "tls": {"mode": "csi", "caBundle": {"configMap": "authorities", "key": "bundle.pem"}},
        "pools": [{key: value for key, value in SCALED_POOL.items() if key != "replicasMax"}],
    },
    "images by digest": {
        "image": {"digest": DIGEST, "requireDigest": True},
        "pools": [POOL | {"image": f"registry.example/rollout-worker-vllm@{DIGEST}"}],
        "backup": {"enabled": True, "upload": UPLOAD | {"image": f"registry.example/aws-cli@{DIGEST}"}},
    },
    "a backup": {"backup": {"enabled": True, "upload": UPLOAD}},
    "everything": {
        "fullnameOverride": "prod",
        "image": {"tag": "9.9.9", "pullSecrets": [{"name": "registry"}]},
        "store": {"url": "gs://bucket/prefix", "urls": ["gs://bucket/prefix", "s3://older"], "credentialsSecret": "store"},
        "serviceAccount": {"annotations": {"iam.gke.io/gcp-service-account": "a@b"}},
        "members": {
            "replicas": 5,
            "clusterId": "0123456789abcdef0123456789abcdef",
            "listen": "[::]",
            "config": '[raft]\nprofile = "far-zones"\n\n[retention]\nrun_ttl_ms = 60000\n',
            "audit": {"file": True, "filesMax": 3},
            "webhooks": {
                "allow": ["https://hooks.example.com", "http://hooks.batch.svc:8080"],
                "existingSecret": "hooks",
            },
            "enrollment": {"existingSecret": "issuing", "lifetimeSeconds": 3600},
            "storage": {"className": "fast"},
            "nodeSelector": {"disk": "nvme"},
            "tolerations": [{"operator": "Exists"}],
            "annotations": {"a": "b"},
            "priorityClassName": "high",
        },
        "monitoring": {
            "serviceMonitor": True,
            "prometheusRule": True,
            "dashboard": True,
            "labels": {"release": "prometheus"},
        },
        "pools": [POOL, PLAIN_POOL, TOKEN_POOL, TENANT_POOL],
        "backup": {"enabled": True, "schedule": "5 */6 * * *", "upload": UPLOAD | {"envSecret": "backup-bucket"}},
    },
    "one zone, nothing guarded": {
        "members": {"zones": {"required": False}},
        "bootstrap": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
    "two authorities": {"tls": {"caBundle": {"configMap": "authorities", "key": "bundle.pem"}}, "pools": [POOL]},
    "stopped, for a restore": {"members": {"stopped": True}},
    "an autoscaled pool": {"pools": [SCALED_POOL]},
    "nobody scrapes": {"networkPolicy": {"monitoring": [], "clients": []}},
}
CASES = {case: merged(EXAMPLE, over) for case, over in CASES.items()}

# What an installation must set, and the beginning of the refusal without it.
REQUIRED = {
    "image.repository is required: ": {"image": {"repository": ""}},
    "store.url is required: ": {"store": {"url": ""}},
}

# Values over the defaults that the chart refuses.
WRONG = (
    {"members": {"replicas": 1}},
    {"members": {"replica": 3}},
    {"store": {"url": "http://bucket"}},
    {"tls": {"mode": "existing"}},
    {"tls": {"caBundle": {"key": ""}}},
    {"pools": [{"name": "x"}]},
    {"monitoring": {"interval": "often"}},
    {"members": {"audit": {"filesMax": 0}}},
    {"members": {"webhooks": {"allow": ["https://hooks.example.com"]}}},
    {"members": {"webhooks": {"allow": ["https://hooks.example.com/path"], "existingSecret": "x"}}},
    {"members": {"config": "[raft]\n\n [ audit ]\nfile = 'x'\n"}},
    {"members": {"config": "[enrollment]\nlisten = '0.0.0.0:1'\n"}},
    {"members": {"config": "[enrolment]\nlisten = '0.0.0.0:1'\n"}},
    {"members": {"enrollment": {"existingSecret": "x", "lifetimeSeconds": 5}}},
    {"members": {"enrolment": {"existingSecret": "x"}}},
    {"pools": [TOKEN_POOL]},
    {"members": {"stopped": "yes"}},
    {"pools": [SCALED_POOL | {"replicas": 2}]},
    {"pools": [{key: value for key, value in SCALED_POOL.items() if key != "replicasMax"}]},
    {"pools": [SCALED_POOL | {"autoscaled": False}]},
    {"tls": {"mode": "spiffe"}},
    {"pools": [TENANT_POOL | {"namespace": "team-a,team-b"}]},
    {"pools": [TENANT_POOL | {"namespace": "team a"}]},
    {"image": {"digest": "sha256:0123"}},
    {"image": {"digest": "0.1.0"}},
    {"image": {"requireDigest": True}},
    {"image": {"requireDigest": True, "tag": "0.1.0"}},
    {"image": {"digest": DIGEST, "requireDigest": True}, "pools": [POOL]},
    {"image": {"digest": DIGEST, "requireDigest": True}, "backup": {"enabled": True, "upload": UPLOAD}},
    {"backup": {"enabled": True}},
    {"backup": {"enabled": True, "upload": UPLOAD | {"args": []}}},
    {"backup": {"enabled": True, "upload": UPLOAD | {"image": ""}}},
    {"image": {"digest": DIGEST, "requireDigest": True}, "pools": [POOL | {"image": f"vllm@{DIGEST}:tag"}]},
)


def values(case):
    defaults = yaml.load((CHART / "values.yaml").read_text(), Strict)
    return merged(defaults, CASES[case])


def render(case, install=True, over=None):
    """Maps path to text, for every template. `over`: values that are laid over the case's."""
    chart_yaml = yaml.load((CHART / "Chart.yaml").read_text(), Strict)
    given = merged(values(case), over or {})
    jsonschema.validate(given, schema())
    release = {"Name": "rollout", "Namespace": "batch", "Service": "Helm", "IsInstall": install}
    chart = {"Name": chart_yaml["name"], "AppVersion": chart_yaml["appVersion"]}
    templates = template.Chart(files(), given, release, chart)
    return {path: templates.render(path) for path in templates.templates if not path.endswith(".tpl")}


def notes(case, install=True, over=None):
    """Helm's output after an installation."""
    return render(case, install, over)["templates/NOTES.txt"]


def objects(texts):
    """Maps (kind, name) to object."""
    found = {}
    for path, text in texts.items():
        if path.endswith("NOTES.txt"):
            continue
        for document in yaml.load_all(text, Strict):
            if document is None:
                continue
            key = (document["kind"], document["metadata"]["name"])
            if key in found:
                raise template.Error(f"{path}: {key} comes twice")
            found[key] = document
    return found
