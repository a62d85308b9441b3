#!/usr/bin/env bash
# Takes away what an agent brought to this host, where the agent cannot do it itself any more: `unbounded-agent reset`
# does it better, as it knows what the host was before. It may be run again; it exits with 1 when something is left.
#
# Nothing is done on a host without traces of an agent. What looks like a node's but was there before the agent, as far
# as it has noted that, stays; so does what cannot be told from the host's own, which is named.
#
#   UNBOUNDED_HOST_ROOT  a folder that stands for / (files alone; for tests)
set -uo pipefail
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
R=${UNBOUNDED_HOST_ROOT:-}
units=$R/etc/systemd/system
etc=$R/etc/unbounded/agent
before=$etc/before
left=0

says() { echo "$*"; }
fails() {
  echo "could not be removed: $*"
  left=1
}
has() { command -v "$1" >/dev/null; }

# ours FILE: one of those that the agent writes says so itself.
ours() { grep -qs 'Written by unbounded-agent' "$1"; }

# found_before NAME: the agent saw something of this name before it changed the host.
found_before() { grep -qsF "\"$1\"" "$before/survey.json"; }

# table_found_before NUMBER: the same for a table of policy routing.
table_found_before() { grep -qsE "\"(table|number)\": ?$1[,}]" "$before/survey.json"; }

take() { # PATH...
  local path
  for path; do
    [ -e "$path" ] || [ -L "$path" ] || continue
    rm -rf --one-file-system -- "$path" 2>/dev/null || fails "$path"
  done
}

has_traces() {
  local path
  for path in "$etc"/* "$R/var/lib/unbounded/agent" "$units"/unbounded-agent-* "$R"/usr/local/bin/unbounded-agent* \
    "$R"/usr/local/lib/unbounded-agent "$R"/etc/systemd/nspawn/kube[12].nspawn "$units"/systemd-nspawn@kube[12].service.d; do
    { [ -e "$path" ] || [ -L "$path" ]; } && return 0
  done
  return 1
}

# had_node: a node was made on this host, or about to be.
had_node() {
  local path
  for path in "$before/survey.json" "$R"/etc/systemd/nspawn/kube[12].nspawn "$units"/systemd-nspawn@kube[12].service.d \
    "$etc"/kube[12]-applied-config.json; do
    [ ! -e "$path" ] || return 0
  done
  return 1
}

stop_agent() {
  local unit
  has systemctl || return 0
  for unit in unbounded-agent-install.service unbounded-agent-start.service unbounded-agent-daemon-recovery.timer \
    unbounded-agent-daemon-recovery.service unbounded-agent-daemon.service; do
    systemctl disable --now "$unit" >/dev/null 2>&1 || systemctl stop "$unit" >/dev/null 2>&1
  done
}

# A node is gone when its machine is: as long as it runs nothing of it is touched.
stop_machine() { # SLOT
  has machinectl || return 0
  systemctl disable "systemd-nspawn@$1.service" >/dev/null 2>&1
  machinectl show "$1" >/dev/null 2>&1 || return 0
  timeout 60 systemctl stop "systemd-nspawn@$1.service" >/dev/null 2>&1
  machinectl show "$1" >/dev/null 2>&1 || return 0
  machinectl terminate "$1" >/dev/null 2>&1
  for ((tries = 0; tries < 30; tries++)); do
    machinectl show "$1" >/dev/null 2>&1 || return 0
    sleep 1
  done
  fails "machine $1, which does not stop"
  return 1
}

remove_tree() { # FOLDER: nothing that is mounted from elsewhere is deleted
  local mount
  [ -d "$1" ] || return 0
  awk '{print $5}' "$R/proc/self/mountinfo" 2>/dev/null | grep -F "$1/" | sort -r | while IFS= read -r mount; do
    umount -- "$mount" 2>/dev/null || umount --lazy -- "$mount" 2>/dev/null
  done
  if awk '{print $5}' "$R/proc/self/mountinfo" 2>/dev/null | grep -qF "$1/"; then
    fails "$1, in which something is mounted"
  else
    take "$1"
  fi
}

remove_machines() {
  local slot path
  for slot in kube1 kube2; do
    [ -e "$R/etc/systemd/nspawn/$slot.nspawn" ] || [ -e "$units/systemd-nspawn@$slot.service.d" ] ||
      [ -e "$etc/$slot-applied-config.json" ] || [ -d "$R/var/lib/machines/$slot" ] || continue
    stop_machine "$slot" || continue
    take "$R/etc/systemd/nspawn/$slot.nspawn" "$units/systemd-nspawn@$slot.service.d"
    for path in "$R/var/lib/machines/$slot" "$R/var/lib/machines/.building-$slot" \
      "$R/var/lib/machines/.removing-$slot-"*; do
      remove_tree "$path"
    done
  done
}

remove_network() {
  local path name family table
  for path in "$R"/sys/class/net/*; do
    name=${path##*/}
    case "$name" in
      geneve0 | vxlan0 | ipip0 | unbounded0 | cbr0) ;;
      wg | wg*[!0-9]*) continue ;;
      wg*) ;;
      *) continue ;;
    esac
    if found_before "$name"; then
      says "was there before, and stays: $name"
    elif has ip; then
      ip link delete dev "$name" 2>/dev/null || fails "the interface $name"
    fi
  done
  for path in /etc/wireguard/server.priv /etc/wireguard/server.pub; do
    if [ -e "$R$path" ] && found_before "$path"; then says "was there before, and stays: $path"; else take "$R$path"; fi
  done
  has ip || return 0
  for family in -4 -6; do
    ip "$family" rule show 2>/dev/null | sed -n 's/^\([0-9]*\):.*lookup \(518[2-9][0-9]\).*/\1 \2/p' |
      while read -r name table; do
        [ "$table" -lt 51820 ] || table_found_before "$table" ||
          ip "$family" rule delete pref "$name" table "$table" 2>/dev/null
      done
    for ((table = 51820; table < 51900; table++)); do
      table_found_before "$table" || [ -z "$(ip "$family" route show table "$table" 2>/dev/null)" ] ||
        ip "$family" route flush table "$table" 2>/dev/null
    done
  done
}

kubernetes_rules() { # nftables commands that remove the chains of kubelet and kube-proxy, and what leads to them
  nft -a list ruleset 2>/dev/null | awk '
    $1 == "table" { table = $2 " " $3; mine = table ~ /^ip6? (filter|nat|mangle|raw|security)$/ }
    $1 == "chain" { chain = $2 }
    !mine { next }
    chain ~ /^KUBE-/ {
      if ($1 == "chain") {
        flush = flush "flush chain " table " " chain "\n"
        gone = gone "delete chain " table " " chain "\n"
      }
      next
    }
    /(jump|goto) KUBE-[A-Za-z0-9-]+( comment "[^"]*")? # handle [0-9]+$/ {
      print "delete rule " table " " chain " handle " $NF
    }
    END { printf "%s%s", flush, gone }'
}

remove_rules() {
  local rules=$R/etc/unbounded/kube/nftables-clear.nft unit commands
  has systemctl && systemctl disable unbounded-nftables.service nftables-flush.service >/dev/null 2>&1
  if has nft && ours "$rules"; then nft -f "$rules" 2>/dev/null; fi # others flush the host's firewall as well
  if has nft && has awk; then
    commands=$(kubernetes_rules)
    [ -z "$commands" ] || echo "$commands" | nft -f - || fails "the packet rules of Kubernetes (chains KUBE-*)"
  fi
  unit=$units/nftables-flush.service
  if grep -qs '/etc/unbounded/' "$unit"; then take "$unit"; fi
  take "$units/unbounded-nftables.service" "$R/etc/unbounded/kube"
}

restore_host() {
  local file fstab=$R/etc/fstab marker='# unbounded-agent, until reset: '
  for file in "$R/etc/sysctl.d/99-kubernetes.conf" "$R/etc/modules-load.d/unbounded-agent.conf" \
    "$R/etc/apt/apt.conf.d/99-unbounded-no-restart-systemd" "$R/etc/needrestart/conf.d/99-unbounded.conf"; do
    if [ -e "$file" ] && { ours "$file" || [[ $file == *unbounded* ]]; }; then
      take "$file"
    elif [ -e "$file" ]; then
      says "may be the agent's, and stays: $file"
    fi
  done
  if grep -qs "^$marker" "$fstab"; then
    sed -i "s/^$marker//" "$fstab" || fails "the marks in $fstab"
    swapon --all 2>/dev/null
  elif [ -e "$fstab.bak" ]; then
    says "may hold lines of swap that an agent took out of $fstab: $fstab.bak"
  fi
  if [ -e "$before/docker.json" ]; then
    systemctl unmask docker.socket docker.service >/dev/null 2>&1
    if [ "$(tr -d ' \n\t' <"$R/etc/docker/daemon.json" 2>/dev/null)" = '{"iptables":false}' ]; then
      take "$R/etc/docker/daemon.json"
    elif [ -e "$R/etc/docker/daemon.json" ]; then
      says "\"iptables\": false in $R/etc/docker/daemon.json is the agent's; the rest may be the host's, so it stays"
    fi
  fi
}

remove_agent() {
  local wants
  for wants in "$units"/*.wants; do take "$wants"/unbounded-agent-* "$wants/unbounded-nftables.service"; done
  take "$units"/unbounded-agent-* "$R"/usr/local/bin/unbounded-agent* "$R/usr/local/lib/unbounded-agent" \
    "$R/var/lib/unbounded/agent" "$R/run/unbounded-agent" "$R/tmp/unbounded-agent" "$R"/tmp/unbounded-agent-config.*.json \
    "$R"/var/lib/unbounded/install.* "$R"/var/lib/unbounded/bootstrap.*
  has systemctl && systemctl daemon-reload >/dev/null 2>&1
  [ "$left" != 0 ] || take "$etc" # what it has noted, as long as that is needed
  rmdir "$R/etc/unbounded" "$R/var/lib/unbounded" 2>/dev/null
}

if [ -z "$R" ] && [ "$(id -u)" != 0 ]; then
  echo "error: run this as root" >&2
  exit 1
fi
if ! has_traces; then
  says "there is no trace of an agent on this host"
  exit 0
fi
node=
! had_node || node=1 # else what looks like a node's is the host's own
stop_agent
remove_machines
[ -z "$node" ] || remove_network
remove_rules
restore_host
remove_agent
if [ "$left" != 0 ]; then
  echo "error: something is left; run it again, or restart the host before" >&2
  exit 1
fi
says "removed; a restart of the host clears what the kernel still holds"
