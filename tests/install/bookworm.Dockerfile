# Debian 12 with its Slurm, which is too old for onesd, and what compiles our C for it.
ARG DEBIAN
FROM ${DEBIAN}
COPY host/ /etc/ones-build/
ENV APT_CONFIG=/etc/ones-build/apt.conf
COPY tests/cluster/image/install-packages /etc/ones-build/
COPY tests/install/bookworm-packages /etc/ones-build/packages
RUN /etc/ones-build/install-packages
COPY slurm_ext /usr/src/ones/slurm_ext
COPY tests/install/try-bookworm /usr/local/bin/
CMD ["try-bookworm"]
