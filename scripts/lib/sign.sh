# shellcheck shell=bash
# Signatures by whatever key git signs with.

# sign FILE: into FILE.asc or FILE.sig; nothing where git has no key (user.signingkey).
sign() {
    local key
    key=$(git config user.signingkey) || return 0
    if [[ $(git config gpg.format) == ssh ]]; then
        ssh-keygen -q -Y sign -n file -f "${key/#\~/$HOME}" "$1"
    else
        gpg --batch --yes --armor --detach-sign --local-user "$key" "$1"
    fi
}
