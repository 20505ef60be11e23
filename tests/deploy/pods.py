"""The commands of the chart's pods, and their environment."""


def pod_of(thing):
    return thing["spec"] if thing["kind"] == "Pod" else thing["spec"]["template"]["spec"]


def labels_of(thing):
    where = thing if thing["kind"] == "Pod" else thing["spec"]["template"]
    return where["metadata"]["labels"]


def container(thing):
    (only,) = pod_of(thing)["containers"]
    return only


def environment(thing, pod):
    """The container's variables in that pod, without those that come from elsewhere."""
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
