# How long disks are waited for, before they are reported.
#
# Loading a driver waits for the disks that it finds at its start, so those of ATA and virtio are there once udev has
# settled. SAS, RAID and Fibre Channel controllers report theirs one by one, some of them much later, and do not say when
# they are through.

SCAN_S=30 # since udev was last busy: what controllers are given that may still find disks, and a host without any disk
SETTLE_S=180 # what udev is given where it does not settle
LOOK_EVERY_S=2 # a disk that came since the last look may not be the last one

# wait_for_disks: until all disks are there as far as can be told. What is not there then, and is expected, metalman waits
# for (choose_disk.sh).
wait_for_disks() {
    wait_began=${DISKS_SINCE:-$(seconds)}
    wait_busy=$wait_began
    wait_told=
    wait_known=-
    while :; do
        wait_settled=1
        settled || wait_settled=
        wait_now=$(seconds)
        [ -n "$wait_settled" ] || wait_busy=$wait_now # a driver that starts its controller for so long has found nothing yet
        ! disks_are_there || return 0
        [ $((wait_now - wait_began)) -lt $SETTLE_S ] || return 0
        [ "$wait_why" = "$wait_told" ] || report ChoosingDisk "" "waits for $wait_why"
        wait_told=$wait_why
        sleep "${PAUSE_S:-$LOOK_EVERY_S}"
    done
}

# disks_are_there: of one look, with what the last one found in wait_known.
disks_are_there() {
    wait_last=$wait_known
    wait_known=$(disks)
    wait_why="disks to settle"
    [ -n "$wait_settled" ] && [ "$wait_known" = "$wait_last" ] || return 1
    [ $((wait_now - wait_busy)) -lt $SCAN_S ] || return 0
    [ -n "$wait_known" ] || return 1
    ! wait_why="disks that may come yet, of $(scanning)"
}

settled() {
    ! command -v udevadm >/dev/null || udevadm settle --timeout 10
}

# scanning: the first controller that may still find disks; fails where there is none.
scanning() {
    set +f
    for scan_dir in "$SYS"/class/scsi_host/*; do
        case $(value "$scan_dir/proc_name" ahci) in
            ahci | sata_* | ata_* | pata_* | usb-storage | uas) ;;
            *) set -f && value "$scan_dir/proc_name" && return 0 ;;
        esac
    done
    for scan_dir in "$SYS"/class/nvme/*; do
        case $(value "$scan_dir/state" live) in
            live | dead | deleting*) ;;
            *) set -f && printf '%s\n' "${scan_dir##*/}" && return 0 ;;
        esac
    done
    set -f
    return 1
}
