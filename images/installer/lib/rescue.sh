# The rescue system: an SSH server for the keys that metalman names, until metalman says that the rescue is over.
#
# Its host key is made for this boot, and metalman has it before anybody can log in. The server takes no passwords and
# forwards nothing. Nothing here writes a disk: what the user mounts is written back at the end.

RESCUE_PORT=${RESCUE_PORT:-22}
ROOT=${ROOT:-} # where this changes the initrd's own files
RESCUE_EVERY_S=5
RESCUE_KEY_OPTIONS=no-agent-forwarding,no-port-forwarding,no-X11-forwarding

# rescue NAME: true when the rescue is over, and the host is to be switched off.
rescue() {
    rescue_since=$(seconds)
    make_host_key && patiently report_rescue false || trouble "metalman takes no rescue system: $(what_came)" || return 1
    rescue_limit=$(answered seconds)
    allow_keys && prepare_logins "$1" || return 1
    start_server
    say "the rescue system runs, with the host key $RESCUE_KEY"
    while rescue_goes_on; do
        kill -0 "$rescue_server" 2>/dev/null || start_server
        sleep "${PAUSE_S:-$RESCUE_EVERY_S}"
        report_rescue false
    done
    [ ! -e "$T/ended" ] || patiently report_rescue true || say "metalman could not be told of the end: $(what_came)"
    kill "$rescue_server" 2>/dev/null
    release_disks
    say "the rescue is over; the host is switched off"
}

# rescue_goes_on: until the user ends it here, metalman refuses the last report, or its time is over while metalman is
# silent.
rescue_goes_on() {
    [ ! -e "$T/ended" ] && [ $(($(seconds) - rescue_since)) -lt "${rescue_limit:-0}" ] || return 1
    case $STATUS in 408 | 429) ;; 4??) return 1 ;; esac
}

make_host_key() {
    rm -f "$T/host_key"
    RESCUE_KEY=$(dropbearkey -t ed25519 -f "$T/host_key" 2>"$T/dropbear" | grep -oE '^ssh-ed25519 [A-Za-z0-9+/=]+')
    [ -n "$RESCUE_KEY" ] || trouble "no host key could be made: $(head -n 1 "$T/dropbear")"
}

# report_rescue ENDED
report_rescue() {
    HTTP_LIMIT_S=20 request POST "$SERVE_URL/rescue" "{\"hostKey\":\"$RESCUE_KEY\",\"ended\":$1}"
}

# allow_keys: those of the last answer, a line each. They have no quotes and no backslashes.
allow_keys() {
    mkdir -p "$ROOT/root/.ssh" && chmod 700 "$ROOT/root" "$ROOT/root/.ssh"
    sed -n 's/.*"authorizedKeys": *"\([^"]*\)".*/\1/p' "$T/body" | sed 's/\\n/\n/g' |
        sed "s/^/$RESCUE_KEY_OPTIONS /" >"$ROOT/root/.ssh/authorized_keys"
    chmod 600 "$ROOT/root/.ssh/authorized_keys"
    grep -q ' AAAA' "$ROOT/root/.ssh/authorized_keys" || trouble "metalman named no key that may log in"
}

# prepare_logins NAME: a shell for root, terminals, and the command that ends the rescue.
prepare_logins() {
    mkdir -p "$ROOT/etc" "$ROOT/sbin" "$DEV/pts"
    printf 'root:x:0:0:root:/root:/bin/sh\n' >"$ROOT/etc/passwd"
    [ -e "$DEV/pts/ptmx" ] || mount -t devpts devpts "$DEV/pts"
    printf '#!/bin/sh\n: >%s/ended\necho "The rescue ends: the host gets its former power state."\n' "$T" >"$ROOT/sbin/end-rescue"
    chmod 755 "$ROOT/sbin/end-rescue"
    printf 'Rescue system of %s. It writes no disk by itself. end-rescue ends it, and writes back what is mounted.\n' "$1" >"$T/banner"
}

start_server() {
    dropbear -F -E -m -s -j -k -K 60 -b "$T/banner" -P "$T/dropbear.pid" -r "$T/host_key" -p "$RESCUE_PORT" 2>>"$T/dropbear" &
    rescue_server=$!
}

# release_disks: unmounts what the user has mounted of them; what is still in use is written back.
release_disks() {
    grep '^/dev/' "${PROC:-/proc}/mounts" | cut -d ' ' -f 2 | sort -r | while read -r rescue_mount; do
        umount "$rescue_mount" 2>/dev/null || mount -o remount,ro "$rescue_mount" 2>/dev/null
    done
    sync
}
