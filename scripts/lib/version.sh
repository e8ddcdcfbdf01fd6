# shellcheck shell=bash
# The version of the tree, as Python writes it and as Debian does. Called in the tree.

# What we release: 1.0.0, and before it 1.0.0rc1.
# shellcheck disable=SC2034 # read by those that source this
version_form='^[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?$'

# version_of: from the text of a setup.cfg.
version_of() { sed -n 's/^version = //p'; }
tree_version() { version_of < setup.cfg; }

# debian_version VERSION: in which 1.0.0~rc1 comes before 1.0.0.
debian_version() { sed -E 's/(a|b|rc)([0-9]+)$/~\1\2/' <<< "$1"; }

# debian_number RELEASE: of those that we build packages for; it goes into their versions, so that a host
# that is upgraded to the next Debian gets the packages that were built there.
debian_number() {
    case $1 in
    bookworm) echo 12 ;;
    trixie) echo 13 ;;
    forky) echo 14 ;;
    *) return 1 ;;
    esac
}
