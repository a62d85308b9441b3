# The switch ports behind the NICs, as switches announce them (LLDP, IEEE 802.1AB): every 30 s, to every listener. This
# listens from the moment the links are up, while other work goes on, and sends nothing.
#
# Frames are of anybody's making. One whose lengths do not add up is ignored as a whole, and of a text every byte that is
# not printable ASCII becomes a blank.

LLDP_S=35            # how long an inspection waits for the frames of all linked NICs, since it listens
LLDP_FRAMES=16       # of a NIC are kept; the last one that is whole counts
LLDP=${LLDP:-$T/lldp} # a folder: a file for each NIC, as tcpdump writes it

# listen_for_neighbours: on all NICs that are devices, in the background, until the machine is off.
listen_for_neighbours() {
    command -v tcpdump >/dev/null || return 0
    mkdir -p "$LLDP"
    seconds >"$LLDP.since"
    set +f
    for listen_dir in "$SYS"/class/net/*; do
        [ ! -e "$listen_dir/device" ] || listen_on "${listen_dir##*/}"
    done
    set -f
}

# listen_on NIC
listen_on() {
    tcpdump -i "$1" -Q in -Z root -nn -U -s 1514 -c $LLDP_FRAMES -w "$LLDP/$1" 'ether proto 0x88cc and ether dst 01:80:c2:00:00:0e' \
        >/dev/null 2>&1 </dev/null &
    echo $! >>"$LLDP.pids"
}

stop_listening() {
    [ ! -r "$LLDP.pids" ] || kill $(cat "$LLDP.pids") 2>/dev/null
    rm -f "$LLDP.pids"
}

# wait_for_neighbours: until each NIC with a link has heard one, or LLDP_S have passed.
wait_for_neighbours() {
    [ -r "$LLDP.since" ] || return 0
    read -r lldp_since <"$LLDP.since"
    lldp_told=
    while lldp_awaited=$(silent_nics | tr '\n' ' ') && [ -n "$lldp_awaited" ] && [ $(($(seconds) - lldp_since)) -lt $LLDP_S ]; do
        [ -n "$lldp_told" ] || report ChoosingDisk "" "waits for the switches of $lldp_awaited to announce their ports"
        lldp_told=1
        sleep "${PAUSE_S:-1}"
    done
}

# silent_nics: with a link, and without a neighbour that was heard.
silent_nics() {
    set +f
    for silent_file in "$LLDP"/*; do
        silent_nic=${silent_file##*/}
        [ "$(value "$SYS/class/net/$silent_nic/carrier" 0 2>/dev/null)" = 1 ] || continue
        [ -n "$(neighbour "$silent_nic")" ] || printf '%s\n' "$silent_nic"
    done
    set -f
}

# neighbour NIC: lines of "KEY TEXT"; nothing where none was heard.
neighbour() {
    [ -s "$LLDP/$1" ] || return 0
    head -c 40000 "$LLDP/$1" | od -An -v -tu1 | LC_ALL=C awk '
        { for (i = 1; i <= NF; i++) b[n++] = $i }
        END {
            for (at = 24; at + 16 <= n; at += size) { # after the header of the file, each frame has one, too
                size = b[at + 8] + 256 * b[at + 9] + 65536 * b[at + 10]
                at += 16
                if (b[at - 5] || at + size > n) break
                if (frame(at, at + size)) { split("", kept); for (key in seen) kept[key] = seen[key] }
            }
            for (key in kept) if (kept[key] != "") print key, kept[key]
        }
        function frame(at, end, place, type, len) {
            split("", seen)
            if (end - at < 14 || b[at + 12] != 136 || b[at + 13] != 204) return 0
            for (at += 14; at + 2 <= end; at += len) {
                type = int(b[at] / 2)
                len = (b[at] % 2) * 256 + b[at + 1]
                at += 2
                place++
                if (at + len > end || (place <= 3 && type != place) || (place > 3 && type > 0 && type <= 3)) return 0
                if (type == 0) return len == 0 && place > 3
                if ((type == 1 || type == 2) && (len < 2 || len > 256)) return 0
                if (type == 1) seen["chassisID"] = id(at, len, b[at] == 4, b[at] == 5)
                if (type == 2) seen["portID"] = id(at, len, b[at] == 3, b[at] == 4)
                if (type == 3 && (len < 2 || b[at] + b[at + 1] == 0)) return 0 # the neighbour says that it is leaving
                if (type == 4) seen["portDescription"] = words(at, len)
                if (type == 5) seen["systemName"] = words(at, len)
            }
            return at == end && place >= 3
        }
        function id(at, len, mac, network) {
            if (mac) return len == 7 ? hex(at + 1, 6) : ""
            if (network && len == 6 && b[at + 1] == 1) return b[at + 2] "." b[at + 3] "." b[at + 4] "." b[at + 5]
            return network ? hex(at + 1, len - 1) : words(at + 1, len - 1)
        }
        function hex(at, len, text, i) {
            for (i = 0; i < len; i++) text = text (i ? ":" : "") sprintf("%02x", b[at + i])
            return text
        }
        function words(at, len, text, i) {
            for (i = 0; i < len; i++) text = text (b[at + i] >= 32 && b[at + i] < 127 ? sprintf("%c", b[at + i] + 0) : " ")
            return text
        }'
}

# lldp_facts NIC: for the report.
lldp_facts() {
    lldp_lines=$(neighbour "$1")
    while IFS=' ' read -r lldp_key lldp_text; do
        [ -z "$lldp_key" ] || text "$lldp_key" "$lldp_text"
    done <<LINES
$lldp_lines
LINES
}
