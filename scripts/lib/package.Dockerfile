# What builds the Debian packages: Debian's own tools, and the modules that write the manual pages.
ARG DEBIAN
FROM ${DEBIAN}
COPY host/ /etc/ones-build/
ENV APT_CONFIG=/etc/ones-build/apt.conf
COPY tests/cluster/image/install-packages /etc/ones-build/
COPY debian/control /etc/ones-build/source/debian/
RUN printf '%s\n' bash-completion build-essential debhelper lintian > /etc/ones-build/packages \
 && /etc/ones-build/install-packages \
 && echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/ones-image \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get build-dep -qq -y --no-install-recommends /etc/ones-build/source \
 && rm -rf /var/lib/apt/lists/*
