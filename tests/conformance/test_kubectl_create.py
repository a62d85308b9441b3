"""kubectl create, run and expose, with the generators of all kinds that are served."""

from __future__ import annotations

import base64
import json

from tests.conformance.support import Kubectl, needs_kubectl, unique

pytestmark = needs_kubectl


async def test_config_maps_and_service_accounts(kubectl: Kubectl) -> None:
    source = kubectl.home / "file.txt"
    source.write_text("text\n")
    await kubectl("create", "configmap", "c", "--from-literal=a=1", f"--from-file={source}")
    assert (await kubectl.json("configmap", "c"))["data"] == {"a": "1", "file.txt": "text\n"}
    await kubectl("create", "serviceaccount", "bot")
    assert await kubectl("get", "sa", "bot", "-o", "name") == "serviceaccount/bot\n"
    refused = await kubectl.fails("create", "configmap", "c")
    assert refused == 'error: failed to create configmap: configmaps "c" already exists\n'


async def test_secrets_of_every_type(kubectl: Kubectl) -> None:
    await kubectl("create", "secret", "generic", "g", "--from-literal=k=v")
    login = ("--docker-server=r.example", "--docker-username=u", "--docker-password=p")
    await kubectl("create", "secret", "docker-registry", "d", *login)
    items = {item["metadata"]["name"]: item for item in (await kubectl.json("secrets"))["items"]}
    assert items["g"]["data"] == {"k": "dg=="}
    assert items["d"]["type"] == "kubernetes.io/dockerconfigjson"
    config = json.loads(base64.b64decode(items["d"]["data"][".dockerconfigjson"]))
    assert config["auths"]["r.example"]["username"] == "u"


async def test_a_tls_secret(kubectl: Kubectl) -> None:
    import trustme

    issued = trustme.CA().issue_cert("a.example")
    certificate, key = kubectl.home / "tls.crt", kubectl.home / "tls.key"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    await kubectl("create", "secret", "tls", "t", f"--cert={certificate}", f"--key={key}")
    stored = await kubectl.json("secret", "t")
    assert stored["type"] == "kubernetes.io/tls"
    assert base64.b64decode(stored["data"]["tls.crt"]) == certificate.read_bytes()


async def test_namespaces_are_created_and_deleted(kubectl: Kubectl) -> None:
    name = unique("made")
    await kubectl("create", "namespace", name)
    refused = await kubectl.fails("create", "namespace", name)
    assert refused == f'Error from server (AlreadyExists): namespaces "{name}" already exists\n'
    await kubectl("create", "configmap", "c", "-n", name)
    await kubectl("delete", "namespace", name, "--timeout=60s")
    refused = await kubectl.fails("create", "configmap", "c", "-n", name)
    assert f'namespaces "{name}" not found' in refused


async def test_roles_and_bindings(kubectl: Kubectl) -> None:
    cluster = unique("conformance")
    await kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps,pods/log")
    await kubectl("create", "rolebinding", "r", "--role=reader", "--serviceaccount=ns:bot", "--user=jane")
    await kubectl("create", "clusterrole", cluster, "--verb=get", "--non-resource-url=/metrics")
    await kubectl("create", "clusterrolebinding", cluster, f"--clusterrole={cluster}", "--group=ops")
    try:
        rules = (await kubectl.json("role", "reader"))["rules"]
        assert {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]} in [
            {**rule, "resources": ["configmaps"]} for rule in rules
        ]
        shown = await kubectl("get", "rolebinding", "r", "-o", "wide")
        assert shown.split()[:7] == ["NAME", "ROLE", "AGE", "USERS", "GROUPS", "SERVICEACCOUNTS", "r"]
        assert "ns/bot" in shown
        described = await kubectl("describe", "clusterrolebinding", cluster)
        assert "ops" in described
    finally:
        await kubectl("delete", "clusterrolebinding,clusterrole", cluster)


async def test_services_and_pods(kubectl: Kubectl) -> None:
    await kubectl("run", "p", "--image=registry.invalid/none:1", "--port=80", "--labels=app=p", "--env=A=b")
    await kubectl("expose", "pod", "p", "--name=exposed", "--port=80", "--cluster-ip=None")
    await kubectl("create", "service", "clusterip", "made", "--tcp=80:8080", "--clusterip=None")
    await kubectl("create", "service", "externalname", "elsewhere", "--external-name=x.example")
    assert (await kubectl.json("service", "made"))["spec"]["ports"][0]["targetPort"] == 8080
    exposed = (await kubectl.json("service", "exposed"))["spec"]
    assert (exposed["selector"], exposed["ports"][0]["port"]) == ({"app": "p"}, 80)
    shown = await kubectl("get", "services", "--no-headers")
    assert "x.example" in shown
    container = (await kubectl.json("pod", "p"))["spec"]["containers"][0]
    assert (container["env"], container["imagePullPolicy"]) == ([{"name": "A", "value": "b"}], "IfNotPresent")
    await kubectl("delete", "pod", "p", "--force", "--grace-period=0")


async def test_a_name_can_be_left_to_the_server(kubectl: Kubectl) -> None:
    generated = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "gen-"}}
    made = await kubectl("create", "-f", "-", "-o", "name", stdin=generated)
    assert made.startswith("configmap/gen-")
    assert len(made.strip()) == len("configmap/gen-") + 5
