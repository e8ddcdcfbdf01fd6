# shellcheck shell=bash
# The version of the tree, as Python writes it and as Debian does. Called in the tree.

# What we release: 1.0.0, and before it 1.0.0rc1.
# shellcheck disable=SC2034 # read by those that source this
version_form='^[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?$'

tree_version() { sed -n 's/^version = //p' setup.cfg; }

# debian_version VERSION: in which 1.0.0~rc1 comes before 1.0.0.
debian_version() { sed -E 's/(a|b|rc)([0-9]+)$/~\1\2/' <<< "$1"; }
