# Erasure of the disks that metalman names. POST <ServeURL>/erasure says what becomes of each: the first report of a disk
# asks whether it may begin, by the serial number that the disk has at that moment. All disks are erased at once.
#
# A disk that only says that it is erased is not believed. It gets marks before, at its ends and at random places, and
# whatever the method, all of these have to be gone after it.

ERASE_SAMPLES=${ERASE_SAMPLES:-256}
ERASE_EDGE_MIB=16      # of both ends, which are read as a whole
ERASE_CHUNK_MIB=256    # between two percentages
ERASE_REPORT_S=${ERASE_REPORT_S:-30}

# erase_disks NAME...: fails with the reason in $T/trouble where one is not erased.
erase_disks() {
    for erase_name in "$@"; do
        (
            T=$T/erase-$erase_name
            rm -rf "$T"
            mkdir -p "$T" && erase_disk
        ) >/dev/null 2>&1 &
    done
    wait
    erase_left=
    for erase_name in "$@"; do
        [ -e "$T/erase-$erase_name/erased" ] ||
            erase_left="$erase_left; disk $erase_name is not erased: $(head -n 1 "$T/erase-$erase_name/trouble" 2>/dev/null || echo 'its process ended')"
    done
    [ -z "$erase_left" ] || trouble "${erase_left#; }"
}

# erase_disk: the disk erase_name, by the first method that can be verified.
erase_disk() {
    erase_dev=$(device "$erase_name")
    erase_bytes=$(bytes_of "$erase_name")
    erase_began=$(seconds)
    erase_direct= erase_read=
    [ ! -b "$erase_dev" ] || { erase_direct=oflag=direct && erase_read=iflag=direct; }
    erase_method=
    : >"$T/attempts"
    tell_erasure Erasing || return 1
    leave_marks
    for erase_method in $(erase_methods); do
        try_erasure || continue
        rm -f "$T/trouble" "$T/percent"
        tell_erasure Erased && : >"$T/erased"
        return
    done
    erase_method=
    tell_erasure Failed
    return 1
}

# erase_methods: those that this disk may know, the best one first.
erase_methods() {
    [ "$(value "$SYS/block/$erase_name/queue/discard_max_bytes" 0)" = 0 ] || echo Discard
    echo Overwrite
}

# try_erasure: one method, with its verification in $T/verification, or its failure in $T/trouble.
try_erasure() {
    try_began=$(seconds)
    rm -f "$T/trouble" "$T/percent" "$T/verification"
    beat_erasure &
    try_beat=$!
    "erase_by_$erase_method" && verify_erasure
    try_code=$?
    kill $try_beat
    wait $try_beat
    [ $try_code = 0 ] || [ -s "$T/trouble" ] || trouble "it failed"
    object attempt_facts >>"$T/attempts"
    echo >>"$T/attempts"
    return $try_code
}

attempt_facts() {
    text method "$erase_method"
    number seconds $(($(seconds) - try_began))
    [ $try_code = 0 ] || text failure "$(head -n 1 "$T/trouble")"
}

# tell_erasure STATE
tell_erasure() {
    HTTP_LIMIT_S=60 patiently request POST "$SERVE_URL/erasure" "$(object erasure_facts "$1")" && return 0
    tell_why=$(answered error)
    trouble "metalman did not take that disk $erase_name is $1: ${tell_why:-$(what_came)}"
}

# beat_erasure: the same report again and again, while a method runs.
beat_erasure() {
    while sleep "$ERASE_REPORT_S"; do
        beat_body=$(object erasure_facts Erasing)
        (
            T=$T/beat
            mkdir -p "$T"
            HTTP_LIMIT_S=10 request POST "$SERVE_URL/erasure" "$beat_body"
        )
    done
}

erasure_facts() {
    text name "$erase_name"
    disk_identity "$SYS/block/$erase_name"
    text state "$1"
    text method "$erase_method"
    [ ! -s "$T/percent" ] || number percent "$(cat "$T/percent")"
    number seconds $(($(seconds) - erase_began))
    members="$members,\"attempts\":[$(joined <"$T/attempts")]"
    [ "$1" != Erased ] || text verification "$(cat "$T/verification")"
    [ "$1" != Failed ] || text failure "$(head -n 1 "$T/trouble")"
}

# leave_marks: where they are in $T/places, in blocks of 4096 bytes. $T/unmarked says where one could not be written.
leave_marks() {
    marks_blocks=$((erase_bytes / 4096))
    od -An -v -tu4 -N $((ERASE_SAMPLES * 4)) /dev/urandom | tr -s ' ' '\n' | grep . |
        awk -v blocks=$marks_blocks -v samples="$ERASE_SAMPLES" '
            { step = int(blocks / samples); printf "%.0f\n", step * (NR - 1) + (step ? $1 % step : 0) }
            END { print 0; print blocks - 1 }' | sort -nu >"$T/places"
    head -c 4096 /dev/urandom | LC_ALL=C tr '\000\377' ab >"$T/mark"
    rm -f "$T/unmarked"
    while read -r marks_place; do
        dd if="$T/mark" of="$erase_dev" bs=4096 seek="$marks_place" count=1 $erase_direct conv=notrunc 2>"$T/dd" ||
            echo "no mark could be written at byte $((marks_place * 4096)): $(head -n 1 "$T/dd")" >"$T/unmarked"
    done <"$T/places"
    [ ! -b "$erase_dev" ] || sync
}

# verify_erasure: the marks are gone, and both ends read as zero.
verify_erasure() {
    [ ! -b "$erase_dev" ] || { blockdev --flushbufs "$erase_dev" && blockdev --rereadpt "$erase_dev"; } 2>/dev/null
    while read -r verify_place; do
        verify_range $((verify_place * 4096)) 4096 || return 1
    done <"$T/places"
    verify_edge=$((ERASE_EDGE_MIB * 1048576))
    [ $verify_edge -le "$erase_bytes" ] || verify_edge=$erase_bytes
    verify_range 0 $verify_edge && verify_range $((erase_bytes - verify_edge)) $verify_edge || return 1
    verify_marked="each of them was marked before"
    [ ! -e "$T/unmarked" ] || verify_marked="not all of them could be marked before"
    printf '%s samples of 4096 bytes (%s), and the %s bytes at both ends, read as zero' \
        "$(wc -l <"$T/places")" "$verify_marked" $verify_edge >"$T/verification"
}

# verify_range FROM BYTES: all of it is zero.
verify_range() {
    rm -f "$T/unread"
    verify_found=$({ dd if="$erase_dev" bs="$(block_for "$2")" iflag=skip_bytes,count_bytes${erase_read:+,direct} skip="$1" count="$2" 2>/dev/null ||
        : >"$T/unread"; } | verify_counted)
    [ ! -e "$T/unread" ] && [ "${verify_found% *}" = "$2" ] ||
        trouble "the $2 bytes at byte $1 cannot be read" || return 1
    [ "${verify_found#* }" = 0 ] || trouble "of the $2 bytes at byte $1, ${verify_found#* } are not zero"
}

block_for() {
    if [ "$1" -lt 1048576 ]; then echo "$1"; else echo 1048576; fi
}

# verify_counted: how many bytes the input has, and how many that are not zero.
verify_counted() {
    tee "$T/counted" | LC_ALL=C tr -d '\000' | wc -c >"$T/count"
    echo "$(size_of "$T/counted") $(cat "$T/count")"
    rm -f "$T/counted"
}

# erase_by_Discard: not trusted alone. What reads as zero after it has to have had a mark.
erase_by_Discard() {
    [ ! -e "$T/unmarked" ] || trouble "$(cat "$T/unmarked"), so a discard proves nothing" || return 1
    blkdiscard "$erase_dev" 2>"$T/said" || trouble "blkdiscard: $(head -n 1 "$T/said")"
}

erase_by_Overwrite() {
    over_mib=$((erase_bytes / 1048576))
    over_at=0
    while [ $over_at -lt $over_mib ]; do
        over_count=$((over_mib - over_at))
        [ $over_count -le $ERASE_CHUNK_MIB ] || over_count=$ERASE_CHUNK_MIB
        dd if=/dev/zero of="$erase_dev" bs=1048576 count=$over_count seek=$over_at $erase_direct conv=notrunc,fsync 2>"$T/dd" ||
            trouble "writing zeros at MiB $over_at failed: $(head -n 1 "$T/dd")" || return 1
        over_at=$((over_at + over_count))
        echo $((over_at * 100 / over_mib)) >"$T/percent"
    done
    over_rest=$(((erase_bytes - over_mib * 1048576) / 512))
    [ $over_rest = 0 ] ||
        dd if=/dev/zero of="$erase_dev" bs=512 count=$over_rest seek=$((over_mib * 2048)) conv=notrunc,fsync 2>"$T/dd" ||
        trouble "writing zeros at the end failed: $(head -n 1 "$T/dd")"
}
