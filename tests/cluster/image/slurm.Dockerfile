# Our code on top of the base: rebuilt in seconds after each change.
ARG BASE
FROM ${BASE}
COPY . /usr/src/ones
RUN /usr/src/ones/tests/cluster/image/install-ones
ENTRYPOINT ["/usr/local/lib/ones-cluster/entry"]
