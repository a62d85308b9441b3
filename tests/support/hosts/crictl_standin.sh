#!/bin/sh
# A stand-in for crictl, where the real one cannot be had: `version`, `runp` and `rmp`, as far as the agent uses them. It
# runs the sandbox image that containerd is configured with, by containerd and runc, through ctr; in the host's network,
# with the default seccomp profile, and without limits, as test hosts may have no CPU controller. What it says of
# failures is what the real crictl 1.36 and containerd 1.6 say (seen on a host with both).
set -u

# fail WORDS: in the format of crictl's log
fail() {
  printf 'time="%s" level=error msg="%s"\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1" >&2
  exit 1
}

unknown='rpc error: code = Unknown desc ='
while [ $# -gt 0 ]; do
  case $1 in
    --runtime-endpoint | --timeout) shift 2 ;;
    *) break ;;
  esac
done
command=${1:-}
shift
ctr() { /usr/local/bin/ctr --namespace k8s.io "$@"; }

case $command in
  --version) echo 'crictl version VERSION' ;;
  runp)
    [ "$1" = --cancel-timeout ] && shift 2
    config=$(cat "$1")
    case $config in *'"network":2'*) ;; *) fail 'the stand-in runs sandboxes in the network of the host alone' ;; esac
    case $config in *'"seccomp":{"profile_type":0}'*) ;; *) fail 'kubelet runs sandboxes with the default seccomp profile' ;; esac
    image=$(sed -n 's/^ *sandbox_image = "\(.*\)"$/\1/p' /etc/containerd/config.toml)
    [ -S /run/containerd/containerd.sock ] || fail 'validate service connection: validate CRI v1 runtime API for endpoint \"unix:///run/containerd/containerd.sock\": rpc error: code = Unavailable desc = connection error'
    [ -n "$(ctr images list --quiet "name==$image")" ] ||
      fail "run pod sandbox: $unknown failed to get sandbox image \\\"$image\\\": failed to pull image \\\"$image\\\""
    [ -e /etc/hosts ] ||
      fail "run pod sandbox: $unknown failed to setup sandbox files: failed to generate sandbox hosts file \\\"/var/lib/containerd/hosts\\\": open /etc/hosts: no such file or directory"
    id=$(cat /proc/sys/kernel/random/uuid)
    said=$(ctr run --detach --net-host --seccomp --cpu-shares 0 "$image" "$id" 2>&1) ||
      fail "run pod sandbox: $unknown failed to create containerd task: $(echo "$said" | tr '"\n' "' ")"
    echo "$id"
    ;;
  rmp)
    [ "$1" = --force ] && shift
    ctr task kill --signal SIGKILL "$1" 2>/dev/null
    ctr task delete --force "$1" >/dev/null 2>&1
    ctr container delete "$1" || fail "removing the pod sandbox \\\"$1\\\" failed"
    echo "Removed sandbox $1"
    ;;
  *) fail "the stand-in knows no command $command" ;;
esac
