# What builds the rpms: what builds the Debian packages, and rpm's own tools.
ARG BUILDER
FROM ${BUILDER}
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-pip python3-wheel rpm \
 && rm -rf /var/lib/apt/lists/*
