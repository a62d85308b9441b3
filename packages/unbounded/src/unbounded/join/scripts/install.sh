#!/usr/bin/env bash
# Gets the agent and starts it on this host, which becomes a node. It may be run again; its exit status is the agent's.
#
#   UNBOUNDED_AGENT_CONFIG_FILE  the agent's configuration; needed. Proxy and CaBundle in it count for the download too,
#                                and the tarball has to be signed by its Upgrade.PublicKey
#   AGENT_URL                    a whole URL of the agent's tarball; counts before the next two
#   AGENT_BASE_URL               where releases are; needed where there is no AGENT_URL
#   AGENT_VERSION                the release's tag; left out: the latest
#   AGENT_SHA256                 digest of the tarball; needed where it comes over plain http
#   AGENT_DEBUG                  1, true or yes: the agent logs what it looks at, too
#   AGENT_PREFLIGHT              0, false or no: the agent starts whatever its checks say
#   UNBOUNDED_INSTALL_DIR        where it is put until it has started; a folder in which programs may run
set -uo pipefail
umask 022
export PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

TRIES=5
LIMIT_S=1800 # of one try

# give_up WORDS...: what machina makes of it is $cause, a reason of condition Provisioning.
cause=
give_up() {
  [ -z "$cause" ] || [ -t 2 ] || echo "unbounded-cause: $cause" >&2
  echo "error: $*" >&2
  exit 1
}

# needs PROGRAM [WHY]: of the host.
needs() {
  command -v "$1" >/dev/null && return
  cause=CommandMissing
  give_up "$1 is not installed on this host${2:+: $2}"
}

has_room() { printf '%65536s' "" 2>/dev/null >"$stage/probe"; }

is_one_of() { # VALUE WORD...
  local value=${1,,} word
  shift
  for word; do
    [ "$value" != "$word" ] || return 0
  done
  return 1
}

# shown URL: without what may be secret in it.
shown() {
  local bare=${1%%[?#]*}
  case "$bare" in
    *://*@*) printf '%s' "${bare%%://*}://${bare#*@}" ;;
    *) printf '%s' "$bare" ;;
  esac
}

[ -n "${UNBOUNDED_AGENT_CONFIG_FILE:-}" ] || give_up "UNBOUNDED_AGENT_CONFIG_FILE is not set: it names the agent's configuration"
[ -f "$UNBOUNDED_AGENT_CONFIG_FILE" ] || give_up "UNBOUNDED_AGENT_CONFIG_FILE: there is no file $UNBOUNDED_AGENT_CONFIG_FILE"

configuration=$(<"$UNBOUNDED_AGENT_CONFIG_FILE") || give_up "$UNBOUNDED_AGENT_CONFIG_FILE cannot be read"
space='[[:space:]]*' # patterns of JSON: a text, and an object without others in it
text='([^"\]|\\.)*'
object="([^\"{}]|\"$text\")*"

# member JSON KEY [PART]: the text of a member of an object, which holds this part; empty where there is none.
member() {
  local LC_ALL=C pattern="\"$2\"$space:$space\"($text${3:-}$text)\"" found
  [[ $1 =~ $pattern ]] || return 0
  found=${BASH_REMATCH[1]//\\n/$'\n'}
  found=${found//\\r/}
  found=${found//\\\//\/}
  printf '%s' "${found//\\\"/\"}"
}

# part KEY: an object of the configuration, without what is around it; empty where there is none.
part() {
  local LC_ALL=C pattern="\"$1\"$space:$space\\{($object)\\}"
  [[ ! $configuration =~ $pattern ]] || printf '%s' "${BASH_REMATCH[1]}"
}

# Proxies are for curl and wget alone: the agent reads its own.
proxies=()
proxy=$(part Proxy)
for scheme in http https; do
  value=$(member "$proxy" "${scheme^^}")
  case "$value" in
    '') ;;
    *[[:space:][:cntrl:]\\]* | *://*@*) give_up "Proxy.${scheme^^} of $UNBOUNDED_AGENT_CONFIG_FILE: a URL without a user, spaces and escapes" ;;
    http://?* | https://?*) proxies+=("${scheme}_proxy=$value") ;;
    *) give_up "Proxy.${scheme^^} of $UNBOUNDED_AGENT_CONFIG_FILE: a URL that begins with http:// or https://" ;;
  esac
done
pattern="\"NoProxy\"$space:$space\\[((\"$text\"|[[:space:],])*)\\]"
if [[ $proxy =~ $pattern ]]; then
  value=${BASH_REMATCH[1]//[\"[:space:]]/}
  [ -z "$value" ] || proxies+=("no_proxy=$value")
fi

authorities=$(member "$configuration" CaBundle "-----BEGIN CERTIFICATE-----") # a text without is the agent's to refuse

key=$(member "$(part Upgrade)" PublicKey)
named="Upgrade.PublicKey of $UNBOUNDED_AGENT_CONFIG_FILE (setting agent-public-key)"
if [[ -z $key && $configuration =~ \"PublicKey\"[[:space:]]*:[[:space:]]*\"[^\"]{64} ]]; then # no label is as long
  give_up "$named cannot be read: it has to be a text, and in an object without others"
fi

machine=$(uname -m)
case "$machine" in
  x86_64 | amd64) arch=amd64 ;;
  aarch64 | arm64) arch=arm64 ;;
  *) give_up "there is no agent for the architecture $machine: it needs x86_64 or aarch64" ;;
esac

[ -n "${AGENT_URL:-}${AGENT_BASE_URL:-}" ] || give_up "no release of the agent is named: set AGENT_URL, or AGENT_BASE_URL"
base=${AGENT_BASE_URL:-}
base=${base%/}
name=unbounded-agent-linux-$arch.tar.gz
if [ -n "${AGENT_URL:-}" ]; then
  url=$AGENT_URL
elif [ -n "${AGENT_VERSION:-}" ]; then
  url=$base/download/$AGENT_VERSION/$name
else
  url=$base/latest/download/$name
fi

case "$url" in
  *[[:space:][:cntrl:]]*) give_up "the URL of the agent has white space in it" ;;
  http://?* | https://?*) ;;
  *) give_up "the URL of the agent begins with http:// or https://, not as $(shown "$url")" ;;
esac

case "$url" in
  http://*) [ -n "${AGENT_SHA256:-}" ] || give_up "$(shown "$url") is plain http: set AGENT_SHA256, or a URL that begins with https://" ;;
esac

for tool in tar gzip mktemp ${AGENT_SHA256:+sha256sum}; do
  needs "$tool"
done
if [ -n "$key" ]; then
  needs openssl "$named demands a signature of the release"
  [[ $key =~ ^MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE[A-Za-z0-9+/]{86}==$ ]] || # so begins each on this curve
    give_up "$named: wanted base64 of an EC public key on the curve P-256"
fi

# Not in /tmp, which may be mounted noexec and is everybody's.
parent=${UNBOUNDED_INSTALL_DIR:-/var/lib/unbounded}
mkdir -p "$parent" || give_up "$parent cannot be made; run this as root"
for left in "$parent"/install.[0-9]*.*; do # of one that was killed
  owner=${left##*/install.}
  [ ! -d "$left" ] || [ -d "/proc/${owner%%.*}" ] || rm -rf "$left"
done
stage=$(mktemp -d "$parent/install.$$.XXXXXX") || give_up "nothing can be put into $parent; run this as root"
trap 'rm -rf "$stage"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
trap 'exit 129' HUP
archive=$stage/agent.tar.gz

# The host's own authorities, and those of the configuration, as one file: curl and wget take one.
trusted=()
if [ -n "$authorities" ]; then
  for place in "${CURL_CA_BUNDLE:-}" "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt \
    /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
    if [ -s "$place" ]; then
      cat "$place" >"$stage/authorities.pem" || give_up "$place cannot be read"
      break
    fi
  done
  printf '\n%s\n' "$authorities" >>"$stage/authorities.pem"
  trusted=("$stage/authorities.pem")
fi

# Each fetch_ resumes where the archive ends: 0 done, 1 retry, 2 failed. The URL may contain a secret, so it is no
# argument of a process, as those are public.
fetch_curl() {
  local quoted=${url//\\/\\\\} code status
  code=$(printf 'url = "%s"\n' "${quoted//\"/\\\"}" |
    env ${proxies[@]+"${proxies[@]}"} curl --config - ${trusted[@]+--cacert "${trusted[@]}"} --silent --show-error --fail --location \
    --proto '=http,https' --proto-redir "=${url%%:*}" --connect-timeout 30 --speed-limit 1 --speed-time 60 --max-time "$LIMIT_S" --continue-at - \
    --output "$archive" --write-out '%{http_code}' 2>"$stage/said")
  status=$?
  [ "$status" != 0 ] || return 0
  case "$status:$code" in
    33:* | 22:416 | 36:*) rm -f "$archive" ;; # it cannot be resumed
    22:408 | 22:429) ;;
    77:*) give_up "CaBundle of $UNBOUNDED_AGENT_CONFIG_FILE: curl reads no certificates in PEM there" ;;
    22:404 | 22:410)
      cause=ReleaseNotFound
      return 2
      ;;
    23:*) # it cannot be written
      has_room || cause=DiskFull
      return 2
      ;;
    1:* | 3:* | 22:4* | 60:*) return 2 ;; # no such protocol, no URL, refused, who is it
  esac
  return 1
}

fetch_wget() {
  local say=()
  if wget --version 2>/dev/null | grep -q 'GNU Wget'; then
    say=(--no-verbose --tries=1 ${trusted[@]+--ca-certificate="${trusted[0]}"})
    printf '%s\n' "$url" | env ${proxies[@]+"${proxies[@]}"} wget "${say[@]}" -c -T 60 -O "$archive" -i - 2>"$stage/said" && return 0
  elif [ "$url" != "$(shown "$url")" ]; then
    cause=CommandMissing
    give_up "$(shown "$url") goes with what may be secret, and this wget takes it as an argument, which everybody on this host can read: install curl"
  elif [[ $url == https://* && -z ${AGENT_SHA256:-}$key ]]; then # as that of busybox
    cause=CommandMissing
    give_up "this wget may not check who answers for $(shown "$url"): install curl, or set AGENT_SHA256"
  else
    env ${proxies[@]+"${proxies[@]}"} wget -c -T 60 -O "$archive" "$url" 2>"$stage/said" && return 0
  fi
  has_room || cause=DiskFull
  ! grep -qE ' (404|410)([^0-9]|$)' "$stage/said" || cause=ReleaseNotFound
  [ -z "$cause" ] || return 2
  ! grep -qE ' (400|401|403)([^0-9]|$)' "$stage/said" || return 2
  ! grep -q ' 416' "$stage/said" || rm -f "$archive"
  return 1
}

# why: what the tool that fetched says of its error, else its last words; without the URL.
why() {
  local said
  said=$(grep -E '^(curl: \(|ERROR: )' "$stage/said" 2>/dev/null | tail -n 1)
  [ -n "$said" ] || said=$(tail -n 1 "$stage/said" 2>/dev/null)
  said=${said//"$url"/"$(shown "$url")"}
  printf '%s' "${said:-no answer}"
}

fetch() {
  local try
  for ((try = 1; ; try++)); do
    "$1"
    case $? in
      0) return 0 ;;
      2) give_up "$(shown "$url") cannot be had$by: $(why)$demand" ;;
    esac
    [ "$try" -lt "$TRIES" ] || give_up "$(shown "$url") cannot be had$by, tried $try times: $(why)$demand"
    echo "the download broke off, trying again: $(why)"
    sleep "${UNBOUNDED_INSTALL_PAUSE_S:-$((try * 3))}"
  done
}

demand= # why a file is needed that the release may lack
by=     # how it is fetched
case " ${proxies[*]-}" in
  *" ${url%%:*}_proxy="*) by=" (the agent's configuration names a proxy)" ;;
esac
echo "downloading the agent from $(shown "$url")"
if command -v curl >/dev/null; then
  tool=fetch_curl
elif command -v wget >/dev/null; then
  tool=fetch_wget
else
  cause=CommandMissing
  give_up "neither curl nor wget is installed on this host"
fi
fetch "$tool"

if [ -n "${AGENT_SHA256:-}" ]; then
  wanted=${AGENT_SHA256#sha256:}
  found=$(sha256sum <"$archive")
  found=${found%% *}
  [ "$found" = "${wanted,,}" ] || give_up "what came from $(shown "$url") has the sha256 $found, not ${wanted,,}"
fi

# The signature lies beside the tarball, with the same query.
if [ -n "$key" ]; then
  release=$url tarball=$archive bare=${url%%[?#]*}
  url=$bare.sig${url#"$bare"} archive=$stage/agent.sig
  demand="; $named demands a signature of the release"
  fetch "$tool"
  {
    echo "-----BEGIN PUBLIC KEY-----"
    for ((at = 0; at < ${#key}; at += 64)); do echo "${key:at:64}"; done
    echo "-----END PUBLIC KEY-----"
  } >"$stage/key.pub"
  openssl dgst -sha256 -verify "$stage/key.pub" -signature "$archive" "$tarball" >"$stage/said" 2>&1 ||
    give_up "what came from $(shown "$release") has no good signature: it is of another file, or by another key than $named"
  url=$release archive=$tarball
fi

# A directory unbounded-agent/ with the executable in it, or the executable alone.
if ! mkdir "$stage/unpacked" || ! tar -xzof "$archive" -C "$stage/unpacked" 2>"$stage/said"; then
  has_room || cause=DiskFull
  [ -z "$cause" ] || give_up "there is no room in $parent to unpack the agent: $(why)"
  give_up "what came from $(shown "$url") is no tar.gz that can be unpacked: $(why)"
fi
rm -f "$archive"
agent=$stage/unpacked/unbounded-agent
[ ! -d "$agent" ] || agent=$agent/unbounded-agent
[ -f "$agent" ] || give_up "there is no unbounded-agent in what came from $(shown "$url")"
chmod 0755 "$agent"

before=()
after=()
! is_one_of "${AGENT_DEBUG:-}" 1 true yes y on || before=(--debug)
! is_one_of "${AGENT_PREFLIGHT:-}" 0 false no n off || after=(--ignore-preflight-errors all)
unset AGENT_URL AGENT_BASE_URL AGENT_VERSION AGENT_SHA256 AGENT_DEBUG AGENT_PREFLIGHT
export UNBOUNDED_AGENT_CONFIG_FILE
echo "starting the agent"
trap : TERM INT HUP # who sends one sends it to all that run here; the agent ends in its own way, and is waited for
"$agent" ${before[@]+"${before[@]}"} start ${after[@]+"${after[@]}"} </dev/null
status=$?
exit "$status"
