"""ServiceAccounts of a cluster as identities of real servers, set up as docs/json-web-tokens.md describes it.

The tokens, the keys, the rights and the certificates are those of the API server; `server.mount` stands in for the kubelet.
"""

import base64
import json
import re
import textwrap
import time
import urllib.error
from pathlib import Path

from cluster import ISSUER, REPOSITORY, Cluster, wait
from release import Release, check, eventually
from server import Server, mount

PAGE = REPOSITORY / "docs/json-web-tokens.md"
TOKEN_OF_API = "var/run/secrets/ringq/token"
OWN_TOKEN = "var/run/secrets/kubernetes.io/serviceaccount/token"
KEYS = "/openid/v1/jwks"
DEFAULT_BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:service-account-issuer-discovery"
# Leeway of an issuer without one, in seconds.
LEEWAY = 30
# Least time between two fetches, in seconds.
EARLY = 10
ACCEPTED = (200, "")
UNKNOWN_KEY = "has no key with the `kid`"
WRONG_AUDIENCE = 'the JSON Web Token is for another audience; request one for the audience "ringq"'


class World:
    """A release with servers that trust the cluster, and the accounts of a namespace of clients."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.release = Release(cluster, "ringq")
        self.server_root = cluster.directory / "server-pod"
        self.client_root = cluster.directory / "client-pod"
        # Time since when a server with the URL has the keys that it has.
        self.fetched = 0.0

    def create(self) -> None:
        """Applies what the page shows: the pod of a client, and the identities and values of the servers."""
        self.cluster.kubectl("create", "namespace", "shop")
        for account in ("api", "other"):
            self.cluster.kubectl("create", "serviceaccount", account, "-n", "shop")
        authority = "/api/v1/namespaces/shop/configmaps/kube-root-ca.crt"
        wait("the namespace has its authority", lambda: self.cluster.get(authority))
        head = "apiVersion: v1\nkind: Pod\nmetadata: {name: api, namespace: shop}\n"
        self.cluster.kubectl("create", "-f", "-", "--validate=strict", stdin=head + shown("yaml", "spec:"))
        mount(self.cluster, self.cluster.get("/api/v1/namespaces/shop/pods/api"), self.client_root)
        self.release.create()
        self.release.secret("my-identities", identities_toml=shown("toml", "[[issuer]]"), token="letters-and-digits-1")
        values = "store=sqlite,replicas=1,auth.existingSecret=my-identities,auth.serviceAccountTokens=true"
        self.release.install("--set", values)
        self.release.wait_ready("server", 1)
        self.mount_server()

    def mount_server(self) -> None:
        mount(self.cluster, self.release.pods("server")[0], self.server_root)

    def identities(self, name: str, **changed: str | None) -> Path:
        """The file of the Secret, with the API server and the files of the pod on this machine.

        Other keys of the issuer replace those of the file, or remove them.
        """
        text = (self.server_root / "etc/ringq-identities/identities.toml").read_text()
        text = text.replace('"https://kubernetes.default.svc/', f'"{self.cluster.url}/')
        text = text.replace('"/var/run/', f'"{self.server_root}/var/run/')
        for key, value in changed.items():
            line = "" if value is None else f"{key} = {json.dumps(value)}\n"
            text, number = re.subn(rf"^{key} = .*\n", lambda _: line, text, flags=re.M)
            if not number:
                text = text.replace("\n\n", f"\n{line}\n", 1)
        path = self.cluster.directory / f"{name}.toml"
        path.write_text(text)
        return path

    def token(self, *audiences: str, account: str = "api", duration: str = "1h") -> str:
        wanted = [f"--audience={audience}" for audience in audiences]
        return self.cluster.kubectl("create", "token", account, "-n", "shop", f"--duration={duration}", *wanted).strip()

    def client_token(self, path: str = TOKEN_OF_API) -> str:
        return (self.client_root / path).read_text()

    def own_token(self) -> str:
        return (self.server_root / OWN_TOKEN).read_text()

    def status(self, token: str) -> int:
        """The status of a request for the keys with this token, or without one."""
        try:
            with self.cluster.request("GET", KEYS, token=token) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def is_known(self, token: str) -> bool:
        """Returns whether the API server itself recognizes a token for ringq."""
        spec = {"token": token, "audiences": ["ringq"]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        with self.cluster.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body) as answer:
            return json.loads(answer.read())["status"].get("authenticated", False)


def shown(language: str, begin: str) -> str:
    """The block of the page's section about ServiceAccounts that begins like this."""
    section = PAGE.read_text().split("\n## ServiceAccounts of Kubernetes\n")[1].split("\n## ")[0]
    texts = [textwrap.dedent(text) for text in re.findall(rf"```{language}\n(.*?)```", section, re.S)]
    return next(text for text in texts if text.startswith(begin))


def claims(token: str, part: int = 1) -> dict:
    text = token.split(".")[part]
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def everything(cluster: Cluster) -> None:
    world = World(cluster)
    world.create()
    chart(world)
    issuer(world)
    from_url = rights(world)
    (cluster.directory / "jwks.json").write_text(cluster.kubectl("get", "--raw", KEYS))
    keys = {"jwks_url": None, "jwks_ca": None, "jwks_token_file": None, "jwks_file": "jwks.json"}
    from_file = Server(cluster, "file", world.identities("file", **keys)).start()
    for name, server in [("file", from_file), ("url", from_url)]:
        accepted(world, name, server)
        refused(world, name, server)
    expired(world, keys)
    deleted(world, from_url)
    rotated(world, from_url, from_file)


def chart(world: World) -> None:
    has_token = (world.server_root / OWN_TOKEN).exists()
    subject = claims(world.own_token())["sub"] if has_token else None
    check(subject == f"system:serviceaccount:{world.release.name}:ringq",
          "accounts: with auth.serviceAccountTokens a server has a token of its own account", subject)
    egress = world.release.get("networkpolicies", "ringq")["spec"]["egress"]
    ports = {port["port"] for rule in egress for port in rule["ports"]}
    check({53, 443, 6443} <= ports, "accounts: the policy lets servers reach the API server", egress)


def issuer(world: World) -> None:
    """The command of the page prints the claim `iss` of the tokens."""
    printed = json.loads(world.cluster.kubectl("get", "--raw", "/.well-known/openid-configuration"))
    claim = claims(world.client_token())["iss"]
    check(printed["issuer"] == claim == ISSUER, f"accounts: the issuer is {claim}", printed, claim)


def rights(world: World) -> Server:
    """Who may read the keys; returns a server that fetches them."""
    cluster, token = world.cluster, world.client_token()
    check(world.status("") == 403, "rights: the API server refuses its keys to a caller without a token, 403")
    check(world.status(world.own_token()) == 200, "rights: it gives them to any ServiceAccount")
    subjects = [subject["name"] for subject in cluster.get(DEFAULT_BINDING)["subjects"]]
    check(subjects == ["system:serviceaccounts"], "rights: that is a binding of Kubernetes itself", subjects)

    cluster.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "other.key", "-out", "other.crt",
                    "-days", "1", "-subj", "/CN=other")
    for name, changed, line in [
        ("without-token", {"jwks_token_file": None}, "403 Forbidden; set jwks_token_file"),
        ("other-authority", {"jwks_ca": "other.crt"}, "TLS handshake failed"),
    ]:
        server = Server(cluster, name, world.identities(name, **changed)).start()
        answer = server.enqueue(token)
        check(answer[0] == 503 and server.logged(line), f"rights: server {name}: logs `{line}`, answers 503", answer)
        cluster.end(server.name)

    cluster.kubectl("delete", "clusterrolebinding", DEFAULT_BINDING.rpartition("/")[2])
    eventually("rights: without that binding the keys are refused to a ServiceAccount",
               lambda: world.status(world.own_token()), 403)
    server = Server(cluster, "url", world.identities("url")).start()
    answer, line = server.enqueue(token), "403 Forbidden; give the account of the token in jwks_token_file the right"
    check(answer[0] == 503 and server.logged(line), f"rights: a server logs `{line}`, answers 503", answer)
    cluster.kubectl("create", "-f", "-", "--validate=strict", stdin=shown("yaml", "apiVersion: rbac"))
    eventually("rights: with the binding of the page the server has the keys, without a restart",
               lambda: server.enqueue(token), ACCEPTED)
    world.fetched = time.monotonic()
    return server


def accepted(world: World, name: str, server: Server) -> None:
    token = world.client_token()
    done = server.command(token, "enqueue", "shop.orders", '{"order":7}')
    check(done.returncode == 0, f"{name}: the token of a pod enqueues a job over gRPC", done)
    check(server.enqueue(token)[0] == 200, f"{name}: and by JSON")
    for audiences in (["ringq"], ["other", "ringq"]):
        answer = server.enqueue(world.token(*audiences))
        check(answer[0] == 200, f"{name}: a token of no pod for {' and '.join(audiences)} is accepted", answer)
    other_topic = server.enqueue(token, "bank.orders")[0]
    other_role = server.call("Pull", {"topics": ["shop.orders"]}, token)[0]
    statuses = (other_topic, other_role)
    check(statuses == (403, 403), f"{name}: another topic and another role are refused", statuses)


def refused(world: World, name: str, server: Server) -> None:
    default, other = world.client_token(OWN_TOKEN), world.token("ringq", account="other")
    forged = f"{world.client_token().rpartition('.')[0]}.{other.rpartition('.')[2]}"
    for what, token, text in [
        ("the default token of a pod", default, WRONG_AUDIENCE),
        ("a token for another audience", world.token("other"), WRONG_AUDIENCE),
        ("a token of another account", other, 'no identity has the subject "system:serviceaccount:shop:other"'),
        ("a token with another signature", forged, "the signature of the JSON Web Token is not that of the issuer"),
    ]:
        answer = server.enqueue(token)
        check(answer[0] == 401 and text in answer[1], f"{name}: {what} is refused: {text}", answer)
        done = server.command(token, "enqueue", "shop.orders", "{}")
        lines = done.stderr.splitlines()
        # The second line is where the token comes from.
        clear = done.returncode == 1 and text in lines[0] and lines[1].startswith("  check the token: ")
        check(clear and len(lines) == 2, f"{name}: over gRPC too: {lines[0]}", done)


def expired(world: World, keys: dict) -> None:
    """The shortest token that Kubernetes issues, at a server whose clock is set ahead."""
    shorter = ("create", "token", "api", "-n", "shop", "--duration=599s")
    world.cluster.kubectl(*shorter, refused="may not specify a duration less than 10 minutes")
    server = Server(world.cluster, "clock", world.identities("clock", **keys)).start_with_clock()
    token = world.token("ringq", duration="600s")
    left = claims(token)["exp"] - time.time()
    answer = server.enqueue(token)
    check(580 < left <= 600 and answer == ACCEPTED, "expired: a token of 600 s is accepted, 599 s are not issued", answer)
    server.set_ahead(left + LEEWAY - 10)
    answer = server.enqueue(token)
    check(answer[0] == 200, "expired: it is accepted within the leeway of 30 s", answer)
    server.set_ahead(left + LEEWAY + 5)
    answer = server.enqueue(token)
    text = "the JSON Web Token expired 3"
    check(answer[0] == 401 and answer[1].startswith(text), f"expired: after it, it is refused: {answer[1]}", answer)
    world.cluster.end(server.name)


def deleted(world: World, server: Server) -> None:
    """A token outlives what it is bound to."""
    for what, name, token in [("pod", "api", world.client_token()), ("serviceaccount", "api", world.token("ringq"))]:
        check(world.is_known(token), f"deleted: the API server recognizes a token of a {what} that exists")
        world.cluster.kubectl("delete", what, name, "-n", "shop")
        eventually("deleted: and no longer that of a deleted one", lambda: world.is_known(token), False)
        answer = server.enqueue(token)
        check(answer[0] == 200, "deleted: ringq accepts it until it expires", answer)
    world.cluster.kubectl("create", "serviceaccount", "api", "-n", "shop")


def rotated(world: World, from_url: Server, from_file: Server) -> None:
    """A rotation of the key that the API server signs with, and one that withdraws the first key at once."""
    cluster, old = world.cluster, world.token("ringq")
    cluster.end("kube-apiserver")
    answers = [server.enqueue(old) for server in (from_url, from_file)]
    check(answers == [ACCEPTED, ACCEPTED], "rotated: while no API server runs, tokens are accepted", answers)
    cluster.start_api_server("second", "second", "account")
    new = world.token("ringq")
    used = [claims(token, 0)["alg"] for token in (old, new)]
    check(used == ["RS256", "ES256"], "rotated: after a restart new tokens are signed with ES256 by a new key", used)

    # In the time after a fetch no key exists but those in it.
    time.sleep(max(0, world.fetched + EARLY - time.monotonic()))
    start, answer = time.monotonic(), from_url.enqueue(new)
    retry = answer[0] == 503 and "being fetched again" in answer[1]
    check(retry, "rotated: url: the first call with a new key is to be repeated", answer)
    eventually("rotated: url: repeated, it is accepted, without a restart", lambda: from_url.enqueue(new), ACCEPTED)
    seconds, answer = time.monotonic() - start, from_url.enqueue(old)
    within = seconds <= EARLY and answer == ACCEPTED
    check(within, f"rotated: url: that took {seconds:.1f} s, and the old key is accepted, too", answer)

    answer = from_file.enqueue(new)
    check(answer[0] == 401 and UNKNOWN_KEY in answer[1], "rotated: file: the new key is not known", answer)
    (cluster.directory / "jwks.json").write_text(cluster.kubectl("get", "--raw", KEYS))
    start = time.monotonic()
    eventually("rotated: file: written again, it is accepted", lambda: from_file.enqueue(new), ACCEPTED)
    seconds, answer = time.monotonic() - start, from_file.enqueue(old)
    within = seconds <= 3 and answer == ACCEPTED
    check(within, f"rotated: file: that took {seconds:.1f} s, and the old key is accepted, too", answer)

    cluster.end("kube-apiserver")
    cluster.start_api_server("third", "third", "second")
    newest = world.token("ringq")
    line = "401 Unauthorized; renew the token in jwks_token_file"
    eventually(f"withdrawn: a server whose own token is of that key logs `{line}`, and answers 503 to new tokens",
               lambda: (from_url.enqueue(newest)[0], from_url.logged(line)), (503, True))
    check(from_url.enqueue(old) == ACCEPTED, "withdrawn: meanwhile the former keys stay in force")
    # As in a new pod.
    world.mount_server()
    eventually("withdrawn: with another token of its own it accepts new tokens", lambda: from_url.enqueue(newest), ACCEPTED)
    answer = from_url.enqueue(old)
    check(answer[0] == 401 and UNKNOWN_KEY in answer[1], "withdrawn: those of the withdrawn key are refused", answer)
    check(from_url.enqueue(new) == ACCEPTED, "withdrawn: those of the key before are accepted")
