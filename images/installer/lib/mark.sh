# The mark that says whose disk it is: 4 KiB at byte 524288, between the partition table and the first partition (which
# starts at 1 MiB in every image that is taken). Lines of text:
#
#   UNBOUNDED-DISK 1
#   machine=<UID of the Machine>
#   name=<its name>
#   state=writing | installed
#   table=<UUID of the partition table that was written; while writing that of a layout's, and empty for an image>
#   check=<SHA-256 of the lines above>

MARK_AT=128 # in blocks of 4 KiB

# mark_text UID NAME STATE TABLE
mark_text() {
    mark_lines=$(printf 'UNBOUNDED-DISK 1\nmachine=%s\nname=%s\nstate=%s\ntable=%s' "$1" "$2" "$3" "$4")
    printf '%s\ncheck=%s\n' "$mark_lines" "$(printf '%s\n' "$mark_lines" | digest)"
}

digest() {
    sha256sum | cut -d ' ' -f 1
}

# read_mark DEVICE: the lines of a whole mark; fails where there is none.
read_mark() {
    mark_found=$(dd if="$1" bs=4096 skip=$MARK_AT count=1 2>/dev/null | tr -d '\000')
    mark_lines=${mark_found%
check=*}
    [ "${mark_lines%%
*}" = "UNBOUNDED-DISK 1" ] || return 1
    [ "${mark_found##*
check=}" = "$(printf '%s\n' "$mark_lines" | digest)" ] || return 1
    printf '%s\n' "$mark_lines"
}

# mark_says NAME LINES: the value of a line.
mark_says() {
    printf '%s\n' "$2" | sed -n "s/^$1=//p"
}
