# The certificate of the TPM's endorsement key, where its maker left one in the TPM: a file of its NV memory, which anybody
# may read (TCG EK Credential Profile 2.5, 2.2.1.4). The commands are those of the TPM 2.0 Library, part 3, in hex.

EK_CERTIFICATES="01c00002 01c0000a" # of an RSA 2048 key, and of one on the curve P-256
NV_PIECE=512 # bytes that every TPM can give at once

# tpm_call HEX: sends a command, and prints the answer in hex; nothing where there is no TPM.
tpm_call() {
    {
        unhex "$1" >&5 && dd bs=4096 count=1 <&5 2>/dev/null
    } 2>/dev/null 5<>"$DEV/tpmrm0" | od -An -v -tx1 | tr -d ' \n'
}

unhex() {
    printf "$(printf '%s' "$1" | sed 's/../\\x&/g')"
}

# hex_at HEX OFFSET BYTES
hex_at() {
    printf '%s' "$1" | cut -c $(($2 * 2 + 1))-$((($2 + $3) * 2))
}

# nv_size INDEX: the size of a file; fails where there is none. (TPM2_NV_ReadPublic)
nv_size() {
    nv_public=$(tpm_call "80010000000e00000169$1")
    [ "$(hex_at "$nv_public" 6 4)" = 00000000 ] || return 1
    nv_policy=$((0x$(hex_at "$nv_public" 22 2)))
    printf '%s' $((0x$(hex_at "$nv_public" $((24 + nv_policy)) 2)))
}

# nv_read INDEX SIZE: the file in hex, authorized by its own empty password. (TPM2_NV_Read)
nv_read() {
    nv_at=0
    while [ "$nv_at" -lt "$2" ]; do
        nv_want=$(($2 - nv_at))
        [ "$nv_want" -le $NV_PIECE ] || nv_want=$NV_PIECE
        nv_answer=$(tpm_call "8002000000230000014e$1${1}00000009400000090000010000$(printf '%04x%04x' "$nv_want" "$nv_at")")
        [ "$(hex_at "$nv_answer" 6 4)$(hex_at "$nv_answer" 14 2)" = "00000000$(printf '%04x' "$nv_want")" ] || return 1
        hex_at "$nv_answer" 16 "$nv_want"
        nv_at=$((nv_at + nv_want))
    done | tr -d '\n'
}

# ek_certificate: in base64, in lines of 64; nothing where there is none. What follows the certificate in its file is left out.
ek_certificate() {
    for ek_index in $EK_CERTIFICATES; do
        ek_size=$(nv_size "$ek_index") || continue
        ek_hex=$(nv_read "$ek_index" "$ek_size")
        case $ek_hex in 3082*) ;; *) continue ;; esac
        ek_length=$((0x$(hex_at "$ek_hex" 2 2) + 4))
        [ "${#ek_hex}" -ge $((ek_length * 2)) ] || continue
        unhex "$(hex_at "$ek_hex" 0 $ek_length)" | base64 | tr -d '\n' | fold -w 64
        return
    done
}
