# Checks the text of a layout as a whole, before anything of it is done: every line's words, and what they refer to. Prints
# the first fault and ends with 1. The form is described in layout.sh.

function bad(text) {
    if (!faulty) print "line " NR ": " text
    faulty = 1
    exit 1
}

function is_uuid(text) { return text ~ /^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$/ }
function is_number(text) { return text ~ /^[1-9][0-9]{0,17}$/ }
function is_name(text) { return text ~ /^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,31}$/ }
function is_path(text) { return text ~ /^(\/[A-Za-z0-9#+.:=@_,%-]+)+$/ && text !~ /\/\.\.?(\/|$)/ }
function is_base64(text) { return text ~ /^[A-Za-z0-9+\/]+=?=?$/ && length(text) % 4 == 0 }

function words(count) {
    if (NF != count) bad($1 " has " NF - 1 " words, and not " count - 1)
}

# only KIND NAME: notes a name that has to be the only one of its kind.
function only(kind, name) {
    if ((kind, name) in named) bad("there are two of " kind " " name)
    named[kind, name] = 1
}

# take DEVICE: notes what a device is used for, once. It has to be made by an earlier line.
function take(device) {
    if (!(device in made)) bad("no earlier line makes " device)
    if (device in used) bad(device " is used twice")
    used[device] = 1
}

NR == 1 {
    if ($0 != "unbounded-layout 1") bad("this is no layout of version 1")
    next
}
ended { bad("there is more behind the end") }
$0 !~ /^[A-Za-z0-9#+.:=@_\/,%-]+( [A-Za-z0-9#+.:=@_\/,%-]+)*$/ { bad("it has other characters than words have") }

$1 == "disk" {
    words(4)
    if ($2 !~ /^d[0-9]{1,3}$/ || $3 !~ /^\/dev\// || !is_path($3) || $4 !~ /^(Blank|Own|Foreign)$/) bad("this is no disk")
    only("disk", $2)
    only("path", $3)
    next
}
$1 == "partition" {
    words(8)
    if (!(("disk", $2) in named)) bad("no earlier line has the disk " $2)
    if (!is_number($3) || $3 > 128 || !is_number($4) || !is_number($5)) bad("partition " $3 " has no place")
    if (!is_uuid($6) || !is_uuid($7) || !is_name($8)) bad("partition " $3 " has no type, no identity or no name")
    only("partition", $2 "/" $3)
    made[$2 "/" $3] = 1
    partitioned[$2] = 1
    next
}
$1 == "raid" {
    if (NF < 7) bad("a raid has two devices at least")
    if (!is_name($2) || $3 !~ /^(0|1|10)$/ || $4 !~ /^1\.[012]$/ || !is_uuid($5)) bad("this is no raid")
    only("raid", $2)
    for (at = 6; at <= NF; at++) {
        if ($at !~ /^d[0-9]+\/[0-9]+$/) bad("a raid is made of partitions")
        take($at)
    }
    made["raid:" $2] = 1
    next
}
$1 == "group" {
    if (NF < 3) bad("a group has one device at least")
    if (!is_name($2)) bad("this is no group")
    only("group", $2)
    for (at = 3; at <= NF; at++) {
        if ($at ~ /^volume:/) bad("a group is made of partitions and raids")
        take($at)
    }
    next
}
$1 == "volume" {
    words(5)
    if (!(("group", $2) in named)) bad("no earlier line has the group " $2)
    if (!is_name($3) || ($4 != "rest" && !is_number($4)) || $5 !~ /^(linear|raid1)$/) bad("this is no volume")
    if ($2 in full) bad("an earlier volume takes the rest of the group " $2)
    if ($4 == "rest") full[$2] = 1
    only("volume", $2 "/" $3)
    made["volume:" $2 "/" $3] = 1
    next
}
$1 == "filesystem" {
    words(5)
    if ($2 !~ /^(ext4|xfs|vfat|swap)$/) bad("no file system " $2 " is known")
    if ($2 == "vfat" ? $4 !~ /^[0-9A-F]{4}-[0-9A-F]{4}$/ : !is_uuid($4)) bad("this is no identity of " $2)
    if ($5 ~ /(^|,)\//) bad("options name no files")
    take($3)
    type[$3] = $2
    next
}
$1 == "mount" {
    words(4)
    if (!($2 in type) || type[$2] == "swap") bad("no earlier line makes a file system on " $2)
    if ($3 != "/" && !is_path($3)) bad("this is no path")
    if (!mounts++ && $3 != "/") bad("the first mount is that of /")
    if ($3 ~ /^\/(boot)?$/ && type[$2] == "vfat") bad($3 " is a file system with links, which vfat is not")
    only("mount", $3)
    only("mounted", $2)
    next
}
$1 == "esp" {
    words(2)
    if (type[$2] != "vfat" || $2 !~ /^d/) bad("an esp is a partition with vfat")
    only("esp", $2)
    esps++
    next
}
$1 == "file" {
    words(4)
    if (!is_path($2) || $3 !~ /^0?[0-7]{3}$/ || !is_base64($4)) bad("this is no file")
    only("file", $2)
    next
}
$1 == "cmdline" {
    words(2)
    only("cmdline", "")
    if (!is_base64($2)) bad("this is no base64")
    next
}
$1 == "script" {
    words(3)
    if ($2 !~ /^(pre|post)$/ || !is_base64($3)) bad("this is no script")
    only("script", $2)
    next
}
$1 == "end" {
    words(1)
    if (!mounts) bad("nothing is mounted as /")
    if (!esps) bad("there is no esp")
    for (each in named) {
        split(each, key, SUBSEP)
        if (key[1] == "disk" && !(key[2] in partitioned)) bad("the disk " key[2] " has no partition")
    }
    ended = 1
    next
}
{ bad("this installer does not know " $1) }

END {
    if (faulty) exit 1
    if (!ended) {
        print "it is cut off: it does not end with a line \"end\""
        exit 1
    }
}
