"""Checks of rendered manifests that schemas cannot make. .ci/check-chart runs them in .tools/kube-venv.

    check.py schemas DIR VERSION...         schemas of kubernetes_validate in the form that kubeconform reads
    check.py definitions DIR FILE...        the same of CustomResourceDefinitions
    check.py objects MANIFEST [SECRET...]   labels, selectors, references, pod security, passwords, probes, limits
    check.py alerts MANIFEST PAGE           the rules are the table of docs/monitoring.md
    check.py dashboards MANIFEST DIR        the ConfigMap for Grafana has the dashboards of this directory
    check.py query MANIFEST                 the query of its ScaledObject counts jobs, and fails where none can be counted
    check.py server MANIFEST PROGRAM        the server accepts the settings and variables of its pod
    check.py identities FILE PROGRAM        a server with these identities, of a manifest or a TOML file, takes the token only
    check.py topics MANIFEST PROGRAM        a server starts with its files of topics, and has their settings
    check.py redis MANIFEST                 the start command runs, and its Redis has the settings of deploy/redis.conf
"""

import base64
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
LABELS = {f"app.kubernetes.io/{name}" for name in
          ("name", "instance", "version", "component", "part-of", "managed-by")}
KINDS = ("deployment-apps-v1 statefulset-apps-v1 service-v1 pod-v1 secret-v1 configmap-v1 serviceaccount-v1 "
         "networkpolicy-networking-v1 poddisruptionbudget-policy-v1 horizontalpodautoscaler-autoscaling-v2").split()
VOLUMES = {"name", "configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI"}
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
PASSWORD = "correct4horse"

errors = []


def expect(condition, text):
    if not condition:
        errors.append(text)


def load(path):
    return [item for item in yaml.safe_load_all(pathlib.Path(path).read_text()) if item]


def title(item):
    return f"{item['kind']} {item['metadata']['name']}"


def pods(items):
    """Returns each pod template, or pod, with the title of its object."""
    found = []
    for item in items:
        if item["kind"] == "Pod":
            found.append((title(item), item))
        elif "template" in item.get("spec", {}):
            found.append((title(item), item["spec"]["template"]))
    return found


def includes(labels, selector):
    return all(labels.get(key) == value for key, value in selector.items())


def seconds(duration):
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhd])", duration))


def mib(quantity):
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return int(number) * (1024 if unit == "Gi" else 1)


# ---- schemas

def schemas(directory, *versions):
    import kubernetes_validate
    source = pathlib.Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    for version in versions:
        target = pathlib.Path(directory) / version
        target.mkdir(parents=True, exist_ok=True)
        for name in ["_definitions", *KINDS]:
            schema = json.loads((source / f"v{version}.0-local-strict" / f"{name}.json").read_text())
            schema.pop("$id", None)  # references then lead to the files beside
            text = json.dumps(schema).replace('"/api/_definitions.json', '"_definitions.json')
            (target / f"{name}.json").write_text(text)


def strict(schema):
    """Returns a schema of a CustomResourceDefinition that refuses unknown fields, as the API server does."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string") is True:
        schema.pop("type", None)
    return schema


def definitions(directory, *files):
    for definition in (item for file in files for item in load(file)):
        spec = definition["spec"]
        target = pathlib.Path(directory) / spec["group"]
        target.mkdir(parents=True, exist_ok=True)
        for version in spec["versions"]:
            name = f"{spec['names']['kind'].lower()}_{version['name']}.json"
            (target / name).write_text(json.dumps(strict(version["schema"]["openAPIV3Schema"])))


# ---- objects

def check_labels(items):
    for item in items:
        missing = LABELS - set(item["metadata"].get("labels", {}))
        expect(not missing, f"{title(item)}: no label {sorted(missing)}")
        for claim in item.get("spec", {}).get("volumeClaimTemplates", []):
            labels = set(claim["metadata"]["labels"])
            expect(labels >= LABELS - {"app.kubernetes.io/version"}, f"{title(item)}: labels of its claim")
            expect("app.kubernetes.io/version" not in labels,
                   f"{title(item)}: a claim template cannot change, but its labels have a version")
    for name, pod in pods(items):
        expect(LABELS <= set(pod["metadata"]["labels"]), f"{name}: labels of its pods")


def check_selectors(items):
    templates = [pod["metadata"]["labels"] for _, pod in pods(items)]
    for item in items:
        spec = item.get("spec", {})
        name = title(item)
        if item["kind"] in ("Deployment", "StatefulSet"):
            expect(includes(spec["template"]["metadata"]["labels"], spec["selector"]["matchLabels"]),
                   f"{name}: its selector does not match its pods")
            expect(len(item["metadata"]["name"]) <= 52 or item["kind"] == "Deployment", f"{name}: the name is too long")
        selectors = []
        if item["kind"] == "Service":
            selectors.append(spec["selector"])
        if item["kind"] == "PodDisruptionBudget":
            selectors.append(spec["selector"]["matchLabels"])
            expect(spec["maxUnavailable"] not in (0, "0%"), f"{name}: no node could be drained")
        if item["kind"] == "NetworkPolicy":
            selectors.append(spec["podSelector"]["matchLabels"])
            selectors += [peer["podSelector"]["matchLabels"] for rule in spec.get("egress", []) for peer in rule.get("to", [])
                          if "matchLabels" in peer.get("podSelector", {})]
        for selector in selectors:
            expect(any(includes(labels, selector) for labels in templates), f"{name}: selects no pod")
        if item["kind"] == "StatefulSet":
            expect(spec.get("podManagementPolicy") == "Parallel", f"{name}: no rollback replaces pods that are not ready")
            services = [each for each in items if title(each) == f"Service {spec['serviceName']}"]
            expect(services and services[0]["spec"].get("clusterIP") == "None", f"{name}: no headless Service")


def reaches_api_server(items):
    """Returns whether the policy of the servers opens the port of the API server."""
    return any(port["port"] == 6443 for item in items if item["kind"] == "NetworkPolicy"
               for rule in item["spec"].get("egress", []) for port in rule.get("ports", []))


def check_security(items):
    """The restricted profile of the Pod Security Standards, and more."""
    for name, pod in pods(items):
        spec = pod["spec"]
        context = spec.get("securityContext", {})
        expect(context.get("runAsNonRoot") is True and context.get("runAsUser", 0) > 0, f"{name}: may run as root")
        expect(context.get("seccompProfile", {}).get("type") == "RuntimeDefault", f"{name}: seccompProfile")
        token = pod["metadata"]["labels"].get("app.kubernetes.io/component") == "server" and reaches_api_server(items)
        expect(spec.get("automountServiceAccountToken") is token, f"{name}: automountServiceAccountToken is not {token}")
        expect(spec.get("enableServiceLinks") is False, f"{name}: gets variables of other services")
        expect(not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), f"{name}: uses the host")
        for volume in spec.get("volumes", []):
            expect(set(volume) <= VOLUMES, f"{name}: volume {volume['name']}")
        for container in spec.get("initContainers", []) + spec["containers"]:
            context = container.get("securityContext", {})
            expect(context.get("allowPrivilegeEscalation") is False and not context.get("privileged"), f"{name}: privileges")
            expect(context.get("readOnlyRootFilesystem") is True, f"{name}: writable root")
            expect(context.get("capabilities") == {"drop": ["ALL"]}, f"{name}: capabilities")
            expect("memory" in container["resources"]["limits"], f"{name}: no memory limit")
            expect({"cpu", "memory"} <= set(container["resources"]["requests"]), f"{name}: no requests")


def check_references(items, secrets):
    """Secrets and ConfigMaps that pods name are rendered, or among those that the operator makes."""
    known = {("Secret", name) for name in secrets}
    known |= {(item["kind"], item["metadata"]["name"]) for item in items}
    for name, pod in pods(items):
        used = []
        for volume in pod["spec"].get("volumes", []):
            if "secret" in volume:
                used.append(("Secret", volume["secret"]["secretName"]))
            if "configMap" in volume:
                used.append(("ConfigMap", volume["configMap"]["name"]))
        for container in pod["spec"]["containers"]:
            for variable in container.get("env", []):
                if "secretKeyRef" in variable.get("valueFrom", {}):
                    used.append(("Secret", variable["valueFrom"]["secretKeyRef"]["name"]))
            mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
            claims = [claim["metadata"]["name"] for item in items if title(item) == name
                      for claim in item["spec"].get("volumeClaimTemplates", [])]
            volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])} | set(claims)
            expect(mounts == volumes, f"{name}: mounts {sorted(mounts)} of volumes {sorted(volumes)}")
        for reference in used:
            expect(reference in known, f"{name}: there is no {' '.join(reference)}")
        account = pod["spec"].get("serviceAccountName")
        expect(account == "default" or ("ServiceAccount", account) in known, f"{name}: there is no account {account}")


def check_passwords(items):
    """Passwords come from Secrets: not from a ConfigMap, a plain variable or a command line."""
    for item in items:
        if item["kind"] == "ConfigMap":
            expect(not re.search(r"redis[a-z+]*://|requirepass|password", json.dumps(item["data"])),
                   f"{title(item)}: has an address or a password")
    for name, pod in pods(items):
        for container in pod["spec"]["containers"]:
            secret = set()
            for variable in container.get("env", []):
                if "secretKeyRef" in variable.get("valueFrom", {}):
                    secret.add(variable["name"])
                for url in re.findall(r"=(\S+)", variable.get("value", "")):
                    places = re.findall(r"\$\((\w+)\)", url)
                    expect(places and set(places) <= secret, f"{name}: {variable['name']} has an address without a Secret")
                    expect(re.fullmatch(r"redis://:\$\(\w+\)@[a-z0-9-]+:6379|\$\(\w+\)", url), f"{name}: {url}")


def check_identities(items):
    """Servers have identities from a Secret, or are insecure on purpose; no token is anywhere else."""
    secrets = {item["metadata"]["name"]: item for item in items if item["kind"] == "Secret"}
    for item in items:
        expect(item["kind"] == "Secret" or not re.search(r"\brq_\w{16}", json.dumps(item)), f"{title(item)}: has a token")
    for name, pod in pods(items):
        container = pod["spec"]["containers"][0]
        variables = {each["name"]: each for each in container.get("env", [])}
        token = variables.get("RINGQ_TOKEN", {}).get("valueFrom", {}).get("secretKeyRef", {})
        expect("value" not in variables.get("RINGQ_TOKEN", {}), f"{name}: RINGQ_TOKEN is not of a Secret")
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] != "server":
            continue
        insecure = variables.get("RINGQ_INSECURE", {}).get("value") == "true"
        place = variables.get("RINGQ_IDENTITIES", {}).get("value")
        expect(insecure != bool(place), f"{name}: either identities, or insecure on purpose")
        if not place:
            continue
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pod["spec"]["volumes"]}
        secret = volumes.get(mounts.get(place))
        expect(secret and token.get("name") == secret, f"{name}: {place} and RINGQ_TOKEN are not of one Secret")
        if secret in secrets:
            made = secrets[secret]
            expect(re.fullmatch(r"rq_\w{43}", base64.b64decode(made["data"]["token"]).decode()), f"{secret}: token")
            expect(made["metadata"]["annotations"].get("helm.sh/resource-policy") == "keep",
                   f"{secret}: the generated token goes with the release")
        is_open = variables["RINGQ_METRICS_OPEN"]["value"] == "true"
        for item in items:
            if item["kind"] == "ServiceMonitor":
                sent = all("authorization" in endpoint for endpoint in item["spec"]["endpoints"])
                expect(is_open or sent, f"{title(item)}: Prometheus sends no token, and metrics need one")


def check_one_password(items):
    """URLs in a rendered settings file have the password that the shards get in the same rendering."""
    data = {item["metadata"]["name"]: item["data"] for item in items if item["kind"] == "Secret"}
    text = "".join(base64.b64decode(each["ringq.toml"]).decode() for each in data.values() if "ringq.toml" in each)
    used = set(re.findall(r"redis://:([^@]*)@", text))
    made = {base64.b64decode(each["password"]).decode() for each in data.values() if "password" in each}
    expect(not used or used == made, "the settings and the shards have different passwords")


def check_server(items):
    found = [(name, pod) for name, pod in pods(items)
             if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "server"]
    expect(len(found) == 1, "not exactly one kind of server")
    for name, pod in found:
        container = pod["spec"]["containers"][0]
        variables = {each["name"]: each for each in container["env"]}
        health, ready = ({"grpc": {"port": 7700, "service": service}} for service in ("", "ringq.v1.QueueService"))
        if "RINGQ_TLS_CERT" in variables:
            health, ready = ({"httpGet": {"port": 7701, "path": path, "scheme": "HTTPS"}} for path in ("/healthz", "/readyz"))
        if variables.get("RINGQ_TLS_CLIENT_AUTH", {}).get("value") == "required":
            health = ready = {"tcpSocket": {"port": 7701}}
        kinds = ("grpc", "httpGet", "tcpSocket")
        probes = [{kind: value for kind, value in container[f"{probe}Probe"].items() if kind in kinds}
                  for probe in ("startup", "liveness", "readiness")]
        expect(probes == [health, health, ready], f"{name}: probes {probes}")
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        expect(ports == {"grpc": 7700, "http": 7701}, f"{name}: ports {ports}")
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        for variable in ("RINGQ_TLS_CERT", "RINGQ_TLS_KEY", "RINGQ_TLS_CLIENT_CA"):
            file = variables.get(variable, {}).get("value")
            expect(not file or file.rpartition("/")[0] in mounts, f"{name}: {variable} is not mounted")
        expect(not any("subPath" in mount for mount in container["volumeMounts"]), f"{name}: a mount is never updated")
        field = variables["RINGQ_REPLICA"]["valueFrom"]["fieldRef"]["fieldPath"]
        expect(field == "metadata.name", f"{name}: RINGQ_REPLICA")
        settings = "\n".join(settings_of(items, pod) or [])
        for key in ("drain_delay", "shutdown_grace"):
            if f"RINGQ_{key.upper()}" in variables:
                settings += f'\n{key} = "{variables[f"RINGQ_{key.upper()}"]["value"]}"'
        given = dict(re.findall(r'^(drain_delay|shutdown_grace) = "(\w+)"', settings, re.M))
        default = "2s" if "RINGQ_DATA_DIR" in variables else "60s"
        want = seconds(given.get("drain_delay", "0s")) + seconds(given.get("shutdown_grace", default)) + 20
        got = pod["spec"]["terminationGracePeriodSeconds"]
        expect(got == want, f"{name}: terminationGracePeriodSeconds {got}, not {want}")
    for item in items:
        if item["kind"] == "Service":
            expect("publishNotReadyAddresses" not in item["spec"], f"{title(item)}: publishes servers that are not ready")


def redis_settings(text):
    lines = [line.strip() for line in text.splitlines()]
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def check_redis(items):
    for item in items:
        if item["metadata"]["labels"]["app.kubernetes.io/component"] != "redis":
            continue
        if item["kind"] == "ConfigMap":
            got = redis_settings(item["data"]["redis.conf"])
            want = redis_settings((ROOT / "deploy/redis.conf").read_text())
            want.pop("maxmemory", None)  # follows the memory limit, see below
            expect(want.items() <= got.items(), f"{title(item)}: differs from deploy/redis.conf")
        if item["kind"] == "Secret":
            expect(item["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep",
                   f"{title(item)}: the generated password goes with the release")
        if item["kind"] == "StatefulSet":
            container = item["spec"]["template"]["spec"]["containers"][0]
            maximum = int(re.search(r"maxmemory (\d+)mb", container["command"][-1]).group(1))
            limit = mib(container["resources"]["limits"]["memory"])
            expect(0 < maximum <= limit * 0.6, f"{title(item)}: maxmemory {maximum} of {limit} MiB")
            expect(item["spec"]["replicas"] == 1, f"{title(item)}: a shard is one Redis")
            expect(item["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain", f"{title(item)}: volume")


def objects(manifest, *secrets):
    items = load(manifest)
    names = [title(item) for item in items]
    expect(len(names) == len(set(names)), "an object is there twice")
    check_labels(items)
    check_selectors(items)
    check_security(items)
    check_references(items, secrets)
    check_passwords(items)
    check_one_password(items)
    check_identities(items)
    check_server(items)
    check_redis(items)


# ---- alerts

def alerts(manifest, page):
    text = pathlib.Path(page).read_text().split("\n## Alerts\n", 1)[1].split("\n##", 1)[0]
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)`(?: for (\d+) (min|d))? \|", text, re.M)
    want = [(expression, f"{number}{unit[0]}" if number else None) for expression, number, unit in rows]
    rules = [rule for item in load(manifest) if item["kind"] == "PrometheusRule"
             for group in item["spec"]["groups"] for rule in group["rules"]]
    got = []
    for rule in rules:
        plain = re.sub(r'\bup\{namespace="[^"]+",job="[^"]+"\}', 'up{job=~"ringq.*"}', rule["expr"])
        plain = re.sub(r'namespace="[^"]+",job="[^"]+",?', "", plain).replace("{}", "")
        got.append((plain, rule.get("for")))
        expect(plain.count("ringq_") + plain.count("up{") == rule["expr"].count("namespace="), f"{rule['alert']}: series of other installations")
    expect(rows and got == want, "the rules are not those of the page: "
           + "; ".join(str(each) for each in set(got) ^ set(want)))


# ---- dashboards

def dashboards(manifest, directory):
    rendered = next(item["data"] for item in load(manifest)
                    if item["kind"] == "ConfigMap" and item["metadata"]["labels"].get("grafana_dashboard") == "1")
    want = {f"ringq-{path.name}": json.loads(path.read_text()) for path in pathlib.Path(directory).glob("*.json")}
    got = {name: json.loads(text) for name, text in rendered.items()}
    expect(want and got == want, f"the dashboards {sorted(got)} are not those of {directory}, {sorted(want)}")


# ---- query

def query(manifest):
    (scaled,) = (item for item in load(manifest) if item["kind"] == "ScaledObject")
    metadata = scaled["spec"]["triggers"][0]["metadata"]
    expect(metadata["ignoreNullValues"] == "false", "without an answer KEDA would remove all pods")

    def jobs(topic, state, instance, number):
        return {"series": f'ringq_jobs{{job="ringq",instance="{instance}",topic="{topic}",state="{state}"}}', "values": f"{number}x9"}

    def counted(shard, number):
        return {"series": f'ringq_shard_counted{{job="ringq",instance="one",shard="{shard}"}}', "values": f"{number}x9"}

    all_jobs = [jobs(topic, state, instance, 2) for topic in ("emails", "images")
                for state in ("ready", "running", "scheduled", "dead") for instance in ("one", "two")]
    cases = [
        # Two servers show the same jobs.
        ([*all_jobs, counted("a", 1)], 4),
        ([counted("a", 1), counted("b", 0)], 0),
        ([counted("a", 0)], None),
        ([], None),
    ]
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [
        {"expr": metadata["query"], "eval_time": "5m",
         "exp_samples": [] if value is None else [{"labels": "{}", "value": value}]}]} for series, value in cases]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"tests": tests}, file)
        file.flush()
        done = subprocess.run(["promtool", "test", "rules", file.name], capture_output=True, text=True)
    expect(done.returncode == 0, f"{done.stdout}{done.stderr}")


# ---- server

def settings_of(items, pod):
    """Returns the lines of ringq.toml in the rendering, or None if it is in a Secret of the operator."""
    volume = next(each for each in pod["spec"]["volumes"] if each["name"] == "config")
    for item in items:
        if "configMap" in volume and title(item) == f"ConfigMap {volume['configMap']['name']}":
            return item["data"]["ringq.toml"].splitlines()
        if "secret" in volume and title(item) == f"Secret {volume['secret']['secretName']}":
            return base64.b64decode(item["data"]["ringq.toml"]).decode().splitlines()
    return None


def server(manifest, program):
    items = load(manifest)
    pod = next(pod for _, pod in pods(items) if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "server")
    text = settings_of(items, pod)
    environment = {}
    for variable in pod["spec"]["containers"][0]["env"]:
        name, source = variable["name"], variable.get("valueFrom", {})
        if "fieldRef" in source:
            environment[name] = "ringq-7d4b9c-x2x9z"
        elif name.startswith("SHARD_URL_"):
            environment[name] = f"rediss://:{PASSWORD}@{name[10:].lower()}.example:6379"
        elif source:
            environment[name] = PASSWORD
        else:
            environment[name] = re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], variable["value"])
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        if text is None:
            text = ["[[shard]]", 'name = "a"', 'url = "rediss://a.example"']
        file.write("\n".join(text))
        file.flush()
        environment["RINGQ_CONFIG"] = file.name
        done = subprocess.run([program, "config"], env=environment, capture_output=True, text=True)
    expect(done.returncode == 0, f"ringq config: {done.stderr.strip()}")
    for line in text:
        if re.match(r"\w+ = ", line) and not line.startswith(("name", "url", "weight", "state")):
            key, value = line.split(" = ")
            same = seconds(value) if value[1].isdigit() else value
            shown = re.search(rf"^{key} = (.+)$", done.stdout, re.M)
            shown = shown[1] if shown else "nothing"
            expect(same == (seconds(shown) if value[1].isdigit() else shown), f"{line}: the server has {shown}")
    shards = environment.get("RINGQ_SHARDS", "").split()
    names = [each.split("=")[0] for each in shards] or re.findall(r'^name = "(\w+)"', "\n".join(text), re.M) or ["s0"]
    got = re.findall(r'^name = "(\w+)"', done.stdout, re.M)
    expect(got == names, f"the server has the shards {got}, not {names}")


# ---- identities

def identities(file, program):
    token = "rq_" + PASSWORD * 3
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        if file.endswith(".toml"):
            source = pathlib.Path(file).resolve()
        else:
            source = place / "identities"
            source.mkdir()
            secret = next(item for item in load(file) if item["kind"] == "Secret" and "identities.toml" in item["data"])
            for key, text in secret["data"].items():
                text = base64.b64decode(text).decode()
                token = text if key == "token" else token
                (source / key).write_text(text.replace("/etc/ringq-identities", str(source)))
        environment = {"PATH": os.environ["PATH"], "RINGQ_IDENTITIES": str(source), "RINGQ_TOKEN": token,
                       "RINGQ_LISTEN": "127.0.0.1:0", "RINGQ_HTTP_LISTEN": "127.0.0.1:0", "RINGQ_DATA_DIR": str(place / "data"),
                       "RINGQ_READY_FILE": str(place / "ready")}
        with (place / "log").open("w") as log:
            process = subprocess.Popen([program, "serve"], env=environment, stderr=log)
        try:
            for _ in range(300):
                if (place / "ready").exists() or process.poll() is not None:
                    break
                time.sleep(0.1)
            expect(process.poll() is None, f"the server ends: {(place / 'log').read_text()}")
            if process.poll() is not None:
                return
            server = json.loads((place / "ready").read_text())["grpc"]

            def ringq(*arguments, token=token):
                variables = {"RINGQ_SERVER": server} | ({"RINGQ_TOKEN": token} if token else {})
                return subprocess.run([program, *arguments], env=variables, capture_output=True, text=True)

            for arguments in (["info"], ["enqueue", "t", "a text", "--id", "one"], ["topic", "list"], ["shard", "list"],
                              ["work", "t", "--exec", "cat", "--max-jobs", "1"], ["enqueue", "t", "a text", "--id", "two"],
                              ["job", "get", "t", "two"], ["job", "delete", "t", "two"]):
                done = ringq(*arguments)
                expect(done.returncode == 0, f"{arguments} with the token: {done.stderr}")
                expect(arguments[1:2] != ["get"] or "a text" in done.stdout, f"payloads are not shown: {done.stdout}")
            for other in (None, "rq_another-token-of-someone"):
                done = ringq("info", token=other)
                expect(done.returncode == 1 and "RINGQ_TOKEN" in done.stderr, f"the token {other}: {done.returncode} {done.stderr}")
            expect(token not in (place / "log").read_text(), "the token is in the log")
        finally:
            process.terminate()
            process.wait(30)


# ---- topics

def topics(manifest, program):
    items = load(manifest)
    files = next(item for item in items if item["kind"] == "ConfigMap" and item["metadata"]["name"].endswith("-topics"))
    pod = next(pod for _, pod in pods(items) if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "server")
    container = pod["spec"]["containers"][0]
    place = next(each["value"] for each in container["env"] if each["name"] == "RINGQ_TOPICS")
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}.get(place)
    volumes = {volume["name"]: volume.get("configMap", {}).get("name") for volume in pod["spec"]["volumes"]}
    expect(volumes.get(mounted) == files["metadata"]["name"], f"{place} is not the mounted ConfigMap")
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        (place / "topics").mkdir()
        for name, text in files["data"].items():
            (place / "topics" / name).write_text(text)
        environment = {"RINGQ_TOPICS": str(place / "topics"), "RINGQ_LISTEN": "127.0.0.1:0", "RINGQ_HTTP_LISTEN": "127.0.0.1:0",
                       "RINGQ_DATA_DIR": str(place / "data"), "RINGQ_READY_FILE": str(place / "ready")}
        with (place / "log").open("w") as log:
            process = subprocess.Popen([program, "serve"], env=environment, stderr=log)
        try:
            while not (place / "ready").exists() and process.poll() is None:
                time.sleep(0.1)
            expect(process.poll() is None, f"the server ends: {(place / 'log').read_text()}")
            if process.poll() is None:
                variables = {"RINGQ_SERVER": json.loads((place / "ready").read_text())["grpc"]}
                done = subprocess.run([program, "topic", "plan", "-f", str(place / "topics")], env=variables, capture_output=True, text=True)
                expect(done.returncode == 0, f"topic plan: {done.stdout} {done.stderr}")
        finally:
            process.terminate()
            process.wait(30)


# ---- redis

def redis(manifest):
    items = load(manifest)
    config = next(item for item in items if item["kind"] == "ConfigMap" and "redis.conf" in item["data"])
    pod = next(pod for name, pod in pods(items) if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "redis")
    container = pod["spec"]["containers"][0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as place:
        text = config["data"]["redis.conf"].replace("/data", place).replace("port 6379", f"bind 127.0.0.1\nport {port}")
        (pathlib.Path(place) / "redis.conf").write_text(text)
        command = [part.replace("/etc/redis", place) for part in container["command"]]
        environment = {**os.environ, "REDISCLI_AUTH": PASSWORD}
        process = subprocess.Popen(command, env=environment, cwd=place, stdout=subprocess.DEVNULL)

        def client(*arguments, password=PASSWORD):
            called = ["redis-cli", "-p", port, *arguments]
            return subprocess.run(called, env={**os.environ, "REDISCLI_AUTH": password}, capture_output=True, text=True)

        try:
            for _ in range(100):
                if client("ping").stdout == "PONG\n":
                    break
                time.sleep(0.1)
            ready = [part.replace("redis-cli", f"redis-cli -p {port}")
                     for part in container["readinessProbe"]["exec"]["command"]]
            expect(subprocess.run(ready, env=environment).returncode == 0, "redis: not ready by its probe")
            expect("NOAUTH" in client("ping", password="").stdout, "redis: answers without the password")
            line = pathlib.Path(f"/proc/{process.pid}/cmdline").read_text()
            expect(PASSWORD not in line, "redis: the password is on the command line")
            expect("redis-server" in line, "redis: the server is not the first process of its container")
            maximum = int(re.search(r"maxmemory (\d+)mb", command[-1]).group(1)) << 20
            want = {"maxmemory": str(maximum), "maxmemory-policy": "noeviction", "appendonly": "yes",
                    "appendfsync": "always", "no-appendfsync-on-rewrite": "no", "save": "",
                    "auto-aof-rewrite-min-size": str(512 << 20)}
            for key, value in want.items():
                got = client("config", "get", key).stdout.split("\n")[1]
                expect(got == value, f"redis: {key} is {got!r}, not {value!r}")
        finally:
            process.terminate()
            expect(process.wait(30) == 0, "redis: SIGTERM does not end it with 0")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    for error in errors:
        print(error, file=sys.stderr)
    sys.exit(bool(errors))
