# The agent in one file, where the image has it: /disk/unbounded-agent, with its digest beside it. It is fetched before the
# disk is touched, and is put where cloud-init's vendor-data starts it from.

AGENT=unbounded-agent
AGENT_PLACE=usr/local/bin
# require_tpm: fails where this host cannot get the token that it has to have to become a Node.
require_tpm() {
    [ "$(arg unbounded.tpm)" = required ] || return 0
    set +f
    for tpm_device in "$DEV"/tpmrm*; do # which the kernel makes for a TPM 2.0 alone
        [ -e "$tpm_device" ] && set -f && return 0
    done
    set -f
    trouble "this host has no TPM 2.0, which its bootstrap token is wrapped for: enable one in its firmware, or name a token in spec.kubernetes.bootstrapTokenRef"
}

AGENT_TRIES=2 # of the whole file, where what came was not what it should be

# fetch_agent: into $T/agent; nothing where the image has none.
fetch_agent() {
    patiently request GET "$SERVE_URL/$AGENT.sha256" || {
        [ "$STATUS" = 404 ] && return 0
        trouble "$AGENT.sha256 could not be had: $(what_came)"
        return 1
    }
    agent_digest=$(head -c 64 "$T/body")
    is_expected "$AGENT" "$agent_digest" || return 1
    agent_try=1
    while :; do
        HTTP_LIMIT_S=600 patiently request GET "$SERVE_URL/$AGENT" || {
            trouble "$AGENT could not be had: $(what_came)"
            return 1
        }
        agent_found=$(sha256sum <"$T/body" | head -c 64)
        [ "$agent_found" != "$agent_digest" ] || break
        [ "$agent_try" -lt "$AGENT_TRIES" ] || {
            trouble "$AGENT has the SHA-256 $agent_found, and $AGENT.sha256 says $agent_digest"
            return 1
        }
        agent_try=$((agent_try + 1))
    done
    mv "$T/body" "$T/agent"
}

# plant_agent ROOT
plant_agent() {
    [ -e "$T/agent" ] || return 0
    mkdir -p "$1/$AGENT_PLACE" &&
        rm -f "$1/$AGENT_PLACE/$AGENT" && # it may be a link
        cp "$T/agent" "$1/$AGENT_PLACE/$AGENT" &&
        chmod 755 "$1/$AGENT_PLACE/$AGENT"
}
