# Everything that is not ours: Debian's Slurm, MariaDB, munge, a compiler and the Python stack,
# with the accounting database already filled. Built by `scripts/cluster build`.
ARG DEBIAN
FROM ${DEBIAN}

# The host's certificates, pip and apt settings: a site's mirrors and proxies are the host's business.
COPY host/ /etc/ones-build/
ENV APT_CONFIG=/etc/ones-build/apt.conf \
    PIP_CONFIG_FILE=/etc/ones-build/pip.conf \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PATH=/opt/ones/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

COPY tests/cluster/image/base-packages /etc/ones-build/packages
COPY tests/cluster/image/install-packages /etc/ones-build/
RUN /etc/ones-build/install-packages

# One environment as a centre would keep on its shared software tree; Debian's numpy, scipy and
# torch show through, so that only what Debian lacks comes from the Python index.
RUN python3 -m venv --system-site-packages --without-pip /opt/ones \
 && printf '#!/bin/sh\nexec /opt/ones/bin/python -m pip "$@"\n' > /opt/ones/bin/pip \
 && chmod +x /opt/ones/bin/pip \
 && echo 'PATH=/opt/ones/bin:$PATH' > /etc/profile.d/ones.sh \
 && /opt/ones/bin/pip install --quiet --no-compile nvidia-ml-py

COPY tests/cluster/image/etc/slurmdbd.conf tests/cluster/image/etc/mariadb.cnf \
     tests/cluster/image/accounts tests/cluster/image/make-accounts /etc/ones-build/
COPY tests/cluster/image/lib.sh /usr/local/lib/ones-cluster/
RUN /etc/ones-build/make-accounts
