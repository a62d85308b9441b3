# What the installed system finds at its first start: cloud-init's files in the NoCloud layout, on its own disk. They are
# fetched before the disk is touched: a template that cannot be rendered destroys no disk.

SEED_FILES="meta-data user-data vendor-data network-config"

# fetch_seed: into $T/seed. Without a network-config the system's own configuration of its network stays.
fetch_seed() {
    mkdir -p "$T/seed"
    for seed_file in $SEED_FILES; do
        patiently request GET "$SERVE_URL/cloud-init/$seed_file" || {
            case $STATUS:$seed_file in 404:vendor-data | 404:network-config) continue ;; esac
            trouble "cloud-init/$seed_file could not be had: $(what_came)"
            return 1
        }
        cp "$T/body" "$T/seed/$seed_file"
    done
}

# partitions DISK [held]: their devices, after the kernel has looked at the new table, or at the one that is held back.
partitions() {
    partitions_of=$(device "$1")
    [ ! -b "$partitions_of" ] || blockdev --rereadpt "$partitions_of" 2>/dev/null
    [ -z "${2:-}" ] || add_partitions "$1"
    ! command -v udevadm >/dev/null || udevadm settle --timeout 10
    set +f
    for part_dir in "$SYS/block/$1/$1"*; do
        part_dev=$(device "${part_dir##*/}")
        [ ! -e "$part_dev" ] || printf '%s\n' "$part_dev"
    done
    set -f
}

# plant_seed DISK: on the partition that has cloud-init. The table is not on the disk yet: a disk that starts has its seed.
plant_seed() {
    mkdir -p "$T/root"
    plant_try=0
    while [ "$plant_try" -lt 5 ]; do
        for plant_part in $(partitions "$1" held); do
            mount -t "$(blkid -p -o value -s TYPE "$plant_part" 2>/dev/null || echo none)" "$plant_part" "$T/root" 2>/dev/null || continue
            if [ -d "$T/root/etc/cloud" ]; then
                plant_in "$T/root" && plant_agent "$T/root" && umount "$T/root" && sync && return 0
                umount "$T/root"
                trouble "cloud-init's files and the agent could not be written to $plant_part"
                return 1
            fi
            umount "$T/root"
        done
        plant_try=$((plant_try + 1))
        sleep "${PAUSE_S:-1}"
    done
    trouble "the image has no partition with cloud-init (no /etc/cloud)"
}

# plant_in ROOT
plant_in() {
    rm -f "$1/etc/cloud/cloud-init.disabled"
    plant_dir=$1/var/lib/cloud/seed/nocloud
    mkdir -p "$plant_dir" "$1/etc/cloud/cloud.cfg.d" &&
        chmod 700 "$plant_dir" &&
        (umask 077 && for plant_file in $SEED_FILES; do
            [ ! -e "$T/seed/$plant_file" ] || cp "$T/seed/$plant_file" "$plant_dir/$plant_file" || exit 1
        done) &&
        printf 'datasource_list: [ NoCloud, None ]\n' >"$1/etc/cloud/cloud.cfg.d/99-unbounded-seed.cfg" &&
        { [ ! -e "$T/seed/network-config" ] || free_network "$1"; }
}

# free_network ROOT: what would keep cloud-init from network-config, and this project's own DHCP on all cards.
free_network() {
    rm -f "$1/etc/systemd/network/20-dhcp.network"
    set +f
    for free_file in "$1"/etc/cloud/cloud.cfg.d/*.cfg; do
        ! grep -q '^network: *{ *config: *disabled *}' "$free_file" ||
            sed -i '/^network: *{ *config: *disabled *}/d' "$free_file" || return 1
    done
    set -f
}
