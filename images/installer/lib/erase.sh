# Erasure of the disks that metalman names. POST <ServeURL>/erasure says what becomes of each: the first report of a disk
# asks whether it may begin, by the serial number that the disk has at that moment. All disks are erased at once. A disk
# that is pulled gives its name to the next one, so each method makes sure that the name still means the same disk.
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
    erase_identity=$(object disk_identity "$SYS/block/$erase_name")
    erase_is=$(which_disk)
    erase_direct= erase_read=
    [ ! -b "$erase_dev" ] || { erase_direct=oflag=direct && erase_read=iflag=direct; }
    erase_method=
    : >"$T/attempts"
    tell_erasure Erasing || return 1
    ! is_same_disk || leave_marks
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

# erase_methods: those that this disk may know, the best one first. A drive's own commands reach sectors that it has taken
# out of use; they are sent only to a drive of this machine's own, as they erase all of it.
erase_methods() {
    methods_transport=$(disk_transport "$erase_name" "$(readlink -f "$SYS/block/$erase_name/device")")
    case $erase_name:$methods_transport in
        nvme*:pcie) printf 'Sanitize\nFormat\n' ;;
        *:ata) echo SecureErase ;;
    esac
    [ "$(value "$SYS/block/$erase_name/queue/discard_max_bytes" 0)" = 0 ] || echo Discard
    echo Overwrite
}

# which_disk: what another disk of the same name does not have: the number that the kernel gives to no other one, else what
# the disk says of itself.
which_disk() {
    value "$SYS/block/$erase_name/diskseq" "$(object disk_identity "$SYS/block/$erase_name")"
}

is_same_disk() {
    [ "$(which_disk)" = "$erase_is" ] || trouble "$erase_name is another disk now than the one that was to be erased"
}

# try_erasure: one method, with its verification in $T/verification, or its failure in $T/trouble.
try_erasure() {
    try_began=$(seconds)
    rm -f "$T/trouble" "$T/percent" "$T/verification"
    beat_erasure &
    try_beat=$!
    is_same_disk && "erase_by_$erase_method" && is_same_disk && verify_erasure
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
    members="$members,$(printf '%s' "$erase_identity" | sed 's/^{//; s/}$//')"
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
    printf '%s samples of 4096 bytes (%s), and the %s bytes at both ends, read as zero%s' \
        "$(wc -l <"$T/places")" "$verify_marked" $verify_edge "$(hidden_sectors)" >"$T/verification"
}

# hidden_sectors: in words, what an ATA drive of this machine hides behind its last sector: by a host protected area, and by a
# device configuration overlay, behind which not even the former reaches.
hidden_sectors() {
    case $(disk_transport "$erase_name" "$(readlink -f "$SYS/block/$erase_name/device")") in ata) ;; *) return 0 ;; esac
    hidden_said=$(hdparm -N "$erase_dev" 2>/dev/null | sed -n 's/^ *max sectors *= *//p')
    hidden_all=${hidden_said#*/}
    hidden_all=${hidden_all%%[!0-9]*}
    case $hidden_said in
        *"HPA is disabled"*) printf '; it hides no sectors (HPA)' ;;
        *"HPA is enabled"*) printf '; it hides %s more sectors (HPA), which are not verified' $((hidden_all - ${hidden_said%%/*})) ;;
        *) printf '; whether it hides sectors (HPA) is not known' && hidden_all= ;;
    esac
    hidden_real=$(hdparm --dco-identify "$erase_dev" 2>/dev/null | sed -n 's/^[[:space:]]*Real max sectors: *\([0-9][0-9]*\)$/\1/p')
    if [ -n "$hidden_real" ] && [ -n "$hidden_all" ]; then
        [ "$hidden_real" -gt "$hidden_all" ] || { printf '; nor others (DCO)' && return 0; }
        printf '; and %s others (DCO), which are not verified' $((hidden_real - hidden_all))
    elif hdparm -I "$erase_dev" 2>/dev/null | grep -q 'Device Configuration Overlay feature set'; then
        printf '; whether it hides others (DCO) is not known'
    fi
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

# erase_by_Sanitize: a block erase, else a new key (NVM Express Base Specification 2.0, 5.24). The drive continues it after
# a power cut, and then takes no other command before its end.
erase_by_Sanitize() {
    only_namespace || return 1
    sanitize_can=$(nvme id-ctrl "$erase_dev" 2>"$T/said" | sed -n 's/^sanicap *: *//p')
    [ -n "$sanitize_can" ] || trouble "nvme id-ctrl: $(head -n 1 "$T/said")" || return 1
    sanitize_how=
    [ $((sanitize_can & 1)) = 0 ] || sanitize_how=4
    [ $((sanitize_can & 2)) = 0 ] || sanitize_how=2
    sanitize_is=$(sanitize_state)
    [ -n "$sanitize_how" ] || [ "$sanitize_is" = 2 ] ||
        trouble "the drive has neither a block erase nor a crypto erase (sanicap $sanitize_can)" || return 1
    [ "$sanitize_is" = 2 ] || nvme sanitize "$erase_dev" --sanact=$sanitize_how >"$T/said" 2>&1 ||
        trouble "nvme sanitize: $(head -n 1 "$T/said")" || return 1
    while :; do
        sleep "${PAUSE_S:-5}"
        case $(sanitize_state) in
            1 | 4) return 0 ;;
            2) echo $(($(sanitize_part) * 100 / 65536)) >"$T/percent" ;;
            3) trouble "the drive reports that its sanitize failed" || return 1 ;;
            *) trouble "the drive does not report its sanitize: $(head -n 1 "$T/log")" || return 1 ;;
        esac
    done
}

sanitize_part() {
    sed -n 's/.*(SPROG) *: *\([0-9][0-9]*\).*/\1/p' "$T/log" | grep . || echo 0
}

# sanitize_state: bits 2:0 of SSTAT; nothing where there is no log. The log is in $T/log.
sanitize_state() {
    nvme sanitize-log "$erase_dev" >"$T/log" 2>&1 || return 0
    state_said=$(sed -n 's/.*(SSTAT) *: *\(0x[0-9a-f]*\|[0-9]*\).*/\1/p' "$T/log" | head -n 1)
    [ -z "$state_said" ] || echo $((state_said & 7))
}

# only_namespace: a sanitize erases every namespace of the drive, and a format does so on some drives. One of another host is
# no disk here. A drive that cannot list those that are not attached has no way to attach them elsewhere.
only_namespace() {
    namespaces=$(nvme list-ns "$erase_dev" --all 2>/dev/null | grep -c ']:0x')
    [ "$namespaces" != 0 ] || namespaces=$(nvme list-ns "$erase_dev" 2>"$T/said" | grep -c ']:0x')
    [ "$namespaces" != 0 ] || trouble "nvme list-ns: $(head -n 1 "$T/said")" || return 1
    [ "$namespaces" = 1 ] || trouble "the drive has $namespaces namespaces, and would erase those of others"
}

# erase_by_Format: of the namespace, with a user data erase.
erase_by_Format() {
    only_namespace || return 1
    nvme format "$erase_dev" --ses=1 --force --timeout=7200000 >"$T/said" 2>&1 ||
        trouble "nvme format: $(head -n 1 "$T/said")"
}

ATA_PASSWORD=unbounded # of a drive only while it erases itself; one that lost its power meanwhile still has it

# erase_by_SecureErase: SECURITY ERASE UNIT, the enhanced one where the drive has it (ACS-3, 7.45).
erase_by_SecureErase() {
    hdparm -I "$erase_dev" 2>"$T/said" | sed -n '/^Security:/,/^[^[:space:]]/p' >"$T/security"
    ata_is 'supported$' || trouble "the drive has no ATA security: $(head -n 1 "$T/said")" || return 1
    ! ata_is 'frozen$' ||
        trouble "the drive is frozen: the firmware locked its security commands until it is switched off" || return 1
    ata_is 'enabled$' || hdparm --user-master u --security-set-pass $ATA_PASSWORD "$erase_dev" >"$T/said" 2>&1 ||
        trouble "hdparm --security-set-pass: $(ata_said)" || return 1
    ata_how=--security-erase
    ! ata_is 'supported: enhanced erase' || ata_how=--security-erase-enhanced
    hdparm --user-master u $ata_how $ATA_PASSWORD "$erase_dev" >"$T/said" 2>&1 && return 0
    trouble "hdparm $ata_how: $(ata_said)"
    hdparm --user-master u --security-disable $ATA_PASSWORD "$erase_dev" >/dev/null 2>&1
    return 1
}

# ata_is PATTERN: a line of the security part that does not begin with "not".
ata_is() {
    grep -qE "^[[:space:]]+$1" "$T/security"
}

# ata_said: the last line of hdparm, as the first ones only name the disk.
ata_said() {
    grep . "$T/said" | tail -n 1
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
        is_same_disk || return 1
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
