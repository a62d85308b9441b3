# What all parts of the installer share: the kernel command line, where things are, and how it gives up.
#
# The parts are functions in POSIX sh, run by busybox. They look at the machine through these variables alone, so that
# tests give them another one: SYS, DEV, UPTIME, CMDLINE and T, a folder for small files.

SYS=${SYS:-/sys}
UPTIME=${UPTIME:-/proc/uptime}
DEV=${DEV:-/dev}
T=${T:-/tmp/installer}
SERVE_URL=

set -f # nothing here is a pattern unless it says so

# arg NAME: the value of the last NAME=VALUE on the kernel command line; nothing where there is none.
arg() {
    arg_value=
    for arg_word in $CMDLINE; do
        case $arg_word in "$1="*) arg_value=${arg_word#*=} ;; esac
    done
    printf '%s' "$arg_value"
}

# args NAME: all its values, a line each.
args() {
    for arg_word in $CMDLINE; do
        case $arg_word in "$1="*) printf '%s\n' "${arg_word#*=}" ;; esac
    done
}

say() {
    if [ -w "${KMSG:-/dev/kmsg}" ]; then
        printf '<5>unbounded-installer: %s\n' "$1" >"${KMSG:-/dev/kmsg}" 2>/dev/null
    fi
}

# seconds: of this machine's own clock, which does not jump.
seconds() {
    read -r seconds_up _ <"$UPTIME"
    printf '%s' "${seconds_up%.*}"
}

# value FILE DEFAULT: what a file of sysfs says.
value() {
    if [ -r "$1" ]; then cat "$1"; else printf '%s\n' "$2"; fi
}

# trouble TEXT: keep it as the reason, unless there is one: what follows from the first is not news.
trouble() {
    [ -s "$T/trouble" ] || printf '%s\n' "$1" >"$T/trouble"
    return 1
}

# fail STAGE TEXT: tell metalman and the console, and end.
fail() {
    report_failure "$1" "$2"
    exit 1
}
